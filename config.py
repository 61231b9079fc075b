"""The options of a run: frozen dataclasses, checked when they are made.

Every field is one option of the command line, one key of `config.yaml` and nothing else: values
derived from options are properties. The rules of one field are in its type (dsgd/core/option_rules.py);
those that concern several are code below. A bad value raises ValueError in one line that names the
option, the rule and, where the rule does not imply it, the remedy.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from dsgd.core import option_texts as texts
from dsgd.core.option_rules import (
    FINITE,
    HIDDEN,
    Checked,
    Must,
    NotWith,
    OnlyWith,
    Parsed,
    matches,
    option_fields,
    options,
    require,
    whole_or_inf,
)
from dsgd.core.time_laws import Trace, parse_law
from dsgd.scenario import possible_faults as possible
from dsgd.scenario.fault import STORE, Fault, Faults
from dsgd.scenario.faults_text import parse_faults
from dsgd.scenario.graphs import Graph
from dsgd.scenario.group_options import GroupConfig
from dsgd.scenario.network_options import NetworkConfig
from dsgd.transforms.aggregate_options import AggregateConfig
from dsgd.transforms.compress_options import CompressConfig, Dgc

__all__ = [
    "FINITE",
    "AggregateConfig",
    "AsynchronousConfig",
    "CompressConfig",
    "ComputeConfig",
    "DataConfig",
    "ExchangeConfig",
    "Ge",
    "GradientConfig",
    "GroupConfig",
    "Gt",
    "Le",
    "LiveConfig",
    "LocalConfig",
    "LogConfig",
    "Lt",
    "Must",
    "OnlyWith",
    "OutputConfig",
    "Parsed",
    "PeerConfig",
    "RayConfig",
    "StopConfig",
    "TimingConfig",
    "TrainConfig",
    "matches",
    "option_fields",
    "options",
    "require",
    "whole_or_inf",
]

MEGABYTE = 1_000_000
MOST_EXPORTED = 256  # workers, of some 60 series each: a scrape must be quick to write

BUILT_IN = ("xor", "digits", "quadratic", "none")
"""The workloads that are no torch module."""

SAMPLED = NotWith(workload=("quadratic", "none"))
LEARNED = NotWith(workload=("none",))
OF_PERCEPTRON = OnlyWith(workload=("xor", "digits"))
QUADRATIC = OnlyWith(workload="quadratic")
OF_MODULE = NotWith(workload=BUILT_IN)
ON_RAY = OnlyWith(engine=("ray", "both"))
SIMULATED = OnlyWith(engine="sim")
PORT = Must("must be a port, 0 to 65535", lambda port: 0 <= port < 65536)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """What is learned, and from which data."""

    workload: str = "xor"
    """What is learned. xor: points labelled by the sign of a product. digits: scikit-learn's 8x8 handwritten
    digits. quadratic: worker i minimises a_i/2 |w - x_i|^2. none: no weights, the run only schedules. Or a
    torch module and its data: one that is there by its name, like digits_cnn, or a file of yours with a
    function make() (docs/workloads.md)."""

    hidden: Annotated[str, OF_PERCEPTRON] = "16"
    """Units of the hidden layers of the perceptron that learns xor or digits, separated by commas. none:
    logistic regression."""
    hidden_sizes = Parsed("hidden", texts.layer_sizes)

    samples: Annotated[int | None, Ge(1), OF_PERCEPTRON] = None
    """Training samples of all workers together. None: 4096 for xor, all 1438 for digits."""

    dim: Annotated[int | None, Ge(1), OnlyWith(workload=("xor", "quadratic"))] = None
    """Features of xor (None: 2) or weights of the quadratic (None: 1)."""

    label_noise: Annotated[float, Ge(0), Le(1), OF_PERCEPTRON] = 0.0
    """Share of the training labels (xor, digits) that are wrong, 0 to 1."""

    partition: Annotated[str, SAMPLED] = "iid"
    """How samples are split among workers: iid | label (sorted by class) | dirichlet:ALPHA (each worker
    its own mix of classes, the more uneven the smaller ALPHA). With uneven=4 behind a comma the last worker
    has four times as many samples as the first, and each the same factor more than the one before."""
    split = Parsed("partition", texts.Partition.parse)

    curvatures: Annotated[str, QUADRATIC] = "1"
    """Quadratic: a_i, one value per worker or one for all."""
    curvature_values = Parsed("curvatures", texts.positive_numbers)

    optima: Annotated[str, QUADRATIC] = "0"
    """Quadratic: x_i (in every coordinate), one value per worker or one for all. Weights start at 1."""
    optimum_values = Parsed("optima", texts.numbers)

    grad_noise: Annotated[float, FINITE, Ge(0), QUADRATIC] = 0.0
    """Quadratic: standard deviation of the gradient noise in each coordinate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "must be at least 2 with --workload xor, whose labels need two coordinates"
        require(self.dataset != "xor" or self.num_dims >= 2, "dim", self.dim, rule)

    @property
    def dataset(self) -> str | None:
        """xor, digits, quadratic or none; None where a torch module is trained."""
        return self.workload if self.workload in BUILT_IN else None

    @property
    def module(self) -> str | None:
        """The workload, if it is a torch module with its data."""
        return None if self.workload in BUILT_IN else self.workload

    @property
    def name(self) -> str:
        """What the run learns: the workload, or its file without its ending."""
        return Path(self.workload).stem

    @property
    def num_samples(self) -> int:
        """Training samples of xor."""
        return self.samples or 4096

    @property
    def num_dims(self) -> int:
        return self.dim or (1 if self.dataset == "quadratic" else 2)


