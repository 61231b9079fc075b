"""What a run measures, and what theory says of it: the numbers that labs ask for.

Each function takes a run that has ended, and returns both; theory is None where no closed form is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from dsgd.core import routing
from dsgd.core.time_laws import Constant
from dsgd.data import make_workload
from dsgd.running.predict.predictions import closed_forms, predict_seen
from dsgd.running.quick_run import QuickRun
from dsgd.teach.labs.controller import controller
from dsgd.theory import balancing
from dsgd.theory.assumptions import known
from dsgd.theory.exchanges import busiest_link_bytes
from dsgd.transforms.compress_options import Dgc

_VERSIONS = 40


class Value(NamedTuple):
    """A quantity of a run."""

    measured: float
    theory: float | None = None

    @property
    def known(self) -> list[float]:
        """What is measured and, where there is one, what theory says."""
        return [x for x in self if x is not None]


def shown(value: Value) -> str:
    """Return a quantity as a line of the check has it.

    >>> shown(Value(0.12345, 0.125)), shown(Value(1234567.0))
    ('measured 0.1235, theory 0.125', 'measured 1.235e+06')
    """
    said = "" if value.theory is None else f", theory {value.theory:.4g}"
    return f"measured {value.measured:.4g}{said}"


def _said(run: QuickRun) -> Mapping[str, float]:
    """Return what theory says about a run whose members came and went."""
    return predict_seen(run.cfg, run.cluster.faults_seen, run.tally.updates)


def seconds_an_update(run: QuickRun) -> Value:
    """Return the virtual seconds from one update to the next, on average."""
    return Value(run.s_per_update, _said(run).get("s_per_update"))


def gradients_per_s(run: QuickRun) -> Value:
    """Return the mini-batches that are applied in a virtual second."""
    gradients = run.tally.gradients / run.tally.updates
    s_per_update = _said(run).get("s_per_update")
    return Value(
        run.tally.gradients / run.tally.last_update_s, gradients / s_per_update if s_per_update else None
    )


def gradients_per_s_of_a_link(run: QuickRun) -> Value:
    """Return the same for LocalSGD with constant times on a link: P H / (H X + (P + 1) T).

    X: seconds of a mini-batch, T: seconds of a message on the server's link. The messages leave one after
    another, so the results come back one after another, and the round lasts for P + 1 messages.
    """
    cfg: Any = run.cfg
    timing, law = cfg.timing, cfg.timing.compute_law
    if not (hasattr(cfg, "local_steps") and isinstance(law, Constant) and timing.server_bytes_per_s):
        raise ValueError("gradients_per_s_of_a_link needs local_steps, constant times and server_bytes_per_s")
    p, h = cfg.num_workers, cfg.local_steps
    message_s = run.dones[0].bytes_to_worker / timing.server_bytes_per_s
    said = p * h / (h * law.seconds + (p + 1) * message_s)
    return Value(run.tally.gradients / run.tally.last_update_s, said)


def busy_share(run: QuickRun, *, worker: int) -> Value:
    """Return the share of its time that a worker computes, 0 to 1; for SSGD, its time over the slowest's."""
    entry = run.tally.summary(run.cluster)["workers"][str(worker)]
    mean_s = run.cfg.timing.compute_law.mean_s * run.cfg.timing.slowdowns.get(worker, 1)
    s_per_update = _said(run).get("s_per_update") if run.cfg.mode == "ssgd" else None
    return Value(entry["busy_s"] / run.tally.last_update_s, mean_s / s_per_update if s_per_update else None)


def mean_staleness(run: QuickRun) -> Value:
    """Return the updates between reading and applying, on average over all gradients."""
    return Value(run.tally.staleness_mean, _said(run).get("staleness_mean"))


def share_fresh(run: QuickRun) -> Value:
    """Return the share of gradients with staleness 0, 0 to 1."""
    counts = run.tally.staleness_counts
    return Value(counts.get(0, 0) / sum(counts.values()), _said(run).get("staleness_p0"))


def mean_staleness_of(run: QuickRun, *, worker: int) -> Value:
    """Return a worker's own mean staleness."""
    measured = run.tally.summary(run.cluster)["staleness"]["by_worker"][str(worker)]
    said = known(closed_forms(run.cfg).staleness_by_worker)
    return Value(measured, None if said is None else float(said[worker]))


