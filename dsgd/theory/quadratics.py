"""Optimization of a quadratic, curvature (w - w*)^2 / 2: stability, noise floors and fixed points."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dsgd.theory.assumptions import need, need_whole


def largest_stable_step(delay: int, momentum: float = 0.0) -> float:
    """Return the lr * curvature below which w_{t+1} = w_t - lr curvature w_{t-tau} is stable, tau = `delay`.

    2 sin(pi / (2 (2 tau + 1))), tau constant, in updates; a random staleness of that mean is another case.
    Source: Levin & May 1976, "A note on difference-delay equations".

    With heavy-ball momentum m, w_{t+1} = w_t + m (w_t - w_{t-1}) - lr curvature w_{t-tau}. The roots of
    z^(tau-1) (z - 1)(z - m) = -a reach the unit circle at z = exp(i phi), where
    (tau - 1/2) phi + arg(z - m) = pi/2; there a = 2 sin(phi/2) |z - m|. Without delay that is 2 (1 + m).
    Source: algebra; for tau = 0 Polyak 1964, "Some methods of speeding up the convergence".

    >>> round(largest_stable_step(1), 12), largest_stable_step(0, 0.5), round(largest_stable_step(3, 0.5), 4)
    (1.0, 3.0, 0.1993)
    """
    need_whole("delay", delay, at_least=0)
    need(0 <= momentum < 1, f"momentum must be at least 0 and below 1, not {momentum}")
    if delay == 0:
        return 2 * (1 + momentum)
    if momentum == 0:
        return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))

    def beyond(phi: float) -> bool:
        angle = math.atan2(math.sin(phi), math.cos(phi) - momentum)
        return (delay - 0.5) * phi + angle > math.pi / 2

    low, high = 0.0, math.pi
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return 2 * math.sin(low / 2) * math.hypot(math.cos(low) - momentum, math.sin(low))


def noise_floor(
    lr: float, curvature: float, noise_variance: float, *, num_workers: int = 1, delay: int = 0
) -> float:
    """Return the stationary E[(w - w*)^2] per coordinate of SGD with a constant step and a constant delay.

    w_{t+1} = w_t - lr (curvature (w_{t-tau} - w*) + noise), tau = `delay`; the noise is independent between
    steps, with mean 0 and variance sigma^2/P: P gradients of variance sigma^2 = `noise_variance` averaged.
    It is the second moment of the iterate itself, not of its average over time; the mean excess loss is
    curvature/2 times it. SSGD is tau = 0: lr sigma^2 / (P curvature (2 - lr curvature)).
    In general, with a = lr curvature, phi = 2 arcsin(a/2), beta = (tau + 1/2) phi: the autocovariances obey
    g_k - g_{k-1} = -a g_{tau+1-k} (Yule-Walker), so g_k = C cos(phi k + pi/4 - beta/2), and

        g_0 = lr^2 sigma^2 / P * (1 + sin beta) / (2 sin phi cos beta),    infinite at `largest_stable_step`.

    Source: algebra; in continuous time Kuechler & Mensch 1992, "Langevins stochastic differential equation
    extended by a time-delayed term".

    >>> [round(noise_floor(0.1, 1.0, 1.0, delay=tau), 5) for tau in (0, 1, 3, 7)]
    [0.05263, 0.0582, 0.07158, 0.11511]
    """
    need_whole("num_workers", num_workers)
    need(noise_variance >= 0, f"noise_variance must be at least 0, not {noise_variance}")
    step = _step(lr, curvature)
    need(step < largest_stable_step(delay), f"lr * curvature = {step:g} is not stable with delay {delay}")
    phi = 2 * math.asin(step / 2)
    beta = (delay + 0.5) * phi
    return lr**2 * noise_variance / num_workers * (1 + math.sin(beta)) / (2 * math.sin(phi) * math.cos(beta))


def momentum_from_asynchrony(num_workers: int) -> float:
    """Return the implicit momentum of ASGD with M = `num_workers` equal exponential workers, 1 - 1/M.

    The mean iterate moves as under heavy-ball momentum 1 - 1/M with step lr/M, since staleness is geometric.
    Source: Mitliagkas et al. 2016 (arXiv 1605.09774).

    >>> momentum_from_asynchrony(4)
    0.75
    """
    need_whole("num_workers", num_workers)
    return 1 - 1 / num_workers


def local_sgd_fixed_point(
    lr: float, curvatures: Sequence[float], optima: Sequence[float], local_steps: float
) -> float:
    """Return where LocalSGD without noise ends: sum_i q_i x_i / sum_i q_i, q_i = 1 - (1 - lr a_i)^H.

    Worker i has the loss a_i (w - x_i)^2 / 2, a_i in `curvatures`, x_i in `optima`, and takes H =
    `local_steps` (inf: the limit) plain steps, 0 < lr a_i < 2; H = 1 gives the optimum of the mean loss.
    Source: algebra, the mean of x_i + (1 - lr a_i)^H (w - x_i); Malinovsky et al. 2020 (arXiv 2004.01442).

    >>> round(local_sgd_fixed_point(0.1, [1.0, 5.0], [0.0, 1.0], 1), 4)
    0.8333
    """
    need(len(curvatures) == len(optima) > 0, "give one curvature and one optimum for each worker")
    whole = local_steps >= 1 and (local_steps == math.inf or local_steps == int(local_steps))
    need(whole, f"local_steps must be a whole number of at least 1, or inf, not {local_steps}")
    steps = np.array([_step(lr, a) for a in curvatures])
    need(bool(np.all(steps < 2)), "lr * curvature must be below 2 on each worker")
    q = 1 - (1 - steps) ** local_steps
    return float(q @ np.asarray(optima) / q.sum())


def easgd_largest_stable_alpha(lr_curvature: float) -> float:
    """Return the largest stable alpha of round-robin EASGD, (4 - 2 eta)/(4 - eta), eta = `lr_curvature`.

    0 <= eta <= 2 and 0 <= alpha <= it keep iterates bounded for any number of workers. For one worker the
    condition is also necessary; a round of several may be stable a little beyond it (eta = 1, P = 2: the
    spectral radius is .97 at 1.03 times this alpha).
    Source: Zhang, Choromanska & LeCun 2015 (NIPS 28; arXiv 1412.6651).

    >>> easgd_largest_stable_alpha(1.0) == 2 / 3
    True
    """
    need(0 <= lr_curvature <= 2, "no alpha is stable unless lr * curvature lies in [0, 2]")
    return (4 - 2 * lr_curvature) / (4 - lr_curvature)


def easgd_decay(lr_curvature: float, alpha: float, num_workers: int) -> float:
    """Return the factor by which synchronous EASGD's centre nears the optimum in an update, with H = 1.

    Of equal quadratics without noise, in the long run: the spectral radius of the map of the workers' mean
    and the centre, ((1 - eta - alpha, alpha), (P alpha, 1 - P alpha)), eta = `lr_curvature`. For small eta
    it is 1 - eta P/(P + 1): the centre has the mass of a worker, but feels no gradient.
    Source: the recursion of Zhang, Choromanska & LeCun 2015 (arXiv 1412.6651), equations 2.3 and 2.4.

    >>> round(easgd_decay(0.001, 0.225, 4), 4)
    0.9992
    """
    need_whole("num_workers", num_workers)
    need(lr_curvature >= 0, "lr * curvature must be at least 0")
    need(0 < alpha <= 1, "alpha must lie in (0, 1]")
    pulled = num_workers * alpha
    return float(np.abs(np.linalg.eigvals([[1 - lr_curvature - alpha, alpha], [pulled, 1 - pulled]])).max())


def _step(lr: float, curvature: float) -> float:
    need(lr > 0 and curvature > 0, f"lr and curvature must be above 0, not {lr} and {curvature}")
    return lr * curvature