@dataclass(frozen=True, kw_only=True)
class TimingConfig(Checked):
    """How long things take. LAW: none | constant:1 | exponential:1 (mean) | shifted-exponential:1,1
    (shift, mean) | uniform:.5,1.5 | normal:1,.1 (mean, sigma; cut at 0) | lognormal:1,.5 (median, sigma) |
    pareto:2,1 (alpha, scale) | markov:1,5,.05,.2 (fast, slow, P(fast to slow), P(slow to fast)) |
    trace:FILE.csv (columns: seconds and, if wanted, worker).
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

    @property
    def padding_bytes(self) -> int:
        """Padding of a message, whole float32 numbers."""
        return int(self.padding_mb * MEGABYTE) // 4 * 4


@dataclass(frozen=True, kw_only=True)
class StopConfig(Checked):
    """When a run ends before its budget is spent, and how often it is evaluated."""

    max_seconds: Annotated[float, Gt(0)] = math.inf
    """Seconds on the engine's clock (wall seconds on Ray, virtual ones in the sim) before the run stops."""

    target_loss: Annotated[float | None, FINITE, LEARNED] = None
    """Stop once an evaluation's loss is at or below this; None: no early stop."""

    eval_every: Annotated[int, Ge(0)] = 10
    """Steps between two evaluations: every N x num_workers mini-batches, and at the end. 0: only at the end.
    Evaluation is off the clock."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "needs evaluations; set --eval-every to 1 or more"
        require(self.target_loss is None or self.eval_every > 0, "target-loss", self.target_loss, rule)


def is_share(gpus: float) -> bool:
    """Whether a worker can have so many GPUs: a part of one, or whole ones."""
    return 0 < gpus <= 1 or (gpus > 1 and float(gpus).is_integer())


@dataclass(frozen=True, kw_only=True)
class RayConfig(Checked):
    """The real workers (--engine ray)."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where gradients are computed. auto: cuda on Ray if the cluster has enough GPUs, else cpu."""

    gpus_per_worker: Annotated[
        float,
        Must("must lie in (0, 1] or be a whole number", is_share),
        ON_RAY,
        OnlyWith(device=("auto", "cuda")),
    ] = 1.0
    """Share of a GPU that a worker on cuda takes, like 0.25 for four workers on one GPU; with
    --ranks-per-worker, whole GPUs of each rank."""

    transport: Annotated[Literal["auto", "local", "ray"], ON_RAY, HIDDEN] = "auto"
    """How weights and gradients travel. local: by a socket and shared memory, to workers on the driver's
    machine. ray: by Ray's calls and object store. auto: each worker in the fastest way it can be reached."""

    start_timeout_s: Annotated[float, FINITE, Gt(0), ON_RAY, HIDDEN] = 60.0
    """Seconds to wait for Ray to start, and then for the workers to be ready."""

    def on(self, engine: str) -> RayConfig:
        """Return these options as far as they have an effect on that engine."""
        return RayConfig(device=self.device) if engine == "sim" else self


