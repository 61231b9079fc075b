"""Reads `--faults`: faults separated by semicolons, or a YAML file that lists them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from dsgd.core.units import seconds
from dsgd.process.bounded_yaml import read_yaml
from dsgd.scenario.attacks import Attack
from dsgd.scenario.fault import MEMBERSHIP, STORE, Crash, Fault, Faults, Kind, Spot, Trigger

FILE_ENDINGS = (".yaml", ".yml")
"""A text that ends so names a file of faults."""

_EXAMPLE = "like kill:2@update=100 or slow:0=4@t=10+20 (docs/faults.md lists the kinds)"
_FAULT = re.compile(
    r"(?P<kind>[a-z-]+)(?::(?P<who>[^=@]*))?(?:=(?P<size>[^@]*))?@(?P<of>[a-z]*)=(?P<at>[^+]*)(?:\+(?P<lasts>.*))?"
)
_FROM_THE_START = "@t=0"
_SIZED = {"pause": "seconds", "slow": "a factor", "slow-disk": "seconds"}
_MUST_LAST = ("cut", "full", "slow-disk")
_MAY_LAST = (*_MUST_LAST, "slow", "kill", "node", "driver")


def parse_faults(text: str) -> Faults:
    """Return what an option's text, or the file that it names, asks for; raises ValueError with the rule.

    >>> [str(fault) for fault in parse_faults("kill:2@update=100; pause:0,1=5@t=3")]
    ['kill:2@update=100', 'pause:0,1=5@t=3']
    >>> parse_faults("spot:mtbf=600,back=60")
    (Spot(mtbf_s=600.0, back_s=60.0),)
    """
    if text.endswith(FILE_ENDINGS):
        return tuple(_fault(line) for line in _lines(Path(text)))
    return tuple(_fault(part.strip()) for part in text.split(";") if part.strip())


def _lines(path: Path) -> list[str]:
    # Smaller than the options of a run may be, in which its faults stand.
    content = read_yaml(path, "give a YAML file that lists faults", most_mb=1)
    if not isinstance(content, list) or not all(isinstance(line, str) for line in content):
        raise ValueError(f"must be a list of faults, each {_EXAMPLE}")
    return content


def _fault(text: str) -> Fault | Spot | Crash:
    if text.startswith("spot:"):
        return Spot(*_process(text, "spot"))
    if text.startswith("crash:"):
        return Crash(*_process(text, "crash"))
    found = _FAULT.fullmatch(text if "@" in text or not text.startswith("lie:") else text + _FROM_THE_START)
    if not found:
        raise ValueError(f"'{text}' is not a fault; write KIND:WORKERS@TRIGGER, {_EXAMPLE}")
    kind: Any = found["kind"]
    kinds = get_args(Kind)
    if kind not in kinds:
        raise ValueError(
            f"'{text}': there is no kind '{kind}'; choose one of {', '.join(kinds)}, spot or crash"
        )
    if kind == "lie":
        return _lie(text, found)
    from_size, size = _size(text, kind, found["size"])
    servers = _servers(text, found["who"]) if kind == "kill" else ()
    if servers and found["of"] == "step":
        raise ValueError(f"'{text}': step counts a worker's mini-batches; use t= or update= for servers")
    return Fault(
        kind=kind,
        trigger=_trigger(text, kind, found["of"], found["at"]),
        workers=() if servers or kind in ("node", "driver", *STORE) else _workers(text, found["who"]),
        servers=servers,
        node=_node(text, kind, found["who"]),
        size=size,
        from_size=from_size,
        lasts_s=_lasts(text, kind, found["lasts"]),
    )


def _lie(text: str, found: re.Match[str]) -> Fault:
    try:
        says = Attack.parse(found["size"] or "")
    except ValueError as error:
        raise ValueError(f"'{text}': {error}") from None
    trigger = _trigger(text, "lie", found["of"], found["at"])
    of = seconds if trigger.of == "t" else float
    counts = None if found["lasts"] is None else _number(text, found["lasts"], "the duration", of)
    if counts is not None and not (counts > 0 and (trigger.of == "t" or counts.is_integer())):
        raise ValueError(f"'{text}': a lie lasts for a number of what its trigger counts, as in +20")
    return Fault(kind="lie", trigger=trigger, workers=_workers(text, found["who"]), says=says, counts=counts)


def _trigger(text: str, kind: Kind, of: str, at: str) -> Trigger:
    if of not in ("t", "update", "step"):
        raise ValueError(f"'{text}': a trigger is t=SECONDS, update=VERSION or step=MINI-BATCH, not '{of}='")
    if of == "step" and kind in ("node", "driver", "join", *STORE):
        raise ValueError(f"'{text}': step counts a working worker's mini-batches; use t= or update=")
    value = _number(text, at, "the trigger", seconds if of == "t" else float)
    if of != "t" and not value.is_integer():
        raise ValueError(f"'{text}': {of}= needs a whole number")
    if of == "update" and value < 1:
        raise ValueError(f"'{text}': the first update has number 1; use t=0 for the start")
    return Trigger(of, value)  # type: ignore[arg-type]


def _workers(text: str, who: str | None) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", who or ""):
        raise ValueError(f"'{text}': name the workers, as in kill:2 or kill:0,3")
    return tuple(dict.fromkeys(map(int, (who or "").split(","))))


def _servers(text: str, who: str | None) -> tuple[int, ...]:
    """Return the servers that a kill names, as in kill:s0,s1; none if it names workers."""
    if not re.fullmatch(r"s\d+(,s\d+)*", who or ""):
        return ()
    return tuple(dict.fromkeys(int(name[1:]) for name in (who or "").split(",")))


def _node(text: str, kind: Kind, who: str | None) -> str:
    if kind == "node":
        if not re.fullmatch(r"[a-z]", who or ""):
            raise ValueError(f"'{text}': name the node by its letter, as in node:b@update=50")
        return who or ""
    if who and kind in ("driver", *STORE):
        raise ValueError(f"'{text}': {kind} names no worker; write {kind}@{text.partition('@')[2]}")
    return ""


def _size(text: str, kind: Kind, size: str | None) -> tuple[float | None, float]:
    if kind not in _SIZED:
        if size is not None:
            raise ValueError(f"'{text}': {kind} has no size; leave ={size} out")
        return None, 0.0
    if not size:
        raise ValueError(f"'{text}': say how much, {_SIZED[kind]}, as in {kind}:0=4@t=10")
    start, grows, end = size.rpartition("~")
    if grows and kind != "slow":
        raise ValueError(f"'{text}': only slow can grow (1~4)")
    value = _number(text, end, "the size", seconds if _SIZED[kind] == "seconds" else float)
    first = _number(text, start, "the size") if grows else None
    if value <= 0 or first == 0:
        raise ValueError(f"'{text}': the size must be above 0")
    return first, value


def _lasts(text: str, kind: Kind, lasts: str | None) -> float | None:
    if lasts is None:
        if kind in _MUST_LAST or "~" in text:
            raise ValueError(f"'{text}': say for how many seconds, as in {text}+20")
        return None
    if kind not in _MAY_LAST:
        remedy = "give a join" if kind in MEMBERSHIP else "leave it out"
        raise ValueError(f"'{text}': {kind} has no duration (+{lasts}); {remedy}")
    return _number(text, lasts, "the duration", seconds)


def _process(text: str, name: str) -> tuple[float, float]:
    """Return the mean time between losses, and the time until the lost is back (s)."""
    given = dict(part.partition("=")[::2] for part in text.removeprefix(f"{name}:").split(","))
    if not given.keys() <= {"mtbf", "back"} or "mtbf" not in given:
        raise ValueError(f"'{text}': write {name}:mtbf=SECONDS,back=SECONDS")
    mtbf_s = _number(text, given["mtbf"], "mtbf", seconds)
    if mtbf_s <= 0:
        raise ValueError(f"'{text}': mtbf must be above 0")
    back_s = _number(text, given.get("back", "0"), "back", seconds)
    if name == "crash" and back_s > 10 * mtbf_s:
        raise ValueError(f"'{text}': it would hardly ever be back; choose back at most 10 times mtbf")
    return mtbf_s, back_s


def _number(text: str, value: str, what: str, of: Callable[[str], float] = float) -> float:
    try:
        number = of(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"'{text}': {what} must be a finite number of at least 0, not '{value}'")
    return number
