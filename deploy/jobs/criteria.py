"""What a test asks of a job's nodes: plain functions, as in checks.py, each with a value and a threshold.

Where a value cannot be known the answer is open, and says why; with a threshold of None it passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from deploy.jobs.checks import Answer, Question, State
from deploy.jobs.driver_reports import ScrapedRun
from deploy.jobs.evidence import Evidence
from deploy.jobs.node_usage import NodeUsage, mean_gpu_share, second_half


def group(seen: Evidence) -> Answer:
    """Ask whether all workers' processes, and their groups, were there in time."""
    limit_s = seen.criteria.group_formed_s
    known = {run.run_id: found for run in seen.runs.values() if (found := _formed_s(seen, run)) is not None}
    if not known:
        why = "the driver exports no dsgd_startup_seconds; is its image older?"
        return _not_known(limit_s, why if seen.runs else "no run was seen")
    slowest = max(known, key=lambda run_id: known[run_id])
    words = f"{known[slowest]:.1f} s in {slowest}"
    late = limit_s is not None and known[slowest] > limit_s
    state: State = "fail" if late else "pass" if len(known) >= len(seen.job.configs) else "open"
    return state, _with_limit(words, "at most", limit_s, "{:g} s")


def _formed_s(seen: Evidence, run: ScrapedRun) -> float | None:
    """Return seconds until a run's processes had found each other.

    Where workers exchange values among themselves, they do so with the first update.
    """
    if any(cfg.mode == run.mode and cfg.network.parsed_topology.all_reduces for cfg in seen.job.configs):
        return run.first_update_s
    return run.workers_ready_s


def gpu(seen: Evidence) -> Answer:
    """Ask whether the GPUs were busy: the median over the second half of the run."""
    if not seen.job.gpus:
        return "pass", "the job asks for no GPU"
    least = seen.criteria.gpu_share_min
    shares = [share for one in second_half(seen.samples) if (share := mean_gpu_share(one)) is not None]
    if not shares:
        why = seen.no_gpu_metrics or "no pod was sampled while updates were made"
        return _not_known(least, f"no GPU metrics: {why}")
    found = median(shares)
    words = f"{found:.0%} busy, the median of {len(shares)} samples of the second half"
    state = _judged(seen, -found, None if least is None else -least)
    return state, _with_limit(words, "at least", least, "{:.0%}")


def cpu(seen: Evidence) -> Answer:
    """Ask whether the head had CPU time to spare: with none, workers wait for the driver."""
    most = seen.criteria.head_cpu_share_max
    heads = (node for one in second_half(seen.samples) for node in one.heads)
    shares = [node.cpu_share for node in heads if node.cpu_share is not None]
    if not shares:
        return _not_known(most, "Ray's agent on the head exports no CPU usage")
    found = median(shares)
    words = f"{found:.0%} of the head's, the median of {len(shares)} samples of the second half"
    return _judged(seen, found, most), _with_limit(words, "at most", most, "{:.0%}")


def memory(seen: Evidence) -> Answer:
    """Ask whether no pod, and no pod's GPUs, came close to the memory that they have."""
    most = seen.criteria.memory_share_max
    peaks = [
        (share, f"{share:.0%} of {name}'s {whose}{'' if size is None else f', {size / 2**30:.1f} GiB'}")
        for name, node in _nodes(seen)
        for whose, share, size in (
            ("memory", node.memory_share, node.memory_bytes),
            ("GPU memory", node.gpu_memory_share, node.gpu_memory_bytes),
        )
        if share is not None
    ]
    return _highest(seen, peaks, most, "memory", "{:.0%}")


def network(seen: Evidence) -> Answer:
    """Ask whether the network had room: the most that a pod sent or received in a second."""
    most = seen.criteria.network_bytes_per_s_max
    peaks = [
        (speed, f"{name} {verb} {speed / 1e6:.4g} MB/s")
        for name, node in _nodes(seen)
        for verb, speed in (("sent", node.sent_bytes_per_s), ("received", node.received_bytes_per_s))
        if speed is not None
    ]
    return _highest(seen, peaks, most, "network traffic", "{:.4g} bytes/s")


def checkpoint(seen: Evidence) -> Answer:
    """Ask whether what was trained is in the bucket, and can be read back and evaluated."""
    if not any(cfg.checkpoint.checkpoint_tiers for cfg in seen.job.configs):
        return "pass", "the job keeps none"
    found = seen.read_back
    if found is None or isinstance(found, str):
        lost = found is not None and "cannot be read back" in found
        return "fail" if lost else "open", found or "it is read once the job has succeeded"
    what = "the last weights" if found.ended else "the newest checkpoint"
    words = f"{found.run}: {what}, version {found.version}, loss {_loss(found.loss)} when read back"
    if found.damaged_checkpoints:
        return "fail", f"{words}; checkpoints that cannot be read: {found.damaged_checkpoints}"
    return "pass" if found.loss is not None and math.isfinite(found.loss) else "fail", words


CRITERIA: tuple[Question, ...] = (group, gpu, memory, network, checkpoint)


def _nodes(seen: Evidence) -> Iterator[tuple[str, NodeUsage]]:
    """Yield each pod's name with what it used, at each moment."""
    for sample in seen.samples:
        yield from (("the head", node) for node in sample.heads)
        yield from sample.workers.items()


def _highest(
    seen: Evidence, found: Sequence[tuple[float, str]], most: float | None, what: str, form: str
) -> Answer:
    """Return the answer by the highest of some values, each with its words."""
    if not found:
        return _not_known(most, f"Ray's agents export no {what}")
    value, words = max(found)
    return _judged(seen, value, most), _with_limit(words, "at most", most, form)


def _not_known(limit: float | None, why: str) -> Answer:
    return ("pass", f"{why}; no limit") if limit is None else ("open", why)


def _judged(seen: Evidence, found: float, most: float | None) -> State:
    if most is not None and found > most:
        return "fail" if seen.over else "open"
    return "pass" if seen.over else "open"


def _with_limit(words: str, rule: str, limit: float | None, form: str) -> str:
    return f"{words}; {'no limit' if limit is None else f'{rule} {form.format(limit)}'}"


def _loss(x: float | None) -> str:
    return "not finite" if x is None else f"{x:.4g}"
