"""Effects of what is not sent on the iterates, on quadratics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from dsgd.theory.compressed_gradients import (
    largest_stable_random_k_step,
    random_k_with_feedback,
    unbiased_random_k_decay,
)
from gate.row import Row, exactly, quadratic


def rows() -> Iterator[Row]:
    """Yield three rows a share of random-k."""
    for share in (0.5, 0.25, 0.1):
        yield Row(
            f"random-k scaled, k/D {share:g}, step .1: mean square after 5 steps, first 1",
            "((1 - lr a)^2 + (lr a)^2 (D/k - 1))^t",
            unbiased_random_k_decay(0.1, 1.0, share) ** 5,
            partial(_mean_square, f"randk:{share},scaled", 0.1, 5),
        )
        yield exactly(
            f"random-k scaled, k/D {share:g}, step 2 k/D: mean square after 100 steps, first 1",
            "1: the largest stable step",
            1.0,
            partial(_mean_square, f"randk:{share},scaled", largest_stable_random_k_step(share), 100),
        )
        yield Row(
            f"random-k, error feedback, k/D {share:g}, step .05: mean square after 30 steps, first 1",
            "a 3 x 3 matrix of (E x^2, E xe, E e^2)",
            random_k_with_feedback(0.05, 1.0, share, 30),
            partial(_mean_square, f"randk:{share}", 0.05, 30),
        )


def _mean_square(compress: str, lr: float, steps: int, seed: int) -> float:
    """Return the mean square of the weights, of which the first are 1, after so many steps of one worker."""
    return float(np.mean(quadratic("ssgd", 1, steps, seed, lr=lr, dim=1000, compress=compress).w ** 2))