def largest_staleness(run: QuickRun) -> Value:
    """Return the largest staleness of a gradient; in theory, what none exceeds."""
    return Value(float(max(run.tally.staleness_counts)), _said(run).get("staleness_max"))


def largest_clock_gap(run: QuickRun) -> Value:
    """Return fastest minus slowest clock, at most; in theory, what it never exceeds."""
    return Value(float(run.tally.clock_gap_max), _said(run).get("clock_gap_max"))


def seconds(run: QuickRun) -> Value:
    """Return the virtual seconds of the whole run."""
    return Value(run.tally.last_update_s, known(closed_forms(run.cfg).run_s))


def seconds_a_step(run: QuickRun) -> Value:
    """Return the same for each of a worker's steps."""
    whole, steps = seconds(run), run.cfg.steps
    return Value(whole.measured / steps, None if whole.theory is None else whole.theory / steps)


def final_weight(run: QuickRun) -> Value:
    """Return the weight of a quadratic after the last update; in theory, the fixed point."""
    if run.cfg.data.dataset != "quadratic":
        raise ValueError(f"final_weight needs workload quadratic, not {run.cfg.data.workload}")
    return Value(float(run.w[0]), known(closed_forms(run.cfg).final_weight))


def distance(run: QuickRun, *, to: float) -> Value:
    """Return the distance of that weight to a point; in theory, of the fixed point."""
    weight = final_weight(run)
    return Value(abs(weight.measured - to), None if weight.theory is None else abs(weight.theory - to))


def kilobytes_an_update(run: QuickRun) -> Value:
    """Return the kB that go to the workers and come back for an update.

    In theory, for SSGD: 4 D bytes to each worker, and from each the same, or what its codec makes of that.
    """
    said = None
    if run.cfg.mode == "ssgd" and run.cfg.compression.weights is None:
        said = run.cfg.num_workers * (run.w.nbytes + _bytes_of_gradient(run)) / 1000
    return Value(run.cluster.traffic.total / run.tally.updates / 1000, said)


def _bytes_of_gradient(run: QuickRun) -> int:
    """Return the bytes of a gradient on its way to the server, by the formula of its codec."""
    codec = run.cfg.compression.results
    if isinstance(codec, Dgc):
        raise ValueError("the bytes of dgc have no formula: its share changes; choose another codec")
    return run.w.nbytes if codec is None else codec.num_bytes(len(run.w))


def seconds_a_round_on_a_link(run: QuickRun) -> Value:
    """Return the seconds from one update to the next for SSGD with constant times on the server's link.

    In theory X + (P n + m)/C: X seconds of a mini-batch; n and m bytes of the weights on their way to a
    worker and of its gradient; C bytes/s. The messages leave one after another, and the last worker's
    gradient comes in last. The first update is left out: its weights are whole, also where later ones are
    compressed.
    """
    cfg, timing, law = run.cfg, run.cfg.timing, run.cfg.timing.compute_law
    if not (cfg.mode == "ssgd" and isinstance(law, Constant) and timing.server_bytes_per_s < math.inf):
        raise ValueError("seconds_a_round_on_a_link needs mode ssgd, constant times and server_bytes_per_s")
    down = cfg.compression.weights
    to_worker = run.w.nbytes if down is None else down.num_bytes(len(run.w))
    to_send = cfg.num_workers * to_worker + _bytes_of_gradient(run)
    first, last = run.updates[0].finished_s, run.updates[-1].finished_s
    said = law.seconds + to_send / timing.server_bytes_per_s
    return Value((last - first) / (len(run.updates) - 1), said)


def megabytes_of_a_worker(run: QuickRun) -> Value:
    """Return the MB that a worker sends for an update, the mean over workers; what is fetched to evaluate is
    left out.

    In theory, for SSGD: the padded vector to the server, or 2 (P - 1)/P of it in an all-reduce.
    """
    cfg, size = run.cfg, run.w.nbytes + run.cfg.timing.padding_bytes
    said = None
    if cfg.mode == "ssgd" and cfg.compression.results is None:
        all_reduces = cfg.network.parsed_topology.all_reduces
        said = busiest_link_bytes(cfg.num_workers, size) if all_reduces else float(size)
    sent = run.cluster.traffic.by_direction
    measured = (sent["to_server"] + sent["between_workers"]) / cfg.num_workers / run.tally.updates
    return Value(measured / 1e6, None if said is None else said / 1e6)


