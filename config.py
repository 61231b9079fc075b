"""The options of a run: frozen dataclasses, checked when they are made.

Every field is one option of the command line, one key of `config.yaml` and nothing else: values
derived from options are properties. A bad value raises ValueError in one line that names the option,
the rule and, where it is not plain from the rule, the remedy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from dsgd.cluster.laws import Law, Trace, parse_law
from dsgd.records.s3 import is_s3, local_folder

MEGABYTE = 1_000_000
MOST_EXPORTED = 256  # workers: some 60 series each, that a scrape must not take long to write


def require(condition: bool, option: str, got: object, rule: str) -> None:
    """Raise ValueError, naming the option, unless the condition holds."""
    if not condition:
        raise ValueError(f"--{option} {got}: {rule}")


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (math.nan,)
    rule = "must be finite numbers separated by commas, like 1,5"
    require(all(map(math.isfinite, values)), option, text, rule)
    return values


def _law(option: str, text: str) -> Law:
    try:
        return parse_law(text)
    except ValueError as error:
        raise ValueError(f"--{option}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is learned, from which data."""

    dataset: Literal["xor", "digits", "quadratic", "none"] = "xor"
    """xor: points labelled by the sign of a product. digits: scikit-learn's 8x8 handwritten digits.
    quadratic: worker i minimises a_i/2 |w - x_i|^2. none: no weights, the run only schedules."""

    model: Literal["mlp", "logistic"] = "mlp"
    """For xor and digits: multi-layer perceptron, or logistic regression."""

    hidden: str = "16"
    """Units of the mlp's hidden layers, separated by commas."""

    samples: int | None = None
    """Training samples of all workers together. None: 4096 for xor, all 1438 for digits."""

    dim: int | None = None
    """Features of xor (None: 2) or weights of the quadratic (None: 1)."""

    label_noise: float = 0.0
    """Share of the training labels (xor, digits) that are wrong, 0 to 1."""

    partition: str = "iid"
    """How samples are parted among workers: iid | label (sorted by class) | dirichlet:ALPHA (each worker
    its own mix of classes, the more uneven the smaller ALPHA)."""

    curvatures: str = "1"
    """Quadratic: a_i, one value a worker or one for all."""

    optima: str = "0"
    """Quadratic: x_i (in every coordinate), one value a worker or one for all. Weights start at 1."""

    grad_noise: float = 0.0
    """Quadratic: standard deviation of the gradient noise in each coordinate."""

    def __post_init__(self) -> None:
        require(self.samples is None or self.samples >= 1, "samples", self.samples, "must be at least 1")
        least = 2 if self.dataset == "xor" else 1
        require(self.dim is None or self.dim >= least, "dim", self.dim, f"must be at least {least} here")
        require(0 <= self.label_noise <= 1, "label-noise", self.label_noise, "must lie in [0, 1]")
        require(0 <= self.grad_noise < math.inf, "grad-noise", self.grad_noise, "must be finite, at least 0")
        require(min(self.curvature_values) > 0, "curvatures", self.curvatures, "must be above 0")
        require(bool(self.optimum_values), "optima", self.optima, "must have a value")
        require(
            bool(re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", self.hidden)),
            "hidden",
            self.hidden,
            "must be whole numbers of at least 1, like 32 or 64,32 (for no hidden layer: --model logistic)",
        )
        dirichlet = re.fullmatch(r"dirichlet:(\d*\.?\d+(e-?\d+)?)", self.partition)
        require(
            self.partition in ("iid", "label") or bool(dirichlet and 0 < float(dirichlet[1]) < math.inf),
            "partition",
            self.partition,
            "must be iid, label or dirichlet:ALPHA with ALPHA above 0, like dirichlet:0.3",
        )

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        return tuple(map(int, self.hidden.split(",")))

    @property
    def num_samples(self) -> int:
        """Training samples of xor."""
        return self.samples or 4096

    @property
    def num_dims(self) -> int:
        return self.dim or (1 if self.dataset == "quadratic" else 2)

    @property
    def curvature_values(self) -> tuple[float, ...]:
        return _numbers("curvatures", self.curvatures)

    @property
    def optimum_values(self) -> tuple[float, ...]:
        return _numbers("optima", self.optima)


@dataclass(frozen=True, kw_only=True)
class TimingConfig:
    """How long things take. LAW: none | constant:1 | exponential:1 (mean) | shifted-exponential:1,1
    (shift, mean) | uniform:.5,1.5 | normal:1,.1 (mean, sigma; cut at 0) | lognormal:1,.5 (median, sigma) |
    pareto:2,1 (alpha, scale) | markov:1,5,.05,.2 (fast, slow, P(fast to slow), P(slow to fast)) |
    trace:FILE.csv (columns: seconds and, if wanted, worker).
    """

    compute_time: str = "none"
    """LAW of seconds per mini-batch. On Ray a step lasts max(real compute, draw); `none` draws nothing, and
    in the simulator such a step lasts 1 virtual second."""

    slowdown: str = ""
    """Factors by worker on the compute time, like 0=4,3=2.5 (worker 0 is four times slower)."""

    padding_mb: float = 0.0
    """Zeros that travel with the weights and with each result, in MB (10^6 bytes)."""

    latency_s: float = 0.0
    """Seconds a message travels each way (sim only)."""

    server_bytes_per_s: float = math.inf
    """Speed of the server's link in each direction, first come, first served (sim only)."""

    server_time: str = "none"
    """LAW of the seconds the server takes for each result it gets (sim only); `none` takes no time."""

    def __post_init__(self) -> None:
        require(0 <= self.padding_mb < math.inf, "padding-mb", self.padding_mb, "must be finite, at least 0")
        require(0 <= self.latency_s < math.inf, "latency-s", self.latency_s, "must be finite, at least 0")
        require(self.server_bytes_per_s > 0, "server-bytes-per-s", self.server_bytes_per_s, "must be above 0")
        _ = self.compute_law, self.server_law, self.slowdowns

    @property
    def padding_bytes(self) -> int:
        """Padding of a message, whole float32 numbers."""
        return int(self.padding_mb * MEGABYTE) // 4 * 4

    @property
    def compute_law(self) -> Law:
        return _law("compute-time", self.compute_time)

    @property
    def server_law(self) -> Law | None:
        return None if self.server_time == "none" else _law("server-time", self.server_time)

    @property
    def slowdowns(self) -> Mapping[int, float]:
        """Factor on the compute time, by worker."""
        pairs = re.findall(r"(\d+)=([^,=]+)(?:,|$)", self.slowdown)
        factors = {}
        for worker, text in pairs:
            try:
                factors[int(worker)] = float(text)
            except ValueError:
                factors[int(worker)] = math.nan
        require(
            self.slowdown == ",".join(f"{i}={x}" for i, x in pairs)
            and len(factors) == len(pairs)
            and all(0 < x < math.inf for x in factors.values()),
            "slowdown",
            self.slowdown,
            "must be WORKER=FACTOR pairs separated by commas, each worker once, factors finite and above 0, "
            "like 0=4,3=2.5",
        )
        return factors


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """When a run ends before its budget is spent, and how often it is evaluated."""

    max_seconds: float = math.inf
    """Seconds on the engine's clock (wall seconds on Ray, virtual ones in the sim) before the run stops."""

    target_loss: float | None = None
    """Stop once an evaluation's loss is at or below this; None never does."""

    eval_every: int = 10
    """Steps between two evaluations: every N x num_workers mini-batches, and at the end. 0: only at the end.
    Evaluation is off the clock."""

    def __post_init__(self) -> None:
        require(self.max_seconds > 0, "max-seconds", self.max_seconds, "must be above 0")
        target = self.target_loss
        require(target is None or math.isfinite(target), "target-loss", target, "must be a finite number")
        require(self.eval_every >= 0, "eval-every", self.eval_every, "must be at least 0")
        rule = "is looked for in evaluations; give --eval-every 1 or more"
        require(target is None or self.eval_every > 0, "target-loss", target, rule)


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """The real workers (--engine ray)."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where gradients are computed. auto: cuda on Ray if the cluster has GPUs enough, else cpu."""

    gpus_per_worker: float = 1.0
    """Share of a GPU that a worker on cuda takes, like 0.25 for four workers on one GPU."""

    max_restarts: int = 3
    """How often a worker that dies is started again before the run fails."""

    start_timeout_s: float = 60.0
    """Seconds to wait for the cluster to have what the workers need."""

    def __post_init__(self) -> None:
        share = self.gpus_per_worker
        whole_or_part = 0 < share <= 1 or (share > 1 and share.is_integer())
        require(whole_or_part, "gpus-per-worker", share, "must lie in (0, 1] or be a whole number")
        require(self.max_restarts >= 0, "max-restarts", self.max_restarts, "must be at least 0")
        timeout = self.start_timeout_s
        require(0 < timeout < math.inf, "start-timeout-s", timeout, "must be finite and above 0")


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """What is kept of a run."""

    out: str = "runs"
    """Folder of the run records. s3://BUCKET/PREFIX: they are written to runs/s3/BUCKET/PREFIX and uploaded
    when the run ends, however it does."""

    run_name: str | None = None
    """Name of this run's record in it; a taken one is refused. None: time, mode, workers and seed."""

    record: str = "all"
    """Which updates are written to updates.jsonl: all | every:N | none."""

    trace_last: int | None = None
    """How many of the recorded updates, counted from the end, trace.json shows (for Perfetto). None: as many
    as make a file of a few MB. 0: no trace.json."""

    tensorboard: bool = False
    """Write the scalars for TensorBoard too, while the run goes on (needs the extra `tensorboard`)."""

    quiet: bool = False
    """Print nothing but the record's path."""

    def __post_init__(self) -> None:
        last = self.trace_last
        require(last is None or last >= 0, "trace-last", last, "must be at least 0, or None")
        rule = "shows recorded updates, and --record none keeps none; use --record all"
        require(not last or self.record != "none", "trace-last", last, rule)
        require(
            bool(re.fullmatch(r"all|none|every:[1-9]\d*", self.record)),
            "record",
            self.record,
            "must be all, none or every:N with N at least 1, like every:10",
        )
        name = self.run_name
        require(
            name is None or bool(re.fullmatch(r"[\w][\w.+=-]{0,199}", name)),
            "run-name",
            name,
            "must be letters, digits and . _ + = - only, 200 at most, for it names a folder",
        )
        require(bool(self.out.strip()), "out", repr(self.out), "must name a folder, like runs")
        try:
            _ = self.folder
        except ValueError as error:
            require(False, "out", self.out, str(error))

    @property
    def folder(self) -> Path:
        """The folder on this machine in which the records are written."""
        return local_folder(self.out) if is_s3(self.out) else Path(self.out)

    @property
    def record_every(self) -> int:
        """Every how many updates one is written; 0 writes none."""
        return {"all": 1, "none": 0}.get(self.record) or int(self.record.partition(":")[2] or 0)


@dataclass(frozen=True, kw_only=True)
class LiveConfig:
    """What can be seen of a run while it goes on (docs/observing.md)."""

    metrics_port: int | None = None
    """Port at which Prometheus finds the metrics, under /metrics; 0 takes any that is free."""

    metrics_host: str = "127.0.0.1"
    """Address of that port: 0.0.0.0 lets other machines in."""

    metrics_linger_s: float = 0.0
    """Wall seconds that the metrics and the live page of a finished run stay; ctrl-C ends them."""

    pushgateway: str | None = None
    """URL of a Prometheus Pushgateway that gets the metrics every ten seconds and at the end."""

    dashboard: int | None = None
    """Port of this machine (127.0.0.1) at which a browser sees the run live; 0 takes any that is free."""

    def __post_init__(self) -> None:
        for option, port in (("metrics-port", self.metrics_port), ("dashboard", self.dashboard)):
            require(port is None or 0 <= port < 65536, option, port, "must be a port, 0 to 65535")
        same = self.dashboard and self.dashboard == self.metrics_port
        require(not same, "dashboard", self.dashboard, "is --metrics-port already; choose another port")
        host = self.metrics_host
        require(bool(host.strip()), "metrics-host", repr(host), "must be an address, like 0.0.0.0")
        known = host == "127.0.0.1" or self.metrics_port is not None
        require(known, "metrics-host", host, "belongs to --metrics-port; give that too")
        linger, nothing = self.metrics_linger_s, self.metrics_port is None and self.dashboard is None
        require(0 <= linger < math.inf, "metrics-linger-s", linger, "must be finite, at least 0")
        rule = "keeps --metrics-port and --dashboard open; give one of them"
        require(not (linger and nothing), "metrics-linger-s", linger, rule)
        url, rule = self.pushgateway, "must be a URL like http://HOST:9091, without a password"
        good = url is None or bool(re.fullmatch(r"https?://[^/@\s]+(/[^@\s]*)?", url))
        require(good, "pushgateway", url, rule)

    def require_few(self, num_workers: int) -> None:
        """Raise ValueError if metrics are asked for and there are too many workers for them."""
        rule = f"has series of each worker, of {MOST_EXPORTED} at most; use the record or --dashboard"
        for option, value in (("metrics-port", self.metrics_port), ("pushgateway", self.pushgateway)):
            require(value is None or num_workers <= MOST_EXPORTED, option, value, rule)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One run."""

    mode: str
    """The strategy; the modes are listed above."""

    strategy_file: str | None = None
    """A strategy of your own, like my/train_mine.py, whose mode is then `mine`. None: --mode is one of those
    listed above."""

    engine: Literal["ray", "sim", "both"] = "ray"
    """ray: real workers in wall time. sim: the same strategy in virtual time, real gradients. both: one
    after the other, and a table of where the simulator is off."""

    num_workers: int = 4
    """P, the number of workers."""

    steps: int = 100
    """The budget: num_workers x steps mini-batches in every mode, pooled (where workers do not wait for
    each other, a fast one takes a larger share)."""

    batch_size: int = 32
    """Samples in a mini-batch of xor and digits."""

    lr: float = 0.1
    """Step size. Compare docs/strategies before comparing modes under one step size."""

    momentum: float = 0.0
    """Heavy-ball momentum, 0 to below 1; on the server or, in local modes, in each worker."""

    seed: int = 0
    """Of every random draw: the same seed gives the same data, delays and initial weights in every mode."""

    data: DataConfig = field(default_factory=DataConfig)
    timing: TimingConfig = field(default_factory=TimingConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    live: LiveConfig = field(default_factory=LiveConfig)

    def __post_init__(self) -> None:
        require(self.num_workers >= 1, "num-workers", self.num_workers, "must be at least 1")
        require(self.steps >= 1, "steps", self.steps, "must be at least 1")
        require(self.batch_size >= 1, "batch-size", self.batch_size, "must be at least 1")
        require(0 < self.lr < math.inf, "lr", self.lr, "must be finite and above 0")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "must lie in [0, 1)")
        require(0 <= self.seed < 2**63, "seed", self.seed, "must lie in [0, 2^63)")
        workers = f"workers are numbered 0 to {self.num_workers - 1}"
        for worker in self.timing.slowdowns:
            require(
                worker < self.num_workers, "slowdown", self.timing.slowdown, f"{workers}; name only those"
            )
        law = self.timing.compute_law
        if isinstance(law, Trace) and law.per_worker:
            enough = len(law.rows) >= self.num_workers
            require(enough, "compute-time", self.timing.compute_time, f"{workers}; give each of them a row")
        for option, values in (
            ("curvatures", self.data.curvature_values),
            ("optima", self.data.optimum_values),
        ):
            rule = f"must have one value, or one for each of the {self.num_workers} workers"
            require(len(values) in (1, self.num_workers), option, getattr(self.data, option), rule)
        rule = "cannot be reached without weights; choose another --dataset than none"
        target = self.stop.target_loss
        require(target is None or self.data.dataset != "none", "target-loss", target, rule)
        self.live.require_few(self.num_workers)
        rule = "keeps no update, and --engine both compares them; use --record all"
        require(self.engine != "both" or self.output.record != "none", "record", "none", rule)
        if self.engine != "sim":
            for option in ("latency_s", "server_bytes_per_s", "server_time"):
                value = getattr(self.timing, option)
                default = TimingConfig.__dataclass_fields__[option].default
                rule = "is simulated only; add --engine sim, or leave it out (on Ray the network is real)"
                require(value == default, option.replace("_", "-"), value, rule)

    @property
    def budget(self) -> int:
        """Mini-batches of the run, all workers together."""
        return self.num_workers * self.steps


@dataclass(frozen=True, kw_only=True)
class LocalConfig(TrainConfig):
    """The options of strategies whose workers take several steps on weights of their own."""

    local_steps: int = 8
    """H, the mini-batches each worker takes between two exchanges with the server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.local_steps >= 1, "local-steps", self.local_steps, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class ExchangeConfig(LocalConfig):
    """The options of local strategies that exist with a barrier and without."""

    exchange: Literal["sync", "async"] = "sync"
    """sync: all workers exchange at a barrier. async: each by itself, when its local steps are done."""


@dataclass(frozen=True, kw_only=True)
class AsynchronousConfig(TrainConfig):
    """The options of strategies that apply each gradient as it comes."""

    lr_scaling: Literal["none", "workers"] = "none"
    """none: each gradient moves the weights by lr. workers: by lr / num_workers, so that as many gradients
    move them as far as in a synchronous mode, which averages."""

    staleness_lr: str = "none"
    """Smaller steps for staler gradients (Zhang et al. 2015). none: no. inverse: staleness t counts
    1/max(1, t). threshold:T: it counts fully up to T, and T/t beyond."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "must be none, inverse or threshold:T with T a whole number of at least 0, like threshold:8"
        known = bool(re.fullmatch(r"none|inverse|threshold:\d+", self.staleness_lr))
        require(known, "staleness-lr", self.staleness_lr, rule)

    def lr_for(self, gradients: int) -> float:
        """Step size of an update that averages `gradients` of them."""
        return self.lr * gradients / self.num_workers if self.lr_scaling == "workers" else self.lr

    def weight(self, staleness: int) -> float:
        """How much a gradient of this staleness counts, after `--staleness-lr`."""
        if self.staleness_lr == "none":
            return 1.0
        bound = max(1, int(self.staleness_lr.partition(":")[2] or 1))
        return min(1.0, bound / max(1, staleness))


def option_fields(config_type: type) -> dict[str, Field[Any]]:
    """Return the options of a configuration by name, those of its groups among them."""
    found = {}
    for f in fields(config_type):
        group = f.default_factory
        if isinstance(group, type) and is_dataclass(group):
            found |= option_fields(group)
        else:
            found[f.name] = f
    return found


def options(cfg: Any) -> dict[str, Any]:
    """Return a configuration as a flat mapping from option to value, as `config.yaml` has it."""
    flat: dict[str, Any] = {}
    for f in fields(cfg):
        value = getattr(cfg, f.name)
        flat |= options(value) if is_dataclass(value) else {f.name: value}
    return flat
