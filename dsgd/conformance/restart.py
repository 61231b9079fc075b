"""The restart law: at any update, `train` started again on the same cluster goes on bit for bit.

So a driver that ends (a crash, a hand-over, a pause) loses nothing: all is in the weights or in the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

from dsgd.conformance import differences
from dsgd.conformance.strategy_on_trial import Broken, Subject, require_spent
from dsgd.core.protocol import Update
from dsgd.running.checkpoints.codec import NotKept, vocabulary
from dsgd.running.checkpoints.run_state import from_bytes, to_parts
from dsgd.running.simulating import simulation
from dsgd.strategies.conformance import Options

SCENARIOS: Mapping[str, Options] = {
    "exponential": {"compute_time": "exponential:1", "slowdown": "0=3"},
    # Every station of a task takes time, and equal times meet: the order of ties is held too.
    "network": {
        "compute_time": "constant:1",
        "slowdown": "2=2",
        "latency_s": 0.125,
        "server_bytes_per_s": 4000.0,
        "server_time": "exponential:.05",
    },
}
_MOST_CUTS = 24
_FEWEST_UPDATES, _MOST_STEPS = 4, 200


def goes_on_from_any_update(subject: Subject, options: Options, scenario: str) -> None:
    """It keeps nothing between two updates: `train`, started again at any of them, goes on bit for bit.

    What it remembers belongs into Weights: `w.keeping(value)` and `w.kept`, or a slot of its rule. What was
    started, who is idle and who is how far it asks the cluster. Variables of `train` are lost.
    """
    steps, seen, cuts = 6, list[Update](), list[bytes]()
    while len(seen) < _FEWEST_UPDATES and steps <= _MOST_STEPS:  # several rounds, also of many local steps
        chosen = {"num_workers": 4, "steps": steps, "workload": "xor", **SCENARIOS[scenario], **options}
        seen, cuts = _followed(subject, chosen)
        steps *= 2
    _same_from(subject, chosen, seen, cuts)


def _followed(subject: Subject, options: Options) -> tuple[list[Update], list[bytes]]:
    """Run to the end of the budget; return the updates, and the run as a checkpoint after each."""
    seen, cuts, known = list[Update](), list[bytes](), vocabulary(subject.strategy)
    with subject.may_break(options):
        run = simulation(subject.config(**options), evaluate=False).run
        for update in run.updates():
            seen.append(update)
            try:
                cuts.append(b"".join(to_parts(run.state(), known)))
            except NotKept as error:
                raise Broken(
                    f"{differences.named(update)}: cannot be in a checkpoint: {error}", options
                ) from None
    require_spent(run.cfg, run.tally, options)
    return seen, cuts


def _same_from(subject: Subject, options: Options, seen: list[Update], cuts: list[bytes]) -> None:
    """Start `train` again at cuts, and compare with what followed there."""
    known, half = vocabulary(subject.strategy), _MOST_CUTS // 2
    numbers = [*range(1, len(cuts))]  # after the last update nothing follows
    if len(numbers) > _MOST_CUTS:
        numbers = numbers[:half] + numbers[half :: len(numbers) // half]
    for number in numbers:
        try:
            with subject.may_break(options):
                run = simulation(subject.config(**options), evaluate=False).run
                run.go_to(from_bytes(cuts[number - 1], known))
                again = list(run.updates())
        except Broken as broken:
            raise Broken(f"started again after update {number}: {broken}", options) from broken.__cause__
        if found := differences.of_runs(again, seen[number:]):
            raise Broken(f"started again after update {number}: {found}", options)
