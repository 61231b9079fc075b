"""Which of the laws in tests/test_conformance.py concern a strategy, as its file declares them in `LAWS`.

    LAWS = Laws(plain_sgd={"momentum": 0.0}, limits=[Limit({"k": 1}, "asgd")])

Without `LAWS` all laws are held with the options' defaults, and no limiting case is tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Limit:
    """A limiting case: with `options`, on five workers, the strategy is `mode` with the options `others`.

    exactly: bit for bit; else up to rounding.
    """

    options: Options
    mode: str
    others: Options = field(default_factory=dict)
    exactly: bool = True

    def __str__(self) -> str:
        return " ".join([_text(self.options), "is", self.mode, _text(self.others)]).strip()


@dataclass(frozen=True, kw_only=True)
class Laws:
    """The options with which the laws hold, and the limiting cases."""

    plain_sgd: Options | None = field(default_factory=dict)
    """With these, P = 1 is plain SGD with `--momentum 0.9`, or with the momentum they say. None: it never is,
    because a step is not the gradient's, like a sign."""

    convex: Options = field(default_factory=dict)
    """With these, the strategy reaches the loss of plain SGD on a convex problem with as many samples."""

    limits: Sequence[Limit] = ()
    """The limiting cases in which the strategy is another one."""


def _text(options: Options) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())