def max_violation(run: QuickRun) -> Value:
    """Return MaxVio of one version, the mean over those of the run's second half, on held-out tokens.

    In theory, of a router alone that begins even: of biases at rest, as so many tokens show them.
    """
    loads = _loads(run)
    own = controller(run.cfg)
    tokens = make_workload(run.cfg).about["test"]["samples"]
    said = own.max_violation(tokens) if own and own.begins_even and own.settles else None
    return Value(fmean(map(routing.max_violation, loads)), said)


def max_violation_together(run: QuickRun) -> Value:
    """Return MaxVio of the loads of these versions added up."""
    layers = zip(*_loads(run), strict=True)
    added = tuple(tuple(np.mean(layer, axis=0).tolist()) for layer in layers)
    return Value(routing.max_violation(added))


def max_violation_seen(run: QuickRun) -> Value:
    """Return MaxVio of a worker's mini-batch, the mean over those of the run's second half.

    In theory, of a router alone that begins even: of biases at rest, as so many tokens show them.
    """
    objective, half = make_workload(run.cfg).objective, len(run.updates) // 2
    seen = [objective.loads_in(done.value) for update in run.updates[half:] for done in update.dones]
    own = controller(run.cfg)
    said = own.max_violation(run.cfg.batch_size) if own and own.begins_even and own.settles else None
    return Value(fmean(routing.max_violation(_experts(load, "max_violation_seen")) for load in seen), said)


def updates_a_swing(run: QuickRun) -> Value:
    """Return the updates from one swing of a router's biases to the next, in the run's second half.

    In theory, of rates that are not stable, but nearly: 2 (2 tau + 1).
    """
    own = controller(run.cfg)
    if own is None:
        raise ValueError("updates_a_swing needs workload router, and ssgd or asgd with constant times")
    later = [update.weights.vector for update in run.updates[len(run.updates) // 2 :]]
    measured = fmean(balancing.measured_swing(bias) for bias in np.array(later).T)
    return Value(measured, None if own.settles else float(balancing.updates_a_swing(own.delay)))


def _loads(run: QuickRun) -> list[routing.Loads]:
    """Return the loads of versions in a run's second half, of 40 or a few more, on held-out tokens."""
    workload, half = make_workload(run.cfg), len(run.updates) // 2
    found = []
    for update in run.updates[half :: max(1, half // _VERSIONS)]:
        evaluation = workload.evaluate(update.weights.vector)
        found.append(_experts(evaluation and evaluation.experts and evaluation.experts.load, "max_violation"))
    return found


def _experts(load: routing.Loads | None, quantity: str) -> routing.Loads:
    if load is None:
        raise ValueError(f"{quantity} needs a mixture of experts, like workload router or moe")
    return load


def held_out_loss(run: QuickRun) -> Value:
    """Return the loss on held-out data after the last update; infinite if it is no number."""
    return Value(run.eval_loss if math.isfinite(run.eval_loss) else math.inf)


def seconds_to_loss(run: QuickRun, *, loss: float) -> Value:
    """Return the virtual seconds until the loss on held-out data is so low; infinite if it never is."""
    step = run.cfg.num_workers
    reached = _first_with(run, loss, range(step - 1, len(run.updates), step))
    return Value(math.inf if reached is None else run.updates[reached].finished_s)


def megabytes_to_loss(run: QuickRun, *, loss: float) -> Value:
    """Return the MB that were sent, both ways, until the loss on held-out data is so low.

    Infinite if it never is. Only for modes that wait for all workers: no message is on its way at an update.
    """
    reached = _first_with(run, loss, range(len(run.updates)))
    if reached is None:
        return Value(math.inf)
    dones = [done for update in run.updates[: reached + 1] for done in update.dones]
    return Value(sum(done.bytes_to_worker + done.bytes_to_server for done in dones) / 1e6)


def _first_with(run: QuickRun, loss: float, updates: Iterable[int]) -> int | None:
    """Return the first of some updates whose loss on held-out data is so low; None if there is none."""
    workload = make_workload(run.cfg)
    for number in updates:
        evaluation = workload.evaluate(run.updates[number].weights.vector)
        if evaluation is None:
            raise ValueError(f"a loss of {loss:g} needs a workload that has one, not {run.cfg.data.workload}")
        if evaluation.loss <= loss:
            return number
    return None
