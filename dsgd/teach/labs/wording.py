"""A lab's sentences: `{option}` in them is replaced by the option's value, in words. The laws that a lab's
file names, and what the check of one finds.
"""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct, field

from dsgd.core.option_texts import slowdowns
from dsgd.core.time_laws import (
    Constant,
    Exponential,
    Lognormal,
    Normal,
    Pareto,
    ShiftedExponential,
    Uniform,
    parse_law,
)
from dsgd.process.checked_yaml import did_you_mean
from dsgd.scenario.fault import Crash, Fault, Spot
from dsgd.scenario.faults_text import parse_faults


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Return a sentence with the values of its placeholders.

    Raises ValueError, in one line, for a placeholder that is not among the values.
    """
    parts = []
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"{error}; write {{{{ for a brace that is no placeholder") from None
    for plain, name, form, conversion in pieces:
        parts.append(plain)
        if name is None:
            continue
        if name not in values or form or conversion:
            raise ValueError(
                f"{{{name}}} is none of its options; {did_you_mean(name, values, 'they are {}')}"
                if name not in values
                else f"{{{name}}}: write the name of the option alone"
            )
        parts.append(words(name, values[name]))
    return "".join(parts)


def words(option: str, value: Any) -> str:
    """Return an option's value as a sentence has it.

    >>> words("slowdown", "0=4"), words("server_bytes_per_s", 1e8), words("share", 0.98)
    ('worker 0 is always 4 times slower', '100 MB/s', '98 %')
    >>> words("optima", "0,0,1"), words("compute_time", "pareto:1.5,0.333333")
    ('0, 0 and 1', 'Pareto times of alpha 1.5 and mean 1 s')
    >>> words("faults", "leave:2@update=200; join:2@update=800")
    'worker 2 leaves at update 200 and joins at update 800'
    """
    if isinstance(value, Mapping):
        return listed([f"{name.replace('_', ' ')} {words(name, entry)}" for name, entry in value.items()])
    if isinstance(value, str) and option in _SPECIAL:
        return _SPECIAL[option](value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    for ending, in_unit in _UNITS.items():
        if option.endswith(ending):
            return in_unit(value)
    return _number(value)


def listed(parts: Sequence[str]) -> str:
    """Return parts as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _times(text: str) -> str:
    law = parse_law(text)
    match law:
        case Exponential():
            return f"exponential times of mean {law.mean_s:.4g} s"
        case ShiftedExponential():
            return f"times of {law.shift_s:g} s plus an exponential part of mean {law.exponential_mean_s:g} s"
        case Constant():
            return f"constant times of {law.seconds:.4g} s"
        case Uniform():
            return f"uniform times from {law.low_s:g} to {law.high_s:g} s"
        case Normal():
            return f"normal times of mean {law.mu_s:g} s and standard deviation {law.sigma_s:g} s"
        case Lognormal():
            return f"lognormal times of median {law.median_s:g} s and sigma {law.sigma:g}"
        case Pareto() if law.alpha > 1:
            return f"Pareto times of alpha {law.alpha:g} and mean {law.mean_s:.4g} s"
    return f"times {text}"


def _slower(text: str) -> str:
    return listed([f"worker {i} is always {factor:g} times slower" for i, factor in slowdowns(text).items()])


def _faults(text: str) -> str:
    parts: list[str] = []
    who = ""
    for sentence in map(_fault, parse_faults(text)):
        parts.append(sentence.removeprefix(who) if who else sentence)
        who = f"{worker[0]} " if (worker := re.match(r"worker \d+(?= leaves| joins)", sentence)) else ""
    return listed(parts)


def _fault(fault: Fault | Spot | Crash) -> str:
    match fault:
        case Spot(mtbf_s, back_s):
            return f"each process is lost every {mtbf_s:,g} s on average, and is back {back_s:g} s later"
        case Crash(mtbf_s, back_s):
            return f"the driver is lost every {mtbf_s:,g} s on average, and is back {back_s:g} s later"
    names = listed([str(worker) for worker in fault.workers])
    number = f"{fault.trigger.at:,g}"
    when = f"after {number} s" if fault.trigger.of == "t" else f"at {fault.trigger.of} {number}"
    if fault.trigger.at == 0:
        when = "at the start"
    match fault.kind:
        case "leave" | "join":
            return f"worker {names} {fault.kind}s {when}"
        case "kill":
            lasts_s = fault.lasts_s or 0.0
            away = f" for {lasts_s:,g} s" if lasts_s < _FOR_GOOD_S else " for good"
            return f"the process of worker {names} is lost {when}{away if lasts_s else ''}"
        case "lie" if fault.counts is None:
            return f"worker {names} lies ({fault.says}) from {when.removeprefix('at ')} on"
    return str(fault)


_FOR_GOOD_S = 1e6


def _values(text: str) -> str:
    return listed([part.strip() for part in text.split(",")])


def _rate(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {unit}/s"
    return f"{value:.4g} B/s"


def _slow_links(text: str) -> str:
    slow = slowdowns(text).items()
    return listed([f"bytes take {factor:g} times as long on the link of worker {i}" for i, factor in slow])


_SPECIAL: Mapping[str, Callable[[str], str]] = {
    "compute_time": _times,
    "server_time": _times,
    "slowdown": _slower,
    "slow_link": _slow_links,
    "curvatures": _values,
    "optima": _values,
    "faults": _faults,
    "checkpoint_every": lambda text: f"{text} s",
}
_UNITS: Mapping[str, Callable[[float], str]] = {
    "bytes_per_s": _rate,
    "_s": lambda value: f"{_number(value)} s",
    "_mb": lambda value: f"{_number(value)} MB",
    "share": lambda value: f"{100 * value:.4g} %",
}


class Finding(NamedTuple):
    """Whether a law holds, what was seen, and what is needed."""

    holds: bool | None
    """None if it was not tested."""
    seen: str
    theory: str = ""
    """What theory says, for those who are to see it."""
    command: str = ""
    """The run in which a law was broken."""


class CheckedLaw(Struct, frozen=True, kw_only=True):
    """Something that has to hold: a sentence, the function that checks it, and that function's arguments."""

    name: str = field(name="law")
    text: Annotated[str, Meta(pattern=r"\S")]
    parameters: Mapping[str, Any]


def function(module: Any, name: str) -> Callable[..., Any]:
    """Return a module's own public function, or one of OF_ALL_STRATEGIES; raises ValueError if there is none
    of that name.
    """
    found = functions(module)
    found |= {law.__name__: law for law in getattr(module, "OF_ALL_STRATEGIES", ())}
    if name not in found:
        raise ValueError(f"there is no {name}; {did_you_mean(name, found)}")
    return found[name]


def functions(module: Any) -> dict[str, Callable[..., Any]]:
    """Return a module's public functions by name, without those that it imports."""
    return {
        name: found
        for name, found in vars(module).items()
        if inspect.isfunction(found) and found.__module__ == module.__name__ and not name.startswith("_")
    }
