"""How long to wait between two checkpoints."""

from __future__ import annotations

import math


def best_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between two checkpoints that finish a run soonest.

    cost_s: seconds that a checkpoint takes. mtbf_s: mean seconds between two losses. To first order it is
    sqrt(2 cost mtbf) (Young 1974); this is the higher-order estimate of Daly 2006, "A higher order estimate
    of the optimum checkpoint interval for restart dumps" (FGCS 22), equation 37.

    >>> round(best_interval_s(2, 600), 1), best_interval_s(10, 4)
    (47.7, 4)
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s
