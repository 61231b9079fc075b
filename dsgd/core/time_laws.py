"""Laws of compute times: how long a mini-batch takes, as a distribution.

A law is written `name:parameters`, for example `exponential:1` (mean one second). `parse_law`
turns the text into one of the frozen dataclasses below; each knows its mean and variance, so that
tests and theory can hold the engines to them. All times are seconds per mini-batch.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import signature
from itertools import chain, repeat
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dsgd.core.units import seconds

Floats = NDArray[np.float64]


class Law(Protocol):
    """A distribution of seconds per mini-batch."""

    syntax: ClassVar[str]

    @property
    def mean_s(self) -> float:
        """Expected seconds per mini-batch (infinite where the law has no mean)."""

    @property
    def variance_s2(self) -> float:
        """Variance in seconds squared (infinite where the law has none)."""

    def sample(self, rng: Generator, n: int) -> Floats:
        """Draw `n` independent times, shape (n,), in seconds."""


@dataclass(frozen=True)
class NoDelay:
    """No added time: a step lasts as long as it really computes (one virtual second in the sim)."""

    syntax: ClassVar[str] = "none"
    mean_s: ClassVar[float] = 1.0
    variance_s2: ClassVar[float] = 0.0

    def sample(self, rng: Generator, n: int) -> Floats:
        return np.ones(n)


@dataclass(frozen=True)
class Constant:
    """Always the same time."""

    seconds: float
    syntax: ClassVar[str] = "constant:SECONDS"
    variance_s2: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        _need(self.seconds >= 0, "SECONDS must be at least 0")

    @property
    def mean_s(self) -> float:
        return self.seconds

    def sample(self, rng: Generator, n: int) -> Floats:
        return np.full(n, self.seconds)


@dataclass(frozen=True)
class ShiftedExponential:
    """shift + Exp(mean); the mean is that of the exponential part alone (Dutta et al. 2018, sec. 4)."""

    shift_s: float
    exponential_mean_s: float
    syntax: ClassVar[str] = "shifted-exponential:SHIFT,MEAN"

    def __post_init__(self) -> None:
        _need(self.shift_s >= 0, "SHIFT must be at least 0")
        _need(self.exponential_mean_s > 0, "MEAN must be above 0")

    @property
    def mean_s(self) -> float:
        return self.shift_s + self.exponential_mean_s

    @property
    def variance_s2(self) -> float:
        return self.exponential_mean_s**2

    def sample(self, rng: Generator, n: int) -> Floats:
        return self.shift_s + self.exponential_mean_s * rng.standard_exponential(n)


@dataclass(frozen=True)
class Exponential(ShiftedExponential):
    """The memoryless law: a shifted exponential whose shift is 0."""

    syntax: ClassVar[str] = "exponential:MEAN"

    def __init__(self, mean_s: float) -> None:
        super().__init__(0.0, mean_s)


@dataclass(frozen=True)
class Uniform:
    """Uniform between two times."""

    low_s: float
    high_s: float
    syntax: ClassVar[str] = "uniform:LOW,HIGH"

    def __post_init__(self) -> None:
        _need(0 <= self.low_s <= self.high_s, "0 <= LOW <= HIGH must hold")

    @property
    def mean_s(self) -> float:
        return (self.low_s + self.high_s) / 2

    @property
    def variance_s2(self) -> float:
        return (self.high_s - self.low_s) ** 2 / 12

    def sample(self, rng: Generator, n: int) -> Floats:
        return rng.uniform(self.low_s, self.high_s, n)


@dataclass(frozen=True)
class Normal:
    """A normal law cut at 0: negative draws become 0 (the rectified normal)."""

    mu_s: float
    sigma_s: float
    syntax: ClassVar[str] = "normal:MEAN,SIGMA"

    def __post_init__(self) -> None:
        _need(self.mu_s >= 0, "MEAN must be at least 0")
        _need(self.sigma_s > 0, "SIGMA must be above 0")

    @property
    def mean_s(self) -> float:
        z = self.mu_s / self.sigma_s
        return self.mu_s * _normal_cdf(z) + self.sigma_s * _normal_pdf(z)

    @property
    def variance_s2(self) -> float:
        z = self.mu_s / self.sigma_s
        second_moment = (self.mu_s**2 + self.sigma_s**2) * _normal_cdf(z)
        second_moment += self.mu_s * self.sigma_s * _normal_pdf(z)
        return second_moment - self.mean_s**2

    def sample(self, rng: Generator, n: int) -> Floats:
        return np.maximum(0.0, rng.normal(self.mu_s, self.sigma_s, n))


@dataclass(frozen=True)
class Lognormal:
    """median * exp(sigma Z), Z standard normal."""

    median_s: float
    sigma: float
    syntax: ClassVar[str] = "lognormal:MEDIAN,SIGMA"

    def __post_init__(self) -> None:
        _need(self.median_s > 0, "MEDIAN must be above 0")
        _need(self.sigma > 0, "SIGMA must be above 0")

    @property
    def mean_s(self) -> float:
        return self.median_s * math.exp(self.sigma**2 / 2)

    @property
    def variance_s2(self) -> float:
        return self.mean_s**2 * math.expm1(self.sigma**2)

    def sample(self, rng: Generator, n: int) -> Floats:
        return self.median_s * rng.lognormal(0.0, self.sigma, n)


@dataclass(frozen=True)
class Pareto:
    """P(X > x) = (scale / x)^alpha for x >= scale: the heavy tail of real clusters."""

    alpha: float
    scale_s: float
    syntax: ClassVar[str] = "pareto:ALPHA,SCALE"

    def __post_init__(self) -> None:
        _need(self.alpha > 0, "ALPHA must be above 0")
        _need(self.scale_s > 0, "SCALE must be above 0")

    @property
    def mean_s(self) -> float:
        return self.alpha * self.scale_s / (self.alpha - 1) if self.alpha > 1 else math.inf

    @property
    def variance_s2(self) -> float:
        if self.alpha <= 2:
            return math.inf
        return self.scale_s**2 * self.alpha / ((self.alpha - 1) ** 2 * (self.alpha - 2))

    def sample(self, rng: Generator, n: int) -> Floats:
        return self.scale_s * (1.0 + rng.pareto(self.alpha, n))


@dataclass(frozen=True)
class Markov:
    """A worker that is fast or slow, with memory: bursts of slowness as on shared machines.

    Each worker has its own chain, which starts in the chain's stationary distribution, so the mean
    and the variance hold at every step.
    """

    fast_s: float
    slow_s: float
    p_fast_to_slow: float
    p_slow_to_fast: float
    syntax: ClassVar[str] = "markov:FAST,SLOW,P(FAST->SLOW),P(SLOW->FAST)"

    def __post_init__(self) -> None:
        _need(0 <= self.fast_s <= self.slow_s, "0 <= FAST <= SLOW must hold")
        for p in (self.p_fast_to_slow, self.p_slow_to_fast):
            _need(0 < p <= 1, "both probabilities must lie in (0, 1]")

    @property
    def p_slow(self) -> float:
        """Long-run share of slow mini-batches."""
        return self.p_fast_to_slow / (self.p_fast_to_slow + self.p_slow_to_fast)

    @property
    def mean_s(self) -> float:
        return self.fast_s + self.p_slow * (self.slow_s - self.fast_s)

    @property
    def variance_s2(self) -> float:
        return self.p_slow * (1 - self.p_slow) * (self.slow_s - self.fast_s) ** 2

    def sample(self, rng: Generator, n: int) -> Floats:
        return self.walk(rng, n, None)[0]

    def walk(self, rng: Generator, n: int, slow: bool | None) -> tuple[Floats, bool | None]:
        """Draw `n` times of one chain after the state `slow` (None: before its first step).

        Returns the times, shape (n,), and the state of the last of them.
        """
        times = np.empty(n)
        for k, u in enumerate(rng.random(n)):
            if slow is None:
                slow = bool(u < self.p_slow)
            else:
                slow = bool(u >= self.p_slow_to_fast if slow else u < self.p_fast_to_slow)
            times[k] = self.slow_s if slow else self.fast_s
        return times, slow


@dataclass(frozen=True)
class Trace:
    """Times replayed from a CSV file.

    The file has a header with a column `seconds`; each worker replays the rows in their order and
    starts again at the end. With a second column `worker`, worker i replays the rows that carry i.
    """

    path: str
    rows: tuple[tuple[float, ...], ...]
    per_worker: bool
    syntax: ClassVar[str] = "trace:FILE.csv"

    @property
    def mean_s(self) -> float:
        return float(np.mean(np.concatenate(self.rows)))

    @property
    def variance_s2(self) -> float:
        return float(np.var(np.concatenate(self.rows)))

    def sample(self, rng: Generator, n: int) -> Floats:
        return self.replay(0, 0, n)

    def replay(self, worker: int, step: int, n: int) -> Floats:
        """Return the times of `worker`'s steps [step, step + n)."""
        rows = self.rows[worker if self.per_worker else 0]
        return np.array([rows[k % len(rows)] for k in range(step, step + n)])


