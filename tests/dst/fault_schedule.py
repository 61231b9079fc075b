"""Random schedules of faults: a run's options, drawn with a seed, so that each one is a command line."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.config import GradientConfig, LocalConfig, TrainConfig
from dsgd.conformance.strategy_on_trial import Subject
from dsgd.core.option_rules import option_fields
from dsgd.scenario.fault import MEMBERSHIP, Fault

_COMMON = option_fields(GradientConfig).keys() | option_fields(LocalConfig).keys()

# Values of the strategies' options that are numbers; those that are choices are drawn from all choices.
VALUES: Mapping[str, Sequence[Any]] = {
    "local_steps": (1, 2, 3, 5),
    "interval_s": (2.0, 6.0, math.inf),
    "k": (None, 1, 2, 3),
    "backup": (0, 1, 2),
    "batches": (None, 1, 3, 7),
    "slack": (0.0, 1.0, 3.0, math.inf),
    "slack_low": (0, 1, 2),
    "slack_high": (2, 5),
    "delay_bound": (1.0, 2.0, 4.0, math.inf),
    "momentum": (0.0, 0.5),
    "moving_rate": (None, 0.4),
    "staleness_lr": ("none", "inverse", "threshold:2"),
}
_CODECS = ("topk:.5", "randk:.5", "sign", "qsgd:2", "powersgd:1", "dgc:.5,.5,8")
_TIMES = ("none", "constant:1", "exponential:1", "uniform:.5,1.5", "markov:1,6,.2,.3", "pareto:1.5,.5")
_WITHOUT_TAIL = _TIMES[:-1]  # a task that is longer than the time between two losses would never end
_MOST_VIRTUAL_S = 1e6  # long enough for tails without a variance; a run that has not ended by then hangs


@dataclass(frozen=True)
class FaultSchedule:
    """A run in which things go wrong: a strategy and its options, named flat as in config.yaml."""

    subject: Subject
    options: Mapping[str, Any]

    @property
    def faults(self) -> list[str]:
        """The faults, one by one."""
        return [part.strip() for part in str(self.options.get("faults", "")).split(";") if part.strip()]

    def having(self, **options: Any) -> FaultSchedule:
        """Return it with other options."""
        return FaultSchedule(self.subject, {**self.options, **options})

    def config(self) -> TrainConfig:
        """Return its configuration; raises ValueError for options that do not go together."""
        return self.subject.config(**{"max_seconds": _MOST_VIRTUAL_S, **self.options})


def keeps_members(cfg: TrainConfig) -> bool:
    """Whether no fault of a run changes its members: each is masked, and only costs time."""
    changes = any(isinstance(f, Fault) and f.kind in MEMBERSHIP for f in cfg.fault.fault_list)
    return not changes and cfg.fault.on_loss != "drop"


def keeps_weights(cfg: TrainConfig, subject: Subject) -> bool:
    """Whether a run has the same weights as without its faults: they are masked, and the weights do not
    depend on who is faster, as LAWS says of these options. A lie is not masked.
    """
    claimed = subject.laws.deterministic
    if claimed is None or not keeps_members(cfg) or cfg.fault.lies:
        return False
    own = {name: option.default for name, option in option_fields(type(cfg)).items() if name not in _COMMON}
    return all(getattr(cfg, name) == claimed.get(name, default) for name, default in own.items())


def drawn(seed: int, subjects: Sequence[Subject]) -> FaultSchedule:
    """Return the schedule with this number, of one of the strategies."""
    rng = random.Random(seed)
    subject = rng.choice(subjects)
    for _ in range(100):
        schedule = FaultSchedule(subject, _options(rng, subject))
        try:
            schedule.config()
        except ValueError:  # such options do not go together: like a K above the number of workers
            continue
        return _lied(
            _compressed(schedule, random.Random(f"compression {seed}")), random.Random(f"lies {seed}")
        )
    raise AssertionError(f"seed {seed}: no options of {subject.mode} go together")


def _compressed(schedule: FaultSchedule, rng: random.Random) -> FaultSchedule:
    """Return a schedule with compression, now and then, where that goes with its options."""
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["compress"] = rng.choice(_CODECS)
        options["error_feedback"] = rng.choice((None, "none", "ef", "ef21"))
    if rng.random() < 0.2:
        options["compress_down"] = rng.choice(("topk:.5", "powersgd:1"))
    more = schedule.having(**options, dim=9) if options else schedule  # of one weight nothing is left out
    try:
        more.config()
    except ValueError:
        return schedule
    return more


def _lied(schedule: FaultSchedule, rng: random.Random) -> FaultSchedule:
    """Return a schedule with a worker that lies, now and then, where that goes with its options."""
    if rng.random() > 0.15:
        return schedule
    options, liar = schedule.options, rng.randrange(schedule.options["num_workers"])
    when = _trigger(rng, "lie", options["num_workers"], options["steps"])
    lasts = round(_seconds(rng), 2) if when.startswith("t=") else rng.randint(1, 4)
    attack = rng.choice(("signflip", "ipm*.5", "labelflip", "labelflip"))
    lie = f"lie:{liar}={attack}@{when}" + f"+{lasts}" * (rng.random() < 0.7)
    labelled = {"workload": "xor", "lr": 0.05} if attack == "labelflip" else {}
    kept = {name: value for name, value in options.items() if name != "grad_noise" or not labelled}
    more = FaultSchedule(schedule.subject, {**kept, **labelled, "faults": "; ".join([*schedule.faults, lie])})
    try:
        more.config()
    except ValueError:
        return schedule
    return more


def _options(rng: random.Random, subject: Subject) -> dict[str, Any]:
    num_workers = rng.randint(2, 6) if rng.random() < 0.95 else rng.randint(7, 12)
    steps = rng.randint(2, 14)
    masked = rng.random() < 0.5
    options: dict[str, Any] = {"num_workers": num_workers, "steps": steps, "seed": rng.randrange(1000)}
    if rng.random() < 0.8:
        options |= {"workload": "quadratic", "grad_noise": 0.5, "lr": 0.05}
    else:
        options |= {"workload": "none"}
    options |= _of_the_strategy(rng, subject, masked)
    options |= _of_hosts(rng, num_workers, masked)
    faults = _faults(rng, options, masked)
    options |= _of_time(rng, num_workers, any(fault.startswith("spot") for fault in faults))
    return {**options, "faults": "; ".join(faults)}


def _of_the_strategy(rng: random.Random, subject: Subject, masked: bool) -> dict[str, Any]:
    laws, fields = subject.laws, option_fields(subject.strategy.Config)
    if masked and laws.deterministic is not None and rng.random() < 0.7:
        chosen = dict(laws.deterministic)
        free = [name for name in VALUES if name in fields and name in _COMMON]
    else:
        chosen = dict(rng.choice(laws.variants))
        free = [n for n, option in fields.items() if n in VALUES or (n not in _COMMON and option.choices)]
        free += [n for n, option in fields.items() if n not in _COMMON and option.kind == "bool"]
    for name in free:
        if rng.random() < 0.3:
            values = VALUES.get(name) or fields[name].choices or (False, True)
            chosen[name] = rng.choice(values)
    return chosen


def _of_time(rng: random.Random, num_workers: int, spot: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"compute_time": rng.choice(_WITHOUT_TAIL if spot else _TIMES)}
    if rng.random() < 0.3:
        options["slowdown"] = f"{rng.randrange(num_workers)}={rng.choice((2, 5))}"
    if rng.random() < 0.3:
        options["latency_s"] = rng.choice((0.125, 0.5))
    if rng.random() < 0.15:
        options["server_bytes_per_s"] = 40.0
    if rng.random() < 0.15:
        options["server_time"] = rng.choice(("constant:.25", "exponential:.05"))
    return options


def _of_hosts(rng: random.Random, num_workers: int, masked: bool) -> dict[str, Any]:
    most, within_s = rng.choice((0, 1, 3)) if rng.random() < 0.1 else 1000, 600
    options: dict[str, Any] = {}
    policies = ("replace", "rehost") if masked else ("replace", "rehost", "drop", "drop")
    options["on_loss"] = rng.choice(policies)
    if options["on_loss"] == "drop":
        options["min_workers"] = rng.randint(1, num_workers)
    if rng.random() < 0.3:
        options["hosts"] = rng.randint(1, num_workers)
    if rng.random() < 0.3:
        options["spares"] = rng.randint(1, 2)
    if rng.random() < 0.3:
        options["nodes"] = rng.randint(2, 3)
    if rng.random() < 0.3:
        options["suspect_after"] = rng.choice((1.5, 4.0, 8.0))
    if rng.random() < 0.6:
        options["restart_s"] = rng.choice((0.5, 3.0))
    if rng.random() < 0.2:
        within_s = 10
    return options | {"restarts": f"{most},within={within_s}"}


def _faults(rng: random.Random, options: Mapping[str, Any], masked: bool) -> list[str]:
    """Return up to eight faults that happen during the run or near its end."""
    kinds = ["kill", "kill", "pause", "slow", "cut", "node", "driver"]
    if not masked:
        kinds += ["leave"] * 4 + ["join"]
    if rng.random() < 0.1:
        return [f"spot:mtbf={rng.choice((40, 100))},back={rng.choice((0, 3, 10))}"]
    if rng.random() < 0.1:
        return _rolling_restart(rng, options["num_workers"], options["steps"])
    if not masked and rng.random() < 0.1:
        return _all_away(rng, options["num_workers"], options["steps"])
    return [fault for _ in range(rng.randint(0, 7)) for fault in _fault(rng, rng.choice(kinds), options)]


def _rolling_restart(rng: random.Random, num_workers: int, steps: int) -> list[str]:
    """Return losses of all processes, one after the other, the next about when the one before is back."""
    at_s, down_s, gap_s = _time(rng, steps), _seconds(rng), rng.choice((0, 0.1, 1, 3))
    return [f"kill:{w}@t={round(at_s + w * (down_s + gap_s), 2)}+{down_s}" for w in range(num_workers)]


def _all_away(rng: random.Random, num_workers: int, steps: int) -> list[str]:
    """Return that all workers leave at once, and that one or all of them join again."""
    at_s, back = _time(rng, steps), rng.choice((1, num_workers))
    everyone, some = (",".join(map(str, range(count))) for count in (num_workers, back))
    return [f"leave:{everyone}@t={at_s}", f"join:{some}@t={round(at_s + _seconds(rng) + 1, 2)}"]


def _fault(rng: random.Random, kind: str, options: Mapping[str, Any]) -> list[str]:
    num_workers, steps = options["num_workers"], options["steps"]
    who = f"{rng.randrange(num_workers)}"
    if kind in ("kill", "pause", "slow", "cut") and rng.random() < 0.2:
        who = ",".join(map(str, sorted(rng.sample(range(num_workers), 2))))
    when = _trigger(rng, kind, num_workers, steps)
    lasts = f"+{_seconds(rng)}"
    match kind:
        case "kill":
            return [f"kill:{who}@{when}{lasts * (rng.random() < 0.4)}"]
        case "pause":
            return [f"pause:{who}={_seconds(rng)}@{when}"]
        case "slow" if rng.random() < 0.3:
            return [f"slow:{who}=1~{rng.randint(2, 4)}@{when}{lasts}"]
        case "slow":
            return [f"slow:{who}={rng.choice((0.5, 3))}@{when}{lasts * (rng.random() < 0.7)}"]
        case "cut":
            return [f"cut:{who}@{when}{lasts}"]
        case "node":
            node = "abc"[rng.randrange(options.get("nodes", 1))]
            return [f"node:{node}@{when}{lasts * (rng.random() < 0.4)}"]
        case "driver":
            return [f"driver@{when}"]
        case "leave" if rng.random() < 0.7:
            return [f"leave:{who}@{when}", f"join:{who}@t={_time(rng, 3.0 * steps)}"]
    return [f"{kind}:{who}@{when}"]


def _trigger(rng: random.Random, kind: str, num_workers: int, steps: int) -> str:
    of = rng.choice(("t", "t", "update", "step"))
    if of == "update":
        return f"update={rng.randint(1, rng.choice((steps, steps * num_workers)))}"
    if of == "step" and kind not in ("node", "driver", "join"):
        return f"step={rng.randrange(steps)}"
    return f"t={_time(rng, 2.0 * steps)}"


def _time(rng: random.Random, latest_s: float) -> float:
    """Return a time; about half are whole seconds, so that they coincide with others and ends of tasks."""
    return round(rng.uniform(0, latest_s), rng.choice((0, 2)))


def _seconds(rng: random.Random) -> float:
    return max(0.01, round(rng.expovariate(1 / 3), 2))