@dataclass(frozen=True, kw_only=True)
class ComputeConfig(Checked):
    """How the gradient of a workload's module is computed (--workload)."""

    precision: Annotated[Literal["float32", "bf16"], OF_MODULE] = "float32"
    """bf16: the loss is computed under torch's autocast, in bfloat16 where that is safe. Weights, gradients
    and evaluations are float32."""

    accumulate: Annotated[int, Ge(1), OF_MODULE] = 1
    """Parts of a mini-batch that are computed one after another, so that less memory is needed; the gradient
    is that of the whole mini-batch."""

    compile: Annotated[bool, OF_MODULE] = False
    """Compile the loss with torch.compile before the run begins; needs a C++ compiler on a CPU."""


@dataclass(frozen=True, kw_only=True)
class FaultConfig(Checked):
    """What goes wrong, and what is done about it (docs/faults.md)."""

    faults: str = ""
    """Faults, separated by semicolons, or a YAML file that lists them: KIND:WORKERS@TRIGGER, like
    kill:2@update=100; pause:1=5@t=3; slow:0=4@t=10+20; cut:1,3@t=5+2; leave:2@step=40; join:2@t=60;
    node:b@update=50; kill:s0@t=9 (a server); driver@update=200; spot:mtbf=600,back=60;
    lie:1,3=signflip@update=50."""
    fault_list = Parsed("faults", parse_faults)

    on_loss: Literal["replace", "rehost", "drop"] = "replace"
    """What becomes of a lost process's workers. replace: they wait for a new one. rehost: living processes
    carry them meanwhile. drop: they leave, and join when it is back. Only drop changes the weights of a
    synchronous mode."""

    hosts: Annotated[int | None, Ge(1)] = None
    """Processes that carry the workers. None: one for each."""

    spares: Annotated[int, Ge(0)] = 0
    """Processes that wait to take over from a lost one at once."""

    nodes: Annotated[int, Ge(1), Le(26)] = 1
    """Machines, named a, b, …, over which the processes are spread in turn. A private Ray cluster starts as
    many nodes on this machine; on any other cluster, its own nodes count."""

    min_workers: Annotated[int, Ge(1), OnlyWith(on_loss="drop"), HIDDEN] = 1
    """With this many members left, workers of a lost process wait instead of leaving."""

    suspect_after: Annotated[float | None, FINITE, Gt(0)] = None
    """Seconds without an answer after which a process's task is given to a second one too; the first answer
    counts. The silent process gets no other task until it answers. None: never."""

    restarts: str = "3"
    """How many times a process is started again within 600 s before it is given up, and with it the run if
    workers depend on it; within other seconds like 3,within=60. Each time it takes longer, up to 30 s."""
    restart_limit = Parsed("restarts", texts.Restarts.parse)

    restart_s: Annotated[float, FINITE, Ge(0), SIMULATED] = 0.0
    """Seconds that a new process takes to start (sim only)."""

    @property
    def of_engine(self) -> Faults:
        """The faults that an engine carries out: all except lies and those of the checkpoints' store."""
        others = (*STORE, "lie")
        return tuple(f for f in self.fault_list if not isinstance(f, Fault) or f.kind not in others)

    @property
    def lies(self) -> Sequence[Fault]:
        """The faults that are lies."""
        return [f for f in self.fault_list if isinstance(f, Fault) and f.kind == "lie"]

    def hosts_matter(self, num_workers: int) -> bool:
        """Whether hosts or faults can change what a simulation does."""
        shared = self.hosts is not None and self.hosts < num_workers
        return bool(self.of_engine) or shared or self.suspect_after is not None

    def require_possible(
        self, engine: str, num_workers: int, budget: int, *, checkpoints: bool, backups: int
    ) -> None:
        """Raise ValueError for faults that cannot happen in this run, and for options without an effect.

        backups: how many servers have one.
        """
        most = f"must be at most --num-workers {num_workers}"
        hosts = self.hosts or num_workers
        require(hosts <= num_workers, "hosts", self.hosts, most)
        require(self.min_workers <= num_workers, "min-workers", self.min_workers, most)
        processes = hosts + self.spares
        rule = f"must be at most the number of processes, {processes} with --hosts and --spares"
        require(self.nodes <= processes, "nodes", self.nodes, rule)
        rule = "needs a second process that can compute; raise --hosts or --spares"
        require(self.suspect_after is None or processes > 1, "suspect-after", self.suspect_after, rule)
        if engine == "sim" and not possible.takes_processes(self.fault_list):
            rule = "has no effect in the simulator unless --faults takes processes away; add such a fault"
            alone = self.spares and self.suspect_after is None
            require(not alone, "spares", self.spares, rule)
            require(not self.restart_s, "restart-s", self.restart_s, rule)
        wrong = possible.impossible(
            self.fault_list,
            num_workers=num_workers,
            nodes=self.nodes,
            budget=budget,
            masked=self.on_loss != "drop",
        )
        wrong = wrong or possible.only_with_backups(self.fault_list, backups)
        if engine != "sim":
            wrong = wrong or possible.only_simulated(self.fault_list)
        if not checkpoints:
            wrong = wrong or possible.only_with_checkpoints(self.fault_list)
        require(not wrong, "faults", self.faults, wrong or "")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Checked):
    """What a run can go on from if its driver is lost (docs/checkpoints.md)."""

    checkpoint_every: str | None = None
    """Engine seconds between two checkpoints, or auto,mtbf=SECONDS: Young's and Daly's interval, from the
    measured cost and the mean time between two losses of the driver. By tier, like
    memory=1,disk=30,peer=60,s3=300. None: no checkpoints."""
    checkpoint_tiers = Parsed("checkpoint_every", texts.checkpoint_tiers)
    mtbf = Parsed("checkpoint_every", texts.checkpoint_mtbf)

    keep: str = "3"
    """How many checkpoints are kept; by tier, like disk=3,s3=10."""
    kept_by_tier = Parsed("keep", texts.kept_by_tier)

    checkpoint_cost_s: Annotated[float, FINITE, Ge(0), SIMULATED] = 0.0
    """Engine seconds for which the server stands still at a checkpoint (sim only; on Ray it does not)."""

    on_divergence: Annotated[Literal["stop", "rollback"], LEARNED] = "stop"
    """What to do when the loss is no longer finite. rollback: go back to the last checkpoint in memory, and
    continue with half the step size."""

    init_from: str | None = None
    """Record whose weights the run starts from, like runs/NAME, or runs/NAME@VERSION for a checkpoint's.
    None: the seed's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_auto = None in self.checkpoint_tiers.values()
        rule = "auto needs the mean time between two losses of the driver; give it, like auto,mtbf=3600"
        require(not is_auto or self.mtbf is not None, "checkpoint-every", self.checkpoint_every, rule)
        rule = "mtbf is for auto; leave it out"
        require(is_auto or self.mtbf is None, "checkpoint-every", self.checkpoint_every, rule)


def is_name(text: str) -> bool:
    """Whether a record's folder can have this name, with room for what is added while it is written."""
    return bool(re.fullmatch(r"\w[\w.+=-]*", text)) and len(text.encode()) <= 200


