"""The options of checkpoints (docs/checkpoints.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge

from dsgd.core import option_texts as texts
from dsgd.core.option_effects import LEARNED, SIMULATED
from dsgd.core.option_rules import FINITE, Checked, Parsed, require


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Checked):
    """What a run can go on from if its driver is lost (docs/checkpoints.md)."""

    checkpoint_every: str | None = None
    """Engine seconds between two checkpoints, or auto,mtbf=SECONDS: Young's and Daly's interval, from the
    measured cost and the mean time between two losses of the driver. By tier, like
    memory=1,disk=30,peer=60,s3=300. None: no checkpoints."""
    checkpoint_tiers = Parsed("checkpoint_every", texts.checkpoint_tiers)
    mtbf = Parsed("checkpoint_every", texts.checkpoint_mtbf)

    keep: str = "3"
    """How many checkpoints are kept; by tier, like disk=3,s3=10."""
    kept_by_tier = Parsed("keep", texts.kept_by_tier)

    checkpoint_cost_s: Annotated[float, FINITE, Ge(0), SIMULATED] = 0.0
    """Engine seconds for which the server stands still at a checkpoint (sim only; on Ray it does not)."""

    on_divergence: Annotated[Literal["stop", "rollback"], LEARNED] = "stop"
    """What to do when the loss is no longer finite. rollback: go back to the last checkpoint in memory, and
    continue with half the step size."""

    init_from: str | None = None
    """Record whose weights the run starts from, like runs/NAME, or runs/NAME@VERSION for a checkpoint's.
    None: the seed's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_auto = None in self.checkpoint_tiers.values()
        rule = "auto needs the mean time between two losses of the driver; give it, like auto,mtbf=3600"
        require(not is_auto or self.mtbf is not None, "checkpoint-every", self.checkpoint_every, rule)
        rule = "mtbf is for auto; leave it out"
        require(is_auto or self.mtbf is None, "checkpoint-every", self.checkpoint_every, rule)

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for what cannot be in this run."""
        tiers, every = self.checkpoint_tiers, self.checkpoint_every
        is_measured = run.engine == "ray" or self.checkpoint_cost_s > 0
        rule = "auto needs the cost of a checkpoint in virtual seconds; give --checkpoint-cost-s"
        require(None not in tiers.values() or is_measured, "checkpoint-every", every, rule)
        rule = "the tier s3 is the bucket of the record; give --out s3://BUCKET/PREFIX too"
        require("s3" not in tiers or run.output.out.startswith("s3://"), "checkpoint-every", every, rule)
        rule = "the tier peer is another node's memory; choose --engine ray, or the tier disk"
        require("peer" not in tiers or run.engine == "ray", "checkpoint-every", every, rule)
