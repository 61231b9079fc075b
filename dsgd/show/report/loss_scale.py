"""In which unit losses on held-out data are shown: as they are or, of language models, in bits a byte."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dsgd.records.reader import Record
from dsgd.records.schema import LastEvaluation, RecordedEvaluation

_YARDSTICKS = ("gzip", "xz")


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """A unit of losses, and the words for it."""

    noun: str = "loss"
    lowest: str = "lowest"
    in_bits: bool = False
    per_nat: float | None = 1.0
    """What a loss is multiplied by; None where that is not the same in all runs."""
    yardsticks: Mapping[str, float] = field(default_factory=dict)
    """By name, to how many bits a byte a program brings the same text."""

    def of(self, found: RecordedEvaluation | LastEvaluation) -> float | None:
        """Return an evaluation's loss in this unit; None if it is not finite."""
        return found.bits_per_byte if self.in_bits else found.loss

    def target(self, loss: float | None) -> float | None:
        """Return a target loss in this unit; None where runs have it at different heights."""
        return None if loss is None or self.per_nat is None else loss * self.per_nat


LOSS = LossScale()


def scale_of(records: Iterable[Record]) -> LossScale:
    """Return the scale on which these runs are compared: bits a byte if all are of language models."""
    abouts = [record.meta.workload for record in records]
    lengths = {float(about.get("bytes_per_token") or 0) for about in abouts}
    if not lengths or 0 in lengths:
        return LOSS
    yardsticks = {}
    for name in _YARDSTICKS:
        found = {about.get(f"{name}_bits_per_byte") for about in abouts}
        if len(found) == 1 and (bits := found.pop()) is not None:
            yardsticks[name] = float(bits)
    return LossScale(
        noun="bits a byte",
        lowest="fewest",
        in_bits=True,
        per_nat=1 / (math.log(2) * lengths.pop()) if len(lengths) == 1 else None,
        yardsticks=yardsticks,
    )