@dataclass(frozen=True, kw_only=True)
class OutputConfig(Checked):
    """What is kept of a run."""

    out: str = "runs"
    """Folder of the run records. s3://BUCKET/PREFIX: they are written to runs/s3/BUCKET/PREFIX and uploaded
    while the run goes on, and when it ends, however it ends."""
    folder = Parsed("out", texts.folder)

    upload_every: Annotated[float, Gt(0), HIDDEN] = 60.0
    """Wall seconds between two uploads of what a run with --out s3://... has recorded. inf: when it ends."""

    run_name: Annotated[
        str | None,
        Must(
            "must name a folder: letters, digits and . _ + = -, at most 200 bytes, no . + = - first",
            is_name,
        ),
    ] = None
    """Name of the record's folder; must be new. None: time, mode, workers and seed."""

    note: Annotated[
        str | None,
        Must("must be one line of at most 500 letters", lambda t: t.isprintable() and len(t) <= 500),
    ] = None
    """A line about the run, shown and searched by `main.py watch`. Words that begin with # are its tags, as
    in "#slides second try"."""

    record: str = "all"
    """Which updates are written to updates.jsonl: all | every:N | none."""
    record_every = Parsed("record", texts.every)

    trace_last: Annotated[int | None, Ge(0), HIDDEN] = None
    """Number of final updates shown in trace.json (for Perfetto). None: as many as make a file of a few MB.
    0: no trace.json."""

    tensorboard: bool = False
    """Also write scalars for TensorBoard while the run goes on (needs the extra `tensorboard`)."""

    quiet: bool = False
    """Print nothing but the record's path."""

    def __post_init__(self) -> None:
        super().__post_init__()
        uploads = self.upload_every == 60.0 or self.out.startswith("s3://")
        require(uploads, "upload-every", self.upload_every, "is for --out s3://BUCKET/PREFIX; give that too")
        rule = "needs recorded updates, and --record is none; use --record all"
        require(not self.trace_last or self.record != "none", "trace-last", self.trace_last, rule)


