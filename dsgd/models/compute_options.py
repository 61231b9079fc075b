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

    precision: Annotated[Literal["float32", "bf16"], OF_MODULE] = "float32"
    """bf16: the loss is computed under torch's autocast, in bfloat16 where that is safe. Weights, gradients
    and evaluations are float32."""

    accumulate: Annotated[int, Ge(1), OF_MODULE] = 1
    """Parts of a mini-batch that are computed one after another, so that less memory is needed; the gradient
    is that of the whole mini-batch, unless something looks across its samples: a note says by how much."""

    compile: Annotated[bool, OF_MODULE] = False
    """Compile the loss with torch.compile before the run begins; needs a C++ compiler on a CPU."""

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for what cannot be in this run."""
        size = run.batch_size
        require(
            self.accumulate <= size, "accumulate", self.accumulate, f"must be at most --batch-size {size}"
        )
