"""The small languages in which some options are written, and the values they stand for.

Each function takes an option's text and raises ValueError with the rule where it is not in the language; the
caller names the option. Laws of times are in `dsgd.core.time_laws`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from dsgd.core.option_forms import FormPart, number, setting, whole
from dsgd.core.time_laws import Law, parse_law
from dsgd.core.units import seconds
from dsgd.process.s3_access import is_s3, local_folder


@dataclass(frozen=True)
class Partition:
    """How samples are split among workers; alpha is that of `dirichlet:ALPHA`, else None.

    >>> Partition.parse("dirichlet:0.3,uneven=2")
    Partition(kind='dirichlet', alpha=0.3, uneven=2.0)
    """

    kind: Literal["iid", "label", "dirichlet"]
    alpha: float | None = None
    uneven: float = 1.0
    """How many times as many samples the last worker has as the first."""

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Return what the text of --partition means."""
        part = number("uneven", "of at least 1", lambda x: 1 <= x < math.inf)
        text, uneven = setting(text, part, 1.0, "iid,uneven=4")
        match text.partition(":"):
            case (("iid" | "label") as kind, "", ""):
                return cls(kind, None, uneven)
            case ("dirichlet", ":", alpha) if re.fullmatch(r"\d*\.?\d+(e-?\d+)?", alpha):
                if 0 < float(alpha) < math.inf:
                    return cls("dirichlet", float(alpha), uneven)
        raise ValueError("must be iid, label or dirichlet:ALPHA with ALPHA above 0, like dirichlet:0.3")


def _growing(text: str) -> tuple[int, ...]:
    steps = tuple(int(step) for step in text.split("+") if re.fullmatch(r"[1-9]\d{0,17}", step))
    if not steps or "+".join(map(str, steps)) != text or any(a >= b for a, b in pairwise(steps)):
        raise ValueError
    return steps


def with_restarts(schedule: str, steps: Iterable[int]) -> str:
    """Return the text of --schedule with these restarts in place of those that it has.

    >>> with_restarts("cosine,restart=200,warmup=9", (200, 300)), with_restarts("cosine,restart=200", ())
    ('cosine,warmup=9,restart=200+300', 'cosine')
    """
    parts, again = (part for part in schedule.split(",") if part[:8] != "restart="), "+".join(map(str, steps))
    return ",".join([*parts, f"restart={again}"] if again else parts)


_RESTARTS = FormPart("restart", "growing whole numbers of at least 1 with + between them", _growing)


class StepSchedule(NamedTuple):
    """How the step size changes."""

    shape: Literal["constant", "linear", "cosine"]
    warmup: int = 0
    """Steps over which it first rises."""
    restarts: tuple[int, ...] = ()
    """Steps at which it begins again."""

    @classmethod
    def parse(cls, text: str) -> StepSchedule:
        """Return what the text of --schedule means.

        >>> StepSchedule.parse("cosine,warmup=100,restart=200+400")
        StepSchedule(shape='cosine', warmup=100, restarts=(200, 400))
        """
        shape, warmup = setting(text, whole("warmup", 0), 0, "cosine,warmup=100")
        shape, restarts = setting(shape, _RESTARTS, (), "cosine,restart=200+400")
        if shape not in ("constant", "linear", "cosine"):
            raise ValueError("must be constant, linear or cosine, or with a warm-up, like cosine,warmup=100")
        if restarts and shape == "constant":
            raise ValueError("has a restart, but constant does not fall; leave the restart out")
        return cls(cast("Literal['constant', 'linear', 'cosine']", shape), warmup, restarts)

    @property
    def changes(self) -> bool:
        """Whether it changes at all."""
        return self != StepSchedule("constant")


def numbers(text: str) -> tuple[float, ...]:
    """Return finite numbers.

    >>> numbers("1,.5")
    (1.0, 0.5)
    """
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (math.nan,)
    if not all(map(math.isfinite, values)):
        raise ValueError("must be finite numbers separated by commas, like 1,5")
    return values


def positive_numbers(text: str) -> tuple[float, ...]:
    """Return finite numbers above 0."""
    values = numbers(text)
    if min(values) <= 0:
        raise ValueError("must be above 0")
    return values


def layer_sizes(text: str) -> tuple[int, ...]:
    """Return the units of hidden layers.

    >>> layer_sizes("64,32"), layer_sizes("none")
    ((64, 32), ())
    """
    if text == "none":
        return ()
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise ValueError("must be whole numbers of at least 1, like 32 or 64,32, or none for no hidden layer")
    return tuple(map(int, text.split(",")))


def slowdowns(text: str) -> Mapping[int, float]:
    """Return the factor on the compute time, by worker.

    >>> slowdowns("0=4,3=2.5")
    {0: 4.0, 3: 2.5}
    """
    pairs = re.findall(r"(\d+)=([^,=]+)(?:,|$)", text)
    try:
        factors = {int(worker): float(factor) for worker, factor in pairs}
    except ValueError:
        factors = {}
    if (
        text != ",".join(f"{worker}={factor}" for worker, factor in pairs)
        or len(factors) < len(pairs)
        or not all(0 < factor < math.inf for factor in factors.values())
    ):
        raise ValueError(
            "must be WORKER=FACTOR pairs separated by commas, each worker once, factors finite and above 0, "
            "like 0=4,3=2.5"
        )
    return factors