@dataclass(frozen=True, kw_only=True)
class LogConfig(Checked):
    """What the driver logs, on standard error (docs/observing.md)."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged. info: what workers print too and, where no terminal is, a line every ten
    seconds."""

    log_format: Annotated[Literal["auto", "text", "json"], HIDDEN] = "auto"
    """How: text, or a JSON object a line. auto: json in a job of Ray and in a pod, text elsewhere."""

    @property
    def least_level(self) -> int:
        """The same as a number of `logging`."""
        return logging.getLevelNamesMapping()[self.log_level.upper()]


@dataclass(frozen=True, kw_only=True)
class LiveConfig(Checked):
    """How a run can be observed while it goes on (docs/observing.md)."""

    metrics_port: Annotated[int | None, PORT] = None
    """Port of the metrics for Prometheus, under /metrics; 0 takes any that is free."""

    metrics_host: Annotated[str, matches(r"\S+", "must be an address, like 0.0.0.0"), HIDDEN] = "127.0.0.1"
    """Address of that port; 0.0.0.0 admits other machines."""

    metrics_linger_s: Annotated[float, FINITE, Ge(0), HIDDEN] = 0.0
    """Wall seconds to keep serving the metrics and the live page after the run; ctrl-C ends it."""

    dashboard: Annotated[int | None, PORT] = None
    """Port of the live page in a browser on this machine (127.0.0.1); 0 takes any that is free."""

    def __post_init__(self) -> None:
        super().__post_init__()
        same = self.dashboard and self.dashboard == self.metrics_port
        require(not same, "dashboard", self.dashboard, "is --metrics-port already; choose another port")
        known = self.metrics_host == "127.0.0.1" or self.metrics_port is not None
        require(known, "metrics-host", self.metrics_host, "belongs to --metrics-port; give that too")
        served = self.metrics_port is not None or self.dashboard is not None
        rule = "keeps --metrics-port and --dashboard open; give one of them"
        require(served or not self.metrics_linger_s, "metrics-linger-s", self.metrics_linger_s, rule)

    def require_few(self, num_workers: int) -> None:
        """Raise ValueError if metrics are asked for and there are too many workers for them."""
        rule = (
            f"supports at most {MOST_EXPORTED} workers (about 60 series each); use the record or --dashboard"
        )
        port = self.metrics_port
        require(port is None or num_workers <= MOST_EXPORTED, "metrics-port", port, rule)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Checked):
    """One run."""

    mode: str
    """The strategy: a name (`--help` lists them), or a file of yours, like my/train_mine.py, whose mode is
    then `mine`."""

    strategy_file: Annotated[str | None, HIDDEN] = None
    """The file of a strategy of yours, which --mode may name too."""

    engine: Literal["ray", "sim", "both"] = "ray"
    """ray: real workers in wall time. sim: the same strategy in virtual time, real gradients. both: one
    after the other, and a table of the simulator's errors."""

    num_workers: Annotated[int, Ge(1)] = 4
    """P, the number of workers."""

    steps: Annotated[int, Ge(1)] = 100
    """Total work is num_workers x steps mini-batches in every mode; without a barrier, faster workers do more
    of it."""

    batch_size: Annotated[int, Ge(1), SAMPLED] = 32
    """Samples in a mini-batch of xor and digits."""

    lr: Annotated[float, FINITE, Gt(0)] = 0.1
    """Step size. See docs/strategies before comparing modes under one step size."""

    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Heavy-ball momentum, 0 to below 1; on the server or, in local modes and without one, in each worker."""

    schedule: str = "constant"
    """How the step size falls: constant, or linear or cosine (half a wave) to 0 at the end of the run. With a
    warm-up, like cosine,warmup=100, it first rises to --lr over so many steps. The server counts applied
    mini-batches; in local modes each worker counts its own."""
    parsed_schedule = Parsed("schedule", texts.StepSchedule.parse)

    clip_norm: Annotated[float | None, FINITE, Gt(0)] = None
    """Largest norm of an update's mean gradient or, in local modes, of each worker's gradient; longer ones
    are scaled down. None: no limit."""

    weight_decay: Annotated[float | None, FINITE, Ge(0)] = None
    """Share of the weights added to the gradient; decoupled from it with AdamW. None: 0, with AdamW 0.01."""

    seed: Annotated[int, Ge(0), Lt(2**63)] = 0
    """Seed of all random draws; the same seed gives the same data, delays and initial weights in every
    mode."""

    data: DataConfig = field(default_factory=DataConfig)
    timing: TimingConfig = field(default_factory=TimingConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    compression: CompressConfig = field(default_factory=CompressConfig)
    fault: FaultConfig = field(default_factory=FaultConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    aggregation: AggregateConfig = field(default_factory=AggregateConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    live: LiveConfig = field(default_factory=LiveConfig)
    log: LogConfig = field(default_factory=LogConfig)

    sends: ClassVar[Literal["gradients", "weights", "neither"]] = "neither"
    """What the values of its tasks are: gradients at the weights read, the worker's own weights after steps
    from those, or neither. Only what is shown of a run depends on it.
    """

    @property
    def returns_weights(self) -> bool:
        """Whether the values of its tasks are the workers' own weights, whatever the optimizer."""
        return self.sends == "weights"

    has_server: ClassVar[bool] = True
    """Whether weights are on a server, from which tasks get them; else each worker has its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        workers = f"workers are numbered 0 to {self.num_workers - 1}"
        known = all(worker < self.num_workers for worker in self.timing.slowdowns)
        require(known, "slowdown", self.timing.slowdown, f"{workers}; name only those")
        law = self.timing.compute_law
        enough = not isinstance(law, Trace) or not law.per_worker or len(law.rows) >= self.num_workers
        require(enough, "compute-time", self.timing.compute_time, f"{workers}; give each of them a row")
        rule = f"must have one value, or one for each of the {self.num_workers} workers"
        for option, values in (
            ("curvatures", self.data.curvature_values),
            ("optima", self.data.optimum_values),
        ):
            require(len(values) in (1, self.num_workers), option, getattr(self.data, option), rule)
        accumulate, size = self.compute.accumulate, self.batch_size
        require(accumulate <= size, "accumulate", accumulate, f"must be at most --batch-size {size}")
        warmup, rule = self.parsed_schedule.warmup, f"warmup must be at most --steps {self.steps}"
        require(warmup <= self.steps, "schedule", self.schedule, rule)
        whole_gpus = self.ray.gpus_per_worker >= 1
        self.group.require_possible(
            None if self.data.name in ("none", "quadratic") else size // accumulate,
            {
                "each rank needs a GPU of its own; give --gpus-per-worker 1, or leave that out": (
                    not whole_gpus
                ),
                "ranks share a module on Ray; give a --workload, or use --engine sim": (
                    self.engine != "sim" and self.data.module is None
                ),
            },
        )
        rule = "experts are a workload's; give --workload, or leave them out"
        of_module = self.data.module is not None
        require(of_module or not self.group.parsed_parallel.experts, "parallel", self.group.parallel, rule)
        self._require_compressible()
        self.live.require_few(self.num_workers)
        self._require_topology()
        rule = f"--workload {self.data.name} has no samples to count; use --aggregate mean alone"
        counted = not self.aggregation.by_samples or self.data.name not in ("quadratic", "none")
        require(counted, "aggregate", self.aggregation.aggregate, rule)
        checkpoints = self.checkpoint.checkpoint_every is not None
        servers = self.network.parsed_topology.servers if self.network.replicas > 1 else 0
        self.fault.require_possible(
            self.engine, self.num_workers, self.budget, checkpoints=checkpoints, backups=servers
        )
        rule = "needs all workers on the driver's machine, and --nodes stands for several; use auto"
        require(self.ray.transport != "local" or self.fault.nodes == 1, "transport", "local", rule)
        self._require_lies_told()
        tiers, every = self.checkpoint.checkpoint_tiers, self.checkpoint.checkpoint_every
        is_measured = self.engine == "ray" or self.checkpoint.checkpoint_cost_s > 0
        rule = "auto needs the cost of a checkpoint in virtual seconds; give --checkpoint-cost-s"
        require(None not in tiers.values() or is_measured, "checkpoint-every", every, rule)
        rule = "the tier s3 is the bucket of the record; give --out s3://BUCKET/PREFIX too"
        require("s3" not in tiers or self.output.out.startswith("s3://"), "checkpoint-every", every, rule)
        rule = "the tier peer is another node's memory; choose --engine ray, or the tier disk"
        require("peer" not in tiers or self.engine == "ray", "checkpoint-every", every, rule)
        self.aggregation.require_enough(self.mode, self.results_per_update, self.num_workers)
        rule = "--engine both compares updates, so they must be recorded; use --record all"
        require(self.engine != "both" or self.output.record != "none", "record", "none", rule)

    def _require_compressible(self) -> None:
        options = self.compression
        rule = f"is for results on their way to a server, and --mode {self.mode} has none; leave it out"
        require(self.has_server or options.results is None, "compress", options.compress, rule)
        down = options.weights is None or self.waits_for_all
        rule = f"needs a mode in which every update waits for all workers, not {self.mode}; leave it out"
        require(down, "compress-down", options.compress_down, rule)
        if isinstance(options.results, Dgc):
            of_gradients = isinstance(self, GradientConfig) and self.optimizer == "sgd"
            rule = "needs a mode whose workers send gradients, and --optimizer sgd; choose another codec"
            require(of_gradients, "compress", options.compress, rule)
            rule = f"--compress {options.compress} has a momentum already; leave it out"
            require(not self.momentum, "momentum", self.momentum, rule)

    def _require_lies_told(self) -> None:
        workload = self.data.workload
        for lie in self.fault.lies:
            flips = lie.says is not None and lie.says.name == "labelflip"
            lacking = ("none", "quadratic") if flips else ("none",)
            rule = f"'{lie}': --workload {workload} has no {'labels' if flips else 'results'} to lie about"
            require(workload not in lacking, "faults", self.fault.faults, f"{rule}; choose another")
            rule = f"'{lie}': --mode {self.mode} has no server to lie to; only labelflip is for all modes"
            require(flips or self.results_per_update > 0, "faults", self.fault.faults, rule)

    @property
    def waits_for_all(self) -> bool:
        """Whether each update is made of one result of every worker, all at the same weights: what an
        all-reduce needs. A strategy says so in its Config.
        """
        return False

    def _require_topology(self) -> None:
        chosen = self.network.parsed_topology
        rule = "is only simulated; use --engine sim"
        real = chosen.kind != "halving" or self.engine == "sim"
        require(real, "topology", self.network.topology, rule)
        timing = self.timing
        waits = (
            f"needs a mode in which every update waits for all workers, and {self.mode} does not as "
            "asked for; use --topology server"
        )
        rule = "is the time to form a group anew after a loss; give --topology allreduce and --faults too"
        regroups = chosen.all_reduces and self.fault.hosts_matter(self.num_workers)
        require(regroups or not self.network.regroup_s, "regroup-s", self.network.regroup_s, rule)
        if not self.has_server:
            topology, rule = (
                self.network.topology,
                f"has no effect in --mode {self.mode}, which has no server",
            )
            require(topology == "server", "topology", topology, f"{rule}; leave it out")
            rate, served = timing.server_bytes_per_s, timing.server_bytes_per_s < math.inf
            require(not served, "server-bytes-per-s", rate, f"{rule}; use --bytes-per-s")
            rule = f"is emulated by holding back results, and --mode {self.mode} has none; use --engine sim"
            simulated = self.engine == "sim"
            require(simulated or not timing.latency_s, "latency-s", timing.latency_s, rule)
            rate = self.network.bytes_per_s
            require(simulated or rate == math.inf, "bytes-per-s", rate, rule)
            racks = self.network.racks
            require(simulated or racks == "1", "racks", racks, rule)
        self.network.require_possible(
            self.num_workers,
            {
                waits: not self.waits_for_all,
                "has no server; leave out --server-bytes-per-s": timing.server_bytes_per_s < math.inf,
                "has no server; leave out --server-time": timing.server_law is not None,
                "sends no padding on Ray; leave out --padding-mb": (
                    timing.padding_bytes > 0 and self.engine != "sim"
                ),
                "adds results; use --aggregate mean": self.aggregation.aggregator is not None,
                "adds results as they are; use --aggregate mean alone": self.aggregation.by_samples,
                "keeps results among the workers; no lie but labelflip can replace them": any(
                    lie.says is None or lie.says.name != "labelflip" for lie in self.fault.lies
                ),
                "adds whole vectors; leave out --compress": self.compression.results is not None,
                "sends no weights; leave out --compress-down": self.compression.weights is not None,
            },
            {
                text: given and self.engine != "sim"
                for text, given in {
                    "on Ray its vectors are Ray's objects; leave out --transport local": (
                        self.ray.transport == "local"
                    ),
                    "sends no padding on Ray; leave out --padding-mb": timing.padding_bytes > 0,
                    "on Ray servers see slices, and --filter needs whole vectors; leave it out": (
                        self.aggregation.filtered is not None
                    ),
                }.items()
            },
        )

    @property
    def budget(self) -> int:
        """Mini-batches of the run, all workers together."""
        return self.num_workers * self.steps

    @property
    def results_per_update(self) -> int:
        """How many results a server averages in an update while all workers are members; 0: there is none."""
        return self.num_workers


@dataclass(frozen=True, kw_only=True)
class GradientConfig(TrainConfig):
    """The options of strategies whose server applies gradients."""

    sends: ClassVar[Literal["gradients", "weights", "neither"]] = "gradients"

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The server's optimizer. adamw: betas .9 and .999, epsilon 1e-8."""

    momentum: Annotated[float, Ge(0), Lt(1), OnlyWith(optimizer="sgd")] = 0.0
    """Heavy-ball momentum of the server, 0 to below 1."""


