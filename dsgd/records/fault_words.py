"""Faults in words: one of them, and all of a run."""

from __future__ import annotations

from collections.abc import Mapping

from dsgd.core.fault_seen import FOLLOWING
from dsgd.records.schema import RecordedFault
from dsgd.scenario.fault import STORE


def hit(fault: RecordedFault) -> str:
    """Return whom a fault hit.

    >>> from dsgd.records.schema import built
    >>> line = dict(t_s=1.0, kind="node", workers=[1, 3], asked=True, update=4, came_in=4, text="")
    >>> hit(built(line, RecordedFault)), hit(built(line | {"workers": [], "kind": "torn"}, RecordedFault))
    ('workers 1, 3', 'checkpoints')
    """
    if not fault.workers:
        return "the driver" if fault.kind == "driver" else "checkpoints" if fault.kind in STORE else "the run"
    return f"worker{'s' * (len(fault.workers) > 1)} {', '.join(map(str, fault.workers))}"


def cost(fault: RecordedFault) -> str:
    """Return how long a fault lasted and what it cost; empty if it cost nothing.

    >>> from dsgd.records.schema import built
    >>> line = dict(t_s=1.0, kind="kill", workers=[1], asked=True, update=4, came_in=4, text="")
    >>> cost(built(line | {"recovered_s": 1.5, "repeated": 2}, RecordedFault))
    'over after 1.5 s, 2 mini-batches repeated'
    >>> cost(built(line, RecordedFault))
    'not over when the run ended'
    """
    parts = []
    if fault.detected_s:
        parts.append(f"noticed after {fault.detected_s:.3g} s")
    if fault.over_s is None:
        parts.append("not over when the run ended")
    elif fault.recovered_s:
        parts.append(f"over after {fault.recovered_s:.3g} s")
    return ", ".join([*parts, *_lost(fault.repeated, fault.wasted)])


def all_of_them(
    counts: Mapping[str, int], median_recovery_s: float | None, repeated: int, wasted: int, unit: str = "s"
) -> str:
    """Return the faults of a run in one line, then what else happened.

    >>> all_of_them({"kill": 2, "pause": 1}, 0.4, 5, 0)
    '3 (2 kill, 1 pause): recovered in 0.4 s (median), 5 mini-batches repeated'
    >>> all_of_them({"kill": 3, "leave": 3, "join": 2, "given-up": 1}, 0.0, 0, 1)
    '3 (kill): recovered at once (median), 1 mini-batch wasted; 3 members left, 2 joined, 1 process given up'
    """
    faults = {kind: n for kind, n in counts.items() if kind not in FOLLOWING}
    kinds = ", ".join(f"{n} {kind}" for kind, n in faults.items()) if len(faults) > 1 else "".join(faults)
    took = []
    if median_recovery_s is not None:
        how_long = f"in {median_recovery_s:.3g} {unit}" if median_recovery_s else "at once"
        took = [f"recovered {how_long} (median)"]
    lost = ", ".join([*took, *_lost(repeated, wasted)])
    struck = f"{sum(faults.values())} ({kinds})" if faults else ""
    return "; ".join(filter(None, [": ".join(filter(None, [struck, lost])), _also(counts)]))


def _also(counts: Mapping[str, int]) -> str:
    left, joined, suspected, given_up = (counts.get(kind, 0) for kind in FOLLOWING)
    found = (
        (left, f"{left} member{'s' * (left != 1)} left"),
        (joined, f"{joined} joined" if left else f"{joined} member{'s' * (joined != 1)} joined"),
        (suspected, f"{suspected} silent task{'s' * (suspected != 1)} given to a second process"),
        (given_up, f"{given_up} process{'es' * (given_up != 1)} given up"),
    )
    return ", ".join(words for n, words in found if n)


def _lost(repeated: int, wasted: int) -> list[str]:
    found = ((repeated, "repeated"), (wasted, "wasted"))
    return [f"{n:,} mini-batch{'es' * (n != 1)} {what}" for n, what in found if n]
