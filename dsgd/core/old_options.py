"""Options of older versions, and what they are today: records and command lines of then are still read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dsgd.core.option_rules import Checked, Option, option_fields


@dataclass(frozen=True, kw_only=True)
class OldConfig(Checked):
    """The options of older versions, with their defaults, that are part of another's value now."""

    dataset: str = "xor"
    model: Literal["mlp", "logistic"] = "mlp"
    first_local_steps: int = 16
    eval_images: int | None = None
    eval_tokens: int = 65_536
    corpus: str = "shakespeare"
    balance_weight: float = 0.01
    checkpoint_activations: bool = False
    expert_parallel: bool = False
    rank_bytes_per_s: float = float("inf")
    rank_latency_s: float = 0.0
    replicas: int = 1
    rack_bytes_per_s: float = float("inf")
    mtbf: float | None = None
    max_restarts: int = 3
    restart_window_s: float = 600.0
    warmup: int = 0
    uneven: float = 1.0
    mix: str = "none"
    weights: Literal["equal", "samples", "speed"] = "equal"


class Now(NamedTuple):
    """What an old option is today."""

    option: str
    written: Callable[[Any, Any], Any] | None = None
    """Returns that option's value, from the one that is given beside the old option, or None, and the old
    option's. None: the old option has only another name, and where both are given the new one counts."""
    only: Mapping[str, Collection[str]] = {}
    """The modes or workloads that had it; a user's own file may have an option of that name."""


def _added(name: str, default: str) -> Callable[[Any, Any], str]:
    """Return how a setting stands at the end of another option's value, like `sharded:2,replicas=2`."""
    return lambda base, value: f"{default if base is None else base},{name}={number_text(value)}"


def _link(place: int) -> Callable[[Any, Any], str]:
    def written(base: str | None, value: float) -> str:
        parts = ["inf", "0"] if base is None else base.split(",")
        parts[place] = number_text(value)
        return ",".join(parts)

    return written


def number_text(value: float) -> str:
    """Return a number as short as it can be written.

    >>> number_text(2.0), number_text(1e7), number_text(0.1)
    ('2', '1e+07', '0.1')
    """
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


OLD: Mapping[str, Now] = {
    "dataset": Now("workload"),
    "model": Now("hidden", lambda _, value: "none" if value == "logistic" else "16"),
    "first_local_steps": Now("local_steps", only={"mode": ("adacomm",)}),
    "eval_images": Now("eval_samples", only={"workload": ("fashion", "mnist")}),
    "eval_tokens": Now("eval_samples", only={"workload": ("gpt",)}),
    "corpus": Now("data", only={"workload": ("gpt",)}),
    "balance_weight": Now(
        "balance", lambda _, value: f"loss:{number_text(value)}", only={"workload": ("gpt", "moe")}
    ),
    "checkpoint_activations": Now("recompute_activations"),
    "expert_parallel": Now("parallel", lambda base, _: f"{base or 'fsdp'},experts"),
    "rank_bytes_per_s": Now("rank_link", _link(0)),
    "rank_latency_s": Now("rank_link", _link(1)),
    "replicas": Now("topology", _added("replicas", "server")),
    "rack_bytes_per_s": Now("racks", lambda base, value: f"{base or 1},{number_text(value)}"),
    "mtbf": Now("checkpoint_every", _added("mtbf", "auto")),
    "max_restarts": Now("restarts", lambda base, value: str(value)),
    "restart_window_s": Now("restarts", _added("within", "3")),
    "warmup": Now("schedule", _added("warmup", "constant")),
    "uneven": Now("partition", _added("uneven", "iid")),
    "mix": Now("aggregate", lambda base, value: f"{value}+{base or 'mean'}"),
    "weights": Now("aggregate", lambda base, value: f"{base or 'mean'},{value}"),
}
"""By the old option's name, in the order in which values are put together."""

OF_ALL = frozenset(name for name, now in OLD.items() if not now.only)
"""Those that every run had: what they mean in a record is known without its strategy and workload."""

_DEFAULTS = option_fields(OldConfig)
_TEXT = ("racks",)
"""Options that were numbers."""


def old_options(known: Collection[str]) -> dict[str, Option]:
    """Return the old options by name, without those that a configuration has, whose options are `known`."""
    return {name: option for name, option in _DEFAULTS.items() if name not in known}


def today(name: str) -> str:
    """Return the option that an old one is part of today; the name as it is if it is none."""
    return OLD[name].option if name in OLD else name


def renamed(name: str) -> str:
    """Return today's name of an option that every run had; as it is if more than the name has changed."""
    return OLD[name].option if name in OF_ALL and not OLD[name].written else name


def refused(given: Mapping[str, Any], known: Collection[str]) -> str | None:
    """Return what is wrong with the old options that a command line gives; None if nothing is."""
    for name in given.keys() & old_options(known).keys():
        rule, now = _DEFAULTS[name].broken_rule(given[name]), OLD[name]
        if not now.written and now.option in given:
            rule = f"--{now.option.replace('_', '-')} is given too; leave this out"
        if rule:
            return f"--{name.replace('_', '-')} {given[name]}: {rule}"
    return None


def recorded(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's options as they are named today. One without an edition is of the first, in which
    `sign` sent zeros as positive numbers.
    """
    found = renewed(given)
    if "edition" in found:
        return found
    as_then = {name: "sign:positive" for name in ("compress", "compress_down") if found.get(name) == "sign"}
    return {**found, **as_then, "edition": 1}


def renewed(given: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return options as they are named today; those that had their default are left out.

    given: like a config.yaml. beside: what else holds in the run, which `given` overrides.
    """
    whole = {**(beside or {}), **given}
    old = {
        name
        for name, now in OLD.items()
        if name in given and all(whole.get(option) in names for option, names in now.only.items())
    }
    found = {name: value for name, value in given.items() if name not in old}
    found |= {name: str(found[name]) for name in _TEXT if isinstance(found.get(name), int)}
    if found.get("workload", "") is None:
        del found["workload"]
    for name, now in OLD.items():
        if name not in old or (given[name] == _DEFAULTS[name].default and now.option not in (beside or {})):
            continue
        if now.written:
            base = found.get(now.option, (beside or {}).get(now.option))
            found[now.option] = now.written(base, given[name])
        elif found.get(now.option) is None:
            found[now.option] = given[name]
    return found
