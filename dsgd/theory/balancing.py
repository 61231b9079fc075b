"""The balancing bias of a mixture of experts as a controller: how fast it may move, and how even loads get.

A token has a score for each of E experts, and goes to the K with the largest score + bias. The bias moves
against the error of the shares of the load, which was measured tau updates before:

    b <- b - u (share(b_{t-tau}) - 1/E),    u = lr rate

(Wang et al. 2024, arXiv 2408.15664, have its sign in the place of the error itself.) That is delayed descent:
the expected error is the gradient of E[sum of the K largest of scores + b]/K - mean(b), a convex function,
the dual of assigning tokens evenly (Han & Zhong 2025, arXiv 2512.03915). Near balance it has a curvature,
and quadratics.py says which u is stable. Source of all else here: algebra, in the docstrings.

Shapes: T tokens, E experts, K of them a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dsgd.core.time_laws import Floats, Normal
from dsgd.theory.assumptions import need, need_whole
from dsgd.theory.order_statistics import order_statistic_mean
from dsgd.theory.quadratics import largest_stable_step, noise_floor


def curvature(experts: int, top_k: int, density: float = 1.0) -> float:
    """Return the slope of the shares of the load by the bias at balance: density E / (K (E - 1)).

    Scores are independent and alike for all experts, up to a constant for each, which the bias takes away.
    density: of a score at the threshold, the K-th largest of the E - 1 others (`density_at_threshold`); 1 for
    scores that are uniform on [0, 1].

    Experts i and j change places where they tie there: dP_i/db_j = -c, with P_i the chance to be chosen and

        c = integral f(x)^2 C(E-2, K-1) (1 - F(x))^(K-1) F(x)^(E-1-K) dx = density / (E - 1).

    A shift of all biases changes nothing, so dP_i/db_i = (E - 1) c, and all other directions have the same
    slope E c; the share is P_i / K.

    >>> round(curvature(8, 2), 4)
    0.5714
    """
    _need_experts(experts, top_k)
    need(density > 0, f"density must be above 0, not {density}")
    return density * experts / (top_k * (experts - 1))


def density_at_threshold(density: Callable[[Floats], Floats], experts: int, top_k: int) -> float:
    """Return the mean density of a score at the K-th largest of E - 1 others.

    density: f(Q(q)), that of a score where its distribution function is q (n,); q then has the law
    Beta(E - K, K). By Gauss and Jacobi's quadrature.

    Scores of Gumbel's law, of which the largest is chosen, make shares that are the softmax of the biases;
    their curvature at balance is 1/E:

    >>> gumbel = density_at_threshold(lambda q: -q * np.log(q), 8, 1)
    >>> round(8 * curvature(8, 1, gumbel), 6)
    1.0
    """
    from scipy.special import roots_jacobi

    _need_experts(experts, top_k)
    x, weights = roots_jacobi(200, top_k - 1, experts - top_k - 1)
    return float(weights @ density((1 + x) / 2) / weights.sum())


def density_of_sigmoid(q: Floats, spread: float = 1.0) -> Floats:
    """Return f(Q(q)) of a score that is the sigmoid of a normal logit with standard deviation `spread`.

    >>> round(density_at_threshold(density_of_sigmoid, 8, 2), 3)
    1.313
    """
    from scipy.special import expit, ndtri

    z = ndtri(q)
    score = expit(spread * z)
    slope = spread * score * (1 - score)
    return np.asarray(np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) / slope)


def curvatures_of_scores(scores: Floats, top_k: int, gap: float) -> Floats:
    """Return the curvatures (E,) by direction, ascending, at the scores (T, E) of some tokens, bias included.

    Whatever the scores' law, the slope of the shares is the Laplacian of a graph, divided by K: the edge
    between i and j is the density with which they tie at the threshold. It is estimated from tokens whose
    K-th and next scores lie less than `gap` apart: few if that is small, and biased if it is not. The first
    curvature is 0, of a shift of all biases; the last decides which step is stable.

    >>> scores = np.random.default_rng(0).random((100_000, 4))
    >>> bool(abs(curvatures_of_scores(scores, 2, gap=0.02)[1:] / curvature(4, 2) - 1).max() < 0.1)
    True
    """
    tokens, experts = scores.shape
    _need_experts(experts, top_k)
    need(gap > 0, f"gap must be above 0, not {gap}")
    order = np.argsort(-scores, axis=1)[:, top_k - 1 : top_k + 1]
    ends = np.take_along_axis(scores, order, axis=1)
    tie = order[ends[:, 0] - ends[:, 1] < gap]
    edges = np.zeros((experts, experts))
    np.add.at(edges, (tie[:, 0], tie[:, 1]), 1 / (2 * gap * tokens * top_k))
    edges += edges.T
    return np.asarray(np.linalg.eigvalsh(np.diag(edges.sum(axis=1)) - edges), np.float64)


def expected_shares(bias: Floats, top_k: int) -> Floats:
    """Return the mean shares of the load (E,) at biases (E,), of scores that are uniform on [0, 1].

    Expert i is chosen where at most K - 1 of the others are above its score + bias x. That is an integral
    over x of polynomials between the b_j and b_j + 1, by Gauss and Legendre's quadrature, which is exact.

    >>> expected_shares(np.array([0.0, 0.5]), 1).round(6).tolist()  # the first wins with 1/8
    [0.125, 0.875]
    """
    experts = len(bias)
    _need_experts(experts, top_k)
    ends = np.unique([bias, bias + 1])
    nodes, weights = np.polynomial.legendre.leggauss((experts + 1) // 2)
    half = np.diff(ends)[:, None] / 2
    x = (ends[:-1, None] + half + half * nodes).ravel()  # (N,)
    above = np.clip(bias[:, None] + 1 - x, 0, 1)  # (E, N), the chance that an expert's is above x
    inside = (bias[:, None] <= x) & (x <= bias[:, None] + 1)
    others = np.zeros((top_k, experts, len(x)))  # [k, i]: exactly k of the experts but i are above x
    others[0] = 1
    for j in range(experts):
        q = np.repeat(above[j][None], experts, axis=0)
        q[j] = 0
        fewer = others[:-1] * q
        others *= 1 - q
        others[1:] += fewer
    shares = (others.sum(axis=0) * inside) @ (half * weights).ravel() / top_k
    return np.asarray(shares)


def largest_stable_rate(lr: float, curvature: float, *, delay: int = 0, momentum: float = 0.0) -> float:
    """Return the rate below which the bias settles: `largest_stable_step` / (lr curvature).

    lr: of a gradient. SSGD has delay 0. ASGD of P equal workers has the delay P - 1, if times are constant,
    and needs a rate that is about P times smaller. Local steps have no delay: a worker's bias answers to its
    own loads, so H of them multiply the error by (1 - lr rate curvature)^H, and the limit is that of SSGD for
    any H. (Where the workers' tokens differ, each is drawn to its own balance, and the mean of their
    biases balances no worker's.)

    >>> [round(largest_stable_rate(0.1, curvature(8, 2), delay=tau), 2) for tau in (0, 3, 7)]
    [35.0, 7.79, 3.66]
    """
    need(lr > 0 and curvature > 0, f"lr and curvature must be above 0, not {lr} and {curvature}")
    return largest_stable_step(delay, momentum) / (lr * curvature)


def updates_a_swing(delay: int) -> int:
    """Return the updates from one swing of the bias to the next, just above the largest stable rate.

    There the recursion has a root exp(i phi), phi = pi/(2 tau + 1) (`largest_stable_step`), so tokens go to
    an expert and come back in 2 (2 tau + 1) updates: without delay every other one.

    >>> [updates_a_swing(tau) for tau in (0, 3, 7)]
    [2, 14, 30]
    """
    need_whole("delay", delay, at_least=0)
    return 2 * (2 * delay + 1)


def measured_swing(bias: Floats) -> float:
    """Return the mean updates from one rise of a bias (n,) above its mean to the next; NaN if it rises once.

    >>> measured_swing(np.cos(np.arange(100) / 10 * math.tau + 0.1))
    10.0
    """
    above = bias > bias.mean()
    (rises,) = np.nonzero(above[1:] & ~above[:-1])
    return float(np.diff(rises).mean()) if len(rises) > 1 else math.nan


def share_noise(experts: int, top_k: int, tokens: int) -> float:
    """Return the variance of an expert's share of the load of T tokens at balance: (E - K) / (E^2 K T).

    An expert is one of a token's K with probability K/E, each token by itself.

    >>> share_noise(8, 2, 256) ** 0.5 < 1 / 8
    True
    """
    _need_experts(experts, top_k)
    need_whole("tokens", tokens)
    return (experts - top_k) / (experts**2 * top_k * tokens)


def bias_variance(
    step: float, curvature: float, experts: int, top_k: int, tokens: int, *, delay: int = 0
) -> float:
    """Return the stationary variance of an expert's bias: `noise_floor` with the noise of the shares.

    step: lr rate. tokens: of an update. The errors of the experts' shares add up to 0, and so do the biases;
    all such directions have the same curvature and noise.

    >>> round(bias_variance(0.35, curvature(8, 2), 8, 2, 256, delay=0), 8)
    6.231e-05
    """
    return noise_floor(step, curvature, share_noise(experts, top_k, tokens), delay=delay)


def max_violation(experts: int, share_variance: float) -> float:
    """Return the mean MaxVio, largest load over mean load less 1, where shares have this variance.

    For nearly normal shares, which add up to 1: E sqrt(variance E/(E - 1)) times the mean of the largest of E
    standard normal numbers. Of one version at rest the variance is curvature^2 `bias_variance`; seen on a
    mini-batch, `share_noise` comes on top, so that even a router in balance has a MaxVio above 0.
    Source of MaxVio: Wang et al. 2024 (arXiv 2408.15664).

    >>> round(max_violation(8, share_noise(8, 2, 256)), 2)
    0.16
    """
    need_whole("experts", experts, at_least=2)
    need(share_variance >= 0, f"share_variance must be at least 0, not {share_variance}")
    far = 20.0  # the law of times is cut at 0
    largest = order_statistic_mean(Normal(far, 1.0), experts, experts) - far
    return experts * math.sqrt(share_variance * experts / (experts - 1)) * largest


def _need_experts(experts: int, top_k: int) -> None:
    need_whole("experts", experts, at_least=2)
    need_whole("top_k", top_k)
    need(top_k < experts, f"top_k must be below the number of experts, {experts}, not {top_k}")
