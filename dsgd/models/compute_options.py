"""How the gradient of a module is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge

from dsgd.core.option_effects import OF_MODULE
from dsgd.core.option_rules import Checked, require


@dataclass(frozen=True, kw_only=True)
class ComputeConfig(Checked):
    """How the gradient of a workload's module is computed (--workload)."""

    precision: Annotated[Literal["float32", "bf16", "fp16"], OF_MODULE] = "float32"
    """bf16: the loss is computed under torch's autocast, in bfloat16 where that is safe. Weights, gradients
    and evaluations are float32. fp16: in float16, with torch's loss scaler; a gradient that overflows is left
    out, and counted."""

    accumulate: Annotated[int, Ge(1), OF_MODULE] = 1
    """Parts of a mini-batch that are computed one after another, so that less memory is needed; the gradient
    is that of the whole mini-batch, unless something looks across its samples: a note says by how much."""

    compile: Annotated[bool, OF_MODULE] = False
    """Compile the loss with torch.compile before the run begins; needs a C++ compiler on a CPU."""

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for what cannot be in this run."""
        size = run.batch_size
        alone = self.precision != "fp16" or run.group.ranks_per_worker == 1
        rule = "ranks would have to agree on the scale of their losses; give bf16, or --ranks-per-worker 1"
        require(alone, "precision", self.precision, rule)
        require(
            self.accumulate <= size, "accumulate", self.accumulate, f"must be at most --batch-size {size}"
        )