def service_law(text: str) -> Law | None:
    """Return the law of the server's times; None where it takes no time."""
    return None if text == "none" else parse_law(text)


def every(text: str) -> int:
    """Return every how many updates one is recorded; 0 records none.

    >>> every("all"), every("every:10"), every("none")
    (1, 10, 0)
    """
    if not re.fullmatch(r"all|none|every:[1-9]\d*", text):
        raise ValueError("must be all, none or every:N with N at least 1, like every:10")
    return {"all": 1, "none": 0}.get(text) or int(text.partition(":")[2] or 0)


def profile(text: str | None) -> tuple[str, int, int] | None:
    """Return a file, and the first and the last update that are profiled; None if none are.

    >>> profile("a.json"), profile("b@c.json@100-100")
    (('a.json', 2, 11), ('b@c.json', 100, 100))
    """
    if text is None:
        return None
    found = re.fullmatch(r"(.*\.json)(?:@([1-9]\d*)-([1-9]\d*))?", text)
    if not found or int(found[2] or 0) > int(found[3] or 0):
        raise ValueError("must be FILE.json or FILE.json@FIRST-LAST, like profile.json@100-110")
    return found[1], int(found[2] or 2), int(found[3] or 11)


def staleness_bound(text: str) -> float:
    """Return up to which staleness a gradient counts fully.

    >>> staleness_bound("none"), staleness_bound("inverse"), staleness_bound("threshold:8")
    (inf, 1, 8)
    """
    if not re.fullmatch(r"none|inverse|threshold:\d+", text):
        raise ValueError(
            "must be none, inverse or threshold:T with T a whole number of at least 0, like threshold:8"
        )
    return math.inf if text == "none" else max(1, int(text.partition(":")[2] or 1))


class Restarts(NamedTuple):
    """How many times a lost process is started again, within so many seconds."""

    most: int
    within_s: float

    @classmethod
    def parse(cls, text: str) -> Restarts:
        """Return what the text of --restarts means.

        >>> Restarts.parse("3"), Restarts.parse("1,within=60")
        (Restarts(most=3, within_s=600.0), Restarts(most=1, within_s=60.0))
        """
        within = number("within", "of seconds above 0", lambda s: 0 < s < math.inf, of=seconds)
        most, within_s = setting(text, within, 600.0, "3,within=60")
        if not re.fullmatch(r"\d{1,9}", most):
            raise ValueError("must be a whole number of at least 0, and may have a window, like 3,within=60")
        return cls(int(most), within_s)


def folder(text: str) -> Path:
    """Return the folder on this machine for what is written to a path or to `s3://BUCKET/PREFIX`."""
    if not text.strip():
        raise ValueError("must name a folder, like runs")
    return local_folder(text) if is_s3(text) else Path(text)


Tier = Literal["memory", "disk", "peer", "s3"]


def checkpoint_tiers(text: str | None) -> Mapping[Tier, float | None]:
    """Return the seconds between two checkpoints by tier, None for `auto`.

    >>> checkpoint_tiers("30"), checkpoint_tiers("auto"), checkpoint_tiers("memory=1,s3=auto")
    ({'disk': 30.0}, {'disk': None}, {'memory': 1.0, 's3': None})
    """
    return {tier: _interval(value) for tier, value in _by_tier(_with_mtbf(text)[0]).items()}


def checkpoint_mtbf(text: str | None) -> float | None:
    """Return the mean seconds between two losses of the driver.

    >>> checkpoint_mtbf("auto,mtbf=3600")
    3600.0
    """
    return _with_mtbf(text)[1]


def _with_mtbf(text: str | None) -> tuple[str, float | None]:
    mtbf = number("mtbf", "of seconds above 0", lambda s: 0 < s < math.inf, of=seconds)
    return setting(text or "", mtbf, None, "auto,mtbf=3600")


def kept_by_tier(text: str) -> Mapping[Tier, int]:
    """Return how many checkpoints each tier keeps; a lone number is for all.

    >>> kept_by_tier("disk=3,s3=10")
    {'disk': 3, 's3': 10}
    """
    rule = "must be whole numbers of at least 1, like 3 or disk=3,s3=10"
    if text.isdigit():
        text = ",".join(f"{tier}={text}" for tier in get_args(Tier))
    try:
        kept = {tier: int(value) for tier, value in _by_tier(text).items()}
    except ValueError as error:
        raise ValueError(rule if "invalid literal" in str(error) else str(error)) from None
    if not kept or min(kept.values()) < 1:
        raise ValueError(rule)
    return kept


def _by_tier(text: str) -> dict[Tier, str]:
    found: dict[Tier, str] = {}
    for part in filter(None, text.split(",")):
        tier, equals, value = part.partition("=")
        if not equals:
            tier, value = "disk", tier
        if tier not in get_args(Tier):
            raise ValueError(f"there is no tier '{tier}'; choose among {', '.join(get_args(Tier))}")
        if tier in found:
            raise ValueError(f"names the tier {tier} twice; give it once")
        found[tier] = value  # type: ignore[index]
    return found


def _interval(value: str) -> float | None:
    if value == "auto":
        return None
    try:
        every_s = seconds(value)
    except ValueError:
        every_s = math.nan
    if not 0 < every_s < math.inf:
        raise ValueError(f"must be seconds above 0, or auto, like 30 or memory=1,disk=auto, not '{value}'")
    return every_s
