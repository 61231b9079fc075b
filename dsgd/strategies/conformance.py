"""What a strategy claims: which laws of all strategies concern it, declared in its file as `LAWS`.

    LAWS = Laws(plain_sgd={"momentum": 0.0}, limits=[Limit({"k": 1}, "asgd")])

Without `LAWS` a strategy claims what the defaults say. The laws are in dsgd/conformance; `main.py
check train_mine.py` holds a file to them.
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
        return " ".join([as_text(self.options), "is", self.mode, as_text(self.others)]).strip()


@dataclass(frozen=True, kw_only=True)
class Laws:
    """Which laws concern a strategy, the options with which they hold, and its limiting cases.

    Where options are asked for, {} is the strategy as it is by default, and None claims nothing.
    """

    plain_sgd: Options | None = field(default_factory=dict)
    """With these, P = 1 is plain SGD with `--momentum 0.9`, or with the momentum they say. None: it never is,
    because a step is not the gradient's, like a sign."""

    convex: Options | None = field(default_factory=dict)
    """With these, the strategy reaches the loss of plain SGD on a convex problem with as many samples."""

    deterministic: Options | None = None
    """With these, the weights do not depend on which worker is faster, so both engines make the same.
    True of most strategies with a barrier; None where results are used in the order in which they come."""

    exact_budget: bool = True
    """Whether the mini-batches that are applied are exactly num_workers x steps. False: the last update may
    take more than are left, because each one takes a fixed number."""

    limits: Sequence[Limit] = ()
    """The limiting cases in which the strategy is another one."""

    variants: Sequence[Options] = field(default_factory=lambda: [{}])
    """Sets of options that run different code; the restart law is held with each, on four workers."""


def as_text(options: Options) -> str:
    """Return options in a line, like `k=1 rest=ignore`."""
    return " ".join(f"{name}={value}" for name, value in options.items())