_LAWS: dict[str, Callable[..., Any]] = {
    "constant": Constant,
    "exponential": Exponential,
    "shifted-exponential": ShiftedExponential,
    "uniform": Uniform,
    "normal": Normal,
    "lognormal": Lognormal,
    "pareto": Pareto,
    "markov": Markov,
}
SYNTAX = ("none", *(law.syntax for law in _LAWS.values()), Trace.syntax)  # type: ignore[attr-defined]


def parse_law(text: str) -> Law:
    """Return the law that `text` names.

    Raises ValueError, which says what a law looks like but not what `text` is, for anything else.

    >>> parse_law("shifted-exponential:1,.5").mean_s
    1.5
    """
    name, _, parameters = text.partition(":")
    if text == "none":
        return NoDelay()
    if name == "trace":
        return _read_trace(parameters)
    if name not in _LAWS:
        raise ValueError(f"is not a law of times; write one of {' | '.join(SYNTAX)}")
    law = _LAWS[name]
    readers = chain((_reader(name) for name in signature(law).parameters), repeat(float))
    try:
        values = [read(p) for read, p in zip(readers, parameters.split(","), strict=False)]
    except ValueError:
        values = [math.nan]
    try:
        _need(all(map(math.isfinite, values)), "every parameter must be a finite number")
        parsed: Law = law(*values)
    except TypeError:
        raise ValueError(f"has {len(values)} parameters; write {law.syntax}") from None  # type: ignore[attr-defined]
    except ValueError as error:
        raise ValueError(f"{error}; write {law.syntax}") from None  # type: ignore[attr-defined]
    return parsed


