"""A curve of a run that goes on, in bounded memory."""

from __future__ import annotations

from typing import Any

MOST_POINTS = 256
"""Most points of a curve; beyond it neighbours are merged."""


class Curve:
    """Points that arrive one by one, thinned by averaging neighbours.

    A point is (t_s, gradients, value); merged points have the last t_s and gradients, and the
    mean of the values.
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, int, float | None]] = []
        self._stride, self._in_last = 1, 0

    def add(self, t_s: float, gradients: int, value: float | None) -> None:
        if 0 < self._in_last < self._stride:
            before = self.points.pop()[2]
            n = self._in_last
            value = None if value is None or before is None else before + (value - before) / (n + 1)
        else:
            if len(self.points) == MOST_POINTS:
                self._halve()
            self._in_last = 0
        self._in_last += 1
        self.points.append((t_s, gradients, value))

    def _halve(self) -> None:
        pairs = zip(self.points[::2], self.points[1::2], strict=True)
        self.points = [
            (t_s, gradients, None if a is None or b is None else (a + b) / 2)
            for (_, _, a), (t_s, gradients, b) in pairs
        ]
        self._stride *= 2

    def columns(self) -> dict[str, list[Any]]:
        """Return it as columns of rounded numbers."""
        return {
            "t_s": [rounded(t_s) for t_s, _, _ in self.points],
            "gradients": [gradients for _, gradients, _ in self.points],
            "value": [rounded(value) for _, _, value in self.points],
        }


def rounded(x: float | None) -> float | None:
    """Return a number as the page is sent it: six digits."""
    return None if x is None else float(f"{x:.6g}")
