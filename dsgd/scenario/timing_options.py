"""How long things take: compute times, slower workers, and the server's link."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt

from dsgd.core import option_texts as texts
from dsgd.core.option_effects import SIMULATED
from dsgd.core.option_rules import FINITE, Checked, Parsed, require
from dsgd.core.time_laws import Trace, parse_law

MEGABYTE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class TimingConfig(Checked):
    """How long things take; times may have a unit, like 80ms or 2h, and rates, like 200Mbit or 25MB/s. LAW:
    none | constant:1 | exponential:1 (mean) | shifted-exponential:1,1 (shift, mean) | uniform:.5,1.5 |
    normal:1,.1 (mean, sigma; cut at 0) | lognormal:1,.5 (median, sigma) | pareto:2,1 (alpha, scale) |
    markov:1,5,.05,.2 (fast, slow, P(fast to slow), P(slow to fast)) | trace:FILE.csv (columns: seconds and,
    if wanted, worker).
    """

    compute_time: str = "none"
    """LAW of seconds per mini-batch. On Ray a step lasts max(real compute, draw); `none` draws nothing;
    in the simulator such a step lasts 1 virtual second."""
    compute_law = Parsed("compute_time", parse_law)

    slowdown: str = ""
    """Factors by worker on the compute time, like 0=4,3=2.5 (worker 0 is four times slower)."""
    slowdowns = Parsed("slowdown", texts.slowdowns)

    padding_mb: Annotated[float, FINITE, Ge(0)] = 0.0
    """Zeros sent along with the weights and with each result, in MB (10^6 bytes)."""

    latency_s: Annotated[float, FINITE, Ge(0)] = 0.0
    """Seconds a message travels each way. On Ray, results are held back for that time (docs/network.md)."""

    server_bytes_per_s: Annotated[float, Gt(0)] = math.inf
    """Bandwidth of the server's link in each direction, first come, first served. On Ray, results are held
    back."""

    server_time: Annotated[str, SIMULATED] = "none"
    """LAW of the seconds the server takes to process a result (sim only); `none` takes no time."""
    server_law = Parsed("server_time", texts.service_law)

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for what cannot be in this run."""
        workers = f"workers are numbered 0 to {run.num_workers - 1}"
        known = all(worker < run.num_workers for worker in self.slowdowns)
        require(known, "slowdown", self.slowdown, f"{workers}; name only those")
        law = self.compute_law
        enough = not isinstance(law, Trace) or not law.per_worker or len(law.rows) >= run.num_workers
        require(enough, "compute-time", self.compute_time, f"{workers}; give each of them a row")

    @property
    def padding_bytes(self) -> int:
        """Padding of a message, whole float32 numbers."""
        return int(self.padding_mb * MEGABYTE) // 4 * 4