def _reader(parameter: str) -> Callable[[str], float]:
    return seconds if parameter.endswith(("_s", "seconds")) else float


def _read_trace(path: str) -> Trace:
    file = Path(path)
    seen = file.stat() if file.is_file() else None
    return _parse_trace(path, (seen.st_mtime_ns, seen.st_size, seen.st_ino) if seen else ())


@cache
def _parse_trace(path: str, seen: tuple[int, ...]) -> Trace:
    """Read a trace once: a pipe cannot be read twice, and options ask for their law more than once."""
    times: dict[int, list[float]] = {}
    number = 1
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or ()
            for row in reader:
                number = reader.line_num
                seconds = float(row["seconds"])
                worker = int(row["worker"]) if "worker" in names else 0
                _need(0 <= seconds < math.inf and worker >= 0 and None not in row, "out of range")
                times.setdefault(worker, []).append(seconds)
    except OSError as error:
        raise ValueError(f"cannot read the trace file '{path}': {error.strerror}; give a CSV file") from None
    except (KeyError, TypeError, ValueError, csv.Error):
        raise ValueError(
            f"the trace file '{path}', line {number}: needs a column 'seconds' with a finite time of at "
            "least 0 (and, if there is a column 'worker', a worker's number), with a decimal point"
        ) from None
    if not times:
        raise ValueError(f"the trace file '{path}' is empty; give a header 'seconds' and a time a row")
    for expected, worker in enumerate(sorted(times)):
        _need(
            worker == expected,
            f"the trace file '{path}' has no row for worker {expected}; number the workers from 0",
        )
    rows = tuple(tuple(times[i]) for i in sorted(times))
    return Trace(path, rows, per_worker="worker" in names)


def _need(condition: bool, rule: str) -> None:
    if not condition:
        raise ValueError(rule)


def _normal_pdf(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _normal_cdf(z: float) -> float:
    return (1 + math.erf(z / math.sqrt(2))) / 2
