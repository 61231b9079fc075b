"""The options of real workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Gt

from dsgd.core.option_effects import ON_RAY
from dsgd.core.option_rules import FINITE, HIDDEN, Checked, Must, OnlyWith, require


def is_share(gpus: float) -> bool:
    """Whether a worker can have so many GPUs: a part of one, or whole ones."""
    return 0 < gpus <= 1 or (gpus > 1 and float(gpus).is_integer())


@dataclass(frozen=True, kw_only=True)
class RayConfig(Checked):
    """The real workers (--engine ray)."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where gradients are computed. auto: cuda on Ray if the cluster has enough GPUs, else cpu."""

    gpus_per_worker: Annotated[
        float,
        Must("must lie in (0, 1] or be a whole number", is_share),
        ON_RAY,
        OnlyWith(device=("auto", "cuda")),
    ] = 1.0
    """Share of a GPU that a worker on cuda takes, like 0.25 for four workers on one GPU; with
    --ranks-per-worker, whole GPUs of each rank."""

    transport: Annotated[Literal["auto", "local", "ray"], ON_RAY, HIDDEN] = "auto"
    """How weights and gradients travel. local: by a socket and shared memory, to workers on the driver's
    machine. ray: by Ray's calls and object store. auto: each worker in the fastest way it can be reached."""

    start_timeout_s: Annotated[float, FINITE, Gt(0), ON_RAY, HIDDEN] = 60.0
    """Seconds to wait for Ray to start, and then for the workers to be ready."""

    def on(self, engine: str) -> RayConfig:
        """Return these options as far as they have an effect on that engine."""
        return RayConfig(device=self.device) if engine == "sim" else self

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for what cannot be in this run."""
        rule = "needs all workers on the driver's machine, and --nodes stands for several; use auto"
        require(self.transport != "local" or run.fault.nodes == 1, "transport", "local", rule)
