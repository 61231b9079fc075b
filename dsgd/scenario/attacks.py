"""What liars say: their lies as functions of what the workers have really computed.

A direction is a gradient, or what local steps have moved the weights by. The liars know each other, and the
directions of all results of an update, as the strongest adversary of the literature does; of those alone, as
nobody knows what has not come in. A lie is a function of these, the seed and the version, so it is the same
on every engine, in a replay and when a run goes on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from dsgd.core.rng import Purpose, generator
from dsgd.core.weights import Vector, mean

Name = Literal["signflip", "gaussian", "alie", "ipm", "mimic", "labelflip"]
"""Of labelflip the direction is honest, and the data are not: its gradients are of labels turned round."""
_SIZED = ("signflip", "gaussian", "alie", "ipm")


@dataclass(frozen=True)
class Attack:
    """How a worker lies; written NAME or NAME*SIZE.

    >>> str(Attack.parse("gaussian*10")), str(Attack.parse("mimic"))
    ('gaussian*10', 'mimic')
    """

    name: Name
    size: float | None = None
    """None: 1, and of alie what Baruch et al. choose."""

    @classmethod
    def parse(cls, text: str) -> Attack:
        """Return the attack that a text names; raises ValueError with the rule."""
        name, times, size = text.partition("*")
        if name not in get_args(Name) or (times and name not in _SIZED):
            sized = ", ".join(_SIZED)
            raise ValueError(f"a lie is {', '.join(get_args(Name))}; {sized} may have a size, as in ipm*0.5")
        if times and not (re.fullmatch(r"\d*\.?\d+(e-?\d+)?", size) and 0 < float(size) < math.inf):
            raise ValueError("the size of a lie must be a finite number above 0, as in gaussian*10")
        return cls(name, float(size) if times else None)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.name if self.size is None else f"{self.name}*{self.size:g}"

    def lie(self, own: Vector, honest: Sequence[Vector], liars: int, draw: tuple[int, int, int]) -> Vector:
        """Return what a liar sends instead of its `own` direction (D,).

        honest: the directions of those that do not lie, in worker order; where none has come in, those of the
        liars. liars: how many of the update's results are lies. draw: seed, worker, version.

        signflip: -size own. gaussian: size N(0, I). alie, "a little is enough": mean - z std of the honest, z
        the most that still has a majority's company (Baruch, Baruch and Goldberg 2019, arXiv 1902.06156,
        algorithm 3; the variance is over n, as in their code). ipm, inner product manipulation: -size mean
        (Xie, Koyejo and Gupta 2020, arXiv 1903.03936, section 4). mimic: the first honest worker's
        (Karimireddy, He and Jaggi 2022, arXiv 2006.09365, section 3.2, who choose the worker by the spread of
        what they have seen).
        """
        size = np.float32(1.0 if self.size is None else self.size)
        match self.name:
            case "signflip":
                return -size * own
            case "gaussian":
                seed, worker, version = draw
                rng = generator(seed, Purpose.LIE, worker, version)
                noise: Vector = size * rng.standard_normal(len(own), np.float32)
                return noise
            case "alie":
                z = np.float32(alie_z(len(honest) + liars, liars) if self.size is None else self.size)
                centre = mean(honest)
                squares = mean([(direction - centre) ** 2 for direction in honest])
                return (centre - z * np.sqrt(squares)).astype(np.float32, copy=False)
            case "ipm":
                return -size * mean(honest)
            case "mimic":
                return honest[0]
            case "labelflip":
                return own


def alie_z(n: int, liars: int) -> float:
    """Return by how many standard deviations liars among n can move off and still seem to be honest.

    With s = floor(n/2 + 1) - f honest workers farther out than they are, they have a majority's company: z
    with Phi(z) = (n - f - s)/(n - f). Baruch, Baruch and Goldberg 2019 (arXiv 1902.06156), algorithm 3.

    >>> round(alie_z(50, 12), 2)
    0.34
    """
    honest = max(1, n - liars)
    supporters = n // 2 + 1 - liars
    return NormalDist().inv_cdf(min(max((honest - supporters) / honest, 0.5), 0.9999))
