"""The server as a queue: the effect of a service time for each push on ASGD.

P = `num_workers` workers, S the mean service time, Z = E[compute] + 2 latency the time between a worker's
update and its next push. Long-run values.
"""

from __future__ import annotations

import math

from dsgd.core.time_laws import Law
from dsgd.theory.assumptions import need, need_whole
from dsgd.theory.laws_of_times import exponential_mean_s, per_s, plain_law


def server_updates_per_s(compute: Law, service: Law, num_workers: int, latency_s: float = 0.0) -> float:
    """Return ASGD's updates per second where the server takes a time of law `service` for each push.

    The closed machine-repair queue M/M/1//P: (1 - p0)/S with 1/p0 = sum_k P!/(P-k)! (S/Z)^k, S the mean
    service time, Z = E[compute] + 2 latency. As p0 is Erlang's loss formula B(P, Z/S), its recursion is used.
    Equal workers, first come, first served, exponential service (any for P = 1); the law of compute times
    matters by its mean only. Source: Kleinrock 1975, "Queueing systems" I, section 3.8; for the insensitivity
    Baskett, Chandy, Muntz & Palacios 1975, "Open, closed, and mixed networks of queues".

    >>> from dsgd.core.time_laws import Exponential
    >>> round(server_updates_per_s(Exponential(1.0), Exponential(0.1), 8), 3)
    6.617
    """
    need_whole("num_workers", num_workers)
    think_s, service_s = _think_s(compute, latency_s), plain_law(service).mean_s
    need(0 < service_s < math.inf, "the mean service time must be above 0 and finite")
    if num_workers == 1 or think_s == math.inf:
        return per_s(think_s + service_s)
    exponential_mean_s(service, "the rate of a server with more than one worker")
    busy = 0.0
    for n in range(1, num_workers + 1):
        busy = _busy_share(n, busy, think_s / service_s)
    return busy / service_s


def server_updates_per_s_bound(compute: Law, service: Law, num_workers: int, latency_s: float = 0.0) -> float:
    """Return a bound that ASGD's updates per second at a server never pass: min(1/S, P/(Z + S)), any laws.

    Symbols as in `server_updates_per_s`. Source: Denning & Buzen 1978, "The operational analysis of queueing
    network models".

    >>> from dsgd.core.time_laws import Constant
    >>> server_updates_per_s_bound(Constant(1.0), Constant(0.25), 8)
    4.0
    """
    need_whole("num_workers", num_workers)
    think_s, service_s = _think_s(compute, latency_s), plain_law(service).mean_s
    return min(per_s(service_s), num_workers * per_s(think_s + service_s))


def workers_to_fill_server(compute: Law, service: Law, share: float, latency_s: float = 0.0) -> int:
    """Return the smallest P with which ASGD reaches `share`, in (0, 1), of its server's top rate 1/S.

    The smallest P with 1 - p0 >= share in the machine-repair queue of `server_updates_per_s`, and under its
    assumptions: exponential service; the law of compute times matters by its mean only.

    >>> from dsgd.core.time_laws import Exponential
    >>> workers_to_fill_server(Exponential(1.0), Exponential(0.1), 0.9)
    13
    """
    need(0 < share < 1, f"share must lie strictly between 0 and 1, not {share}")
    service_s = exponential_mean_s(service, "the number of workers that fill a server")
    think_s = _think_s(compute, latency_s)
    need(think_s < math.inf, "compute times without a mean fill no server")
    workers, busy = 0, 0.0
    while busy < share:
        workers += 1
        busy = _busy_share(workers, busy, think_s / service_s)
    return workers


def _busy_share(workers: int, with_one_less: float, think_per_service: float) -> float:
    """Return 1 - B(n, a) from 1 - B(n-1, a), B Erlang's loss formula: n / (n + a B(n-1, a))."""
    return workers / (workers + think_per_service * (1 - with_one_less))


def _think_s(compute: Law, latency_s: float) -> float:
    need(0 <= latency_s < math.inf, f"latency_s must be at least 0 and finite, not {latency_s}")
    return plain_law(compute).mean_s + 2 * latency_s