@dataclass(frozen=True, kw_only=True)
class LocalConfig(TrainConfig):
    """The options of strategies whose workers take several steps on their own weights."""

    local_steps: Annotated[int, Ge(1)] = 8
    """H, the mini-batches each worker takes between two exchanges with the server."""


@dataclass(frozen=True, kw_only=True)
class ExchangeConfig(LocalConfig):
    """The options of local strategies that exist with a barrier and without."""

    exchange: Literal["sync", "async"] = "sync"
    """sync: all workers exchange at a barrier. async: each by itself, when its local steps are done."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"looks at gradients, and --mode {self.mode}'s workers send weights; leave it out"
        require(not self.aggregation.filtered, "filter", self.aggregation.filter, rule)

    @property
    def waits_for_all(self) -> bool:
        return self.exchange == "sync"

    @property
    def results_per_update(self) -> int:
        return self.num_workers if self.exchange == "sync" else 1


@dataclass(frozen=True, kw_only=True)
class PeerConfig(TrainConfig):
    """The options of strategies without a server: workers keep their own weights and exchange them."""

    graph: str = "ring"
    """Who exchanges with whom: ring | exponential | random | complete, or a file with an edge like `0 1` in
    each line (docs/gossip.md)."""
    edges = Parsed("graph", Graph.parse)

    has_server: ClassVar[bool] = False
    returns_weights = True
    directed: ClassVar[bool] = False
    """Whether a file's edges are arcs, from left to right."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lacking = self.edges.lacking(self.num_workers, directed=self.directed)
        require(not lacking, "graph", self.graph, lacking)
        rule = "is a server's, and --mode {} has none; leave it out"
        require(not self.timing.server_law, "server-time", self.timing.server_time, rule.format(self.mode))

    @property
    def results_per_update(self) -> int:
        return 0


@dataclass(frozen=True, kw_only=True)
class AsynchronousConfig(GradientConfig):
    """The options of strategies that apply each gradient as it comes."""

    lr_scaling: Literal["none", "workers"] = "none"
    """none: each gradient moves the weights by lr. workers: by lr / num_workers, so that the same number
    of gradients moves them as far as in a synchronous mode, which averages."""

    staleness_lr: str = "none"
    """Smaller steps for staler gradients (Zhang et al. 2015). none: no. inverse: staleness t counts
    1/max(1, t). threshold:T: it counts fully up to T, and T/t beyond."""
    full_weight_until = Parsed("staleness_lr", texts.staleness_bound)

    @property
    def results_per_update(self) -> int:
        return 1
