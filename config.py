"""The options of a run: what each does, its default and its rules.

    python main.py --mode asgd --num-workers 8 --lr 0.05            # on the command line
    dsgd.run(mode="asgd", num_workers=8, lr=0.05)                   # from Python

Total work is num_workers x steps mini-batches of batch_size samples, in every mode. How far these move the
weights differs: SSGD takes one step along the mean of P gradients where ASGD takes P steps, so compare modes
each at its own best --lr, or with --lr-scaling.

`TrainConfig` has what all runs have. Groups of options stand beside what they configure, in files called
*_options.py; the classes below it are the bases of strategies by how their workers exchange results.

Configurations are frozen and checked when they are made. The rules of one field are in its type
(dsgd/core/option_rules.py), those of several in `__post_init__` and `require_possible`. A bad value raises
ValueError in one line that names the option, the rule and, where the rule does not imply it, the remedy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from dsgd.core import option_texts as texts
from dsgd.core.option_effects import BUILT_IN, LEARNED, OF_PERCEPTRON, QUADRATIC, SAMPLED
from dsgd.core.option_rules import (
    FINITE,
    HIDDEN,
    Checked,
    OnlyWith,
    Option,
    Parsed,
    members,
    option_fields,
    require,
)
from dsgd.core.traits import Traits
from dsgd.engines.ray_options import RayConfig
from dsgd.models.compute_options import ComputeConfig
from dsgd.records.output_options import OutputConfig
from dsgd.running.checkpoint_options import CheckpointConfig
from dsgd.scenario.fault_options import FaultConfig
from dsgd.scenario.graphs import Graph
from dsgd.scenario.group_options import GroupConfig
from dsgd.scenario.network_options import LINKS, NetworkConfig
from dsgd.scenario.timing_options import TimingConfig
from dsgd.show.watching_options import LiveConfig, LogConfig
from dsgd.transforms.aggregate_options import AggregateConfig
from dsgd.transforms.compress_options import CompressConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """What is learned, and from which data."""

    workload: str = "xor"
    """What is learned. xor: points labelled by the sign of a product. digits: scikit-learn's 8x8 handwritten
    digits. quadratic: worker i minimises a_i/2 |w - x_i|^2. none: no weights, the run only schedules. Or a
    torch module and its data: one that is there by its name, like digits_cnn, or a file of yours with a
    function make() (docs/workloads.md)."""

    edition: Annotated[int, Ge(1), Le(3), HIDDEN] = 3
    """The rules by which numbers are computed (docs/record.md). A record keeps those that it was made by."""

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
    def num_dims(self) -> int:
        return self.dim or (1 if self.dataset == "quadratic" else 2)


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
    """Samples in a mini-batch. auto, on the command line: the most that a worker's memory has room for, found
    by trial on this machine and recorded as a number."""

    lr: Annotated[float, FINITE, Gt(0)] = 0.1
    """Step size. See docs/strategies before comparing modes under one step size."""

    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Heavy-ball momentum, 0 to below 1; on the server or, in local modes and without one, in each worker."""

    schedule: str = "constant"
    """How the step size falls: constant, or linear or cosine (half a wave) to 0 at the end of the run. With a
    warm-up, like cosine,warmup=100, it first rises to --lr over so many steps. With cosine,restart=200 it
    reaches 0 at step 200 and starts again; a run that is resumed with more --steps gets such a restart. The
    server counts applied mini-batches; in local modes each worker counts its own."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"must have one value, or one for each of the {self.num_workers} workers"
        for option, values in (
            ("curvatures", self.data.curvature_values),
            ("optima", self.data.optimum_values),
        ):
            require(len(values) in (1, self.num_workers), option, getattr(self.data, option), rule)
        warmup, rule = self.parsed_schedule.warmup, f"warmup must be at most --steps {self.steps}"
        require(warmup <= self.steps, "schedule", self.schedule, rule)
        last, rule = max(self.parsed_schedule.restarts, default=0), f"must restart below --steps {self.steps}"
        require(last < self.steps, "schedule", self.schedule, rule)
        for name, member in members(type(self)).items():
            if not isinstance(member, Option):
                getattr(self, name).require_possible(self)

    @property
    def traits(self) -> Traits:
        """How its workers work together; a strategy says it in its Config, as `traits = Traits(...)`."""
        return Traits()

    @property
    def budget(self) -> int:
        """Mini-batches of the run, all workers together."""
        return self.num_workers * self.steps

    @property
    def results_per_update(self) -> int:
        """How many results a server averages in an update while all workers are members; 0: there is none."""
        return self.num_workers if self.traits.has_server else 0


_IN_SECONDS = (
    "latency_s", "server_bytes_per_s", "server_time", *LINKS, "rank_link", "max_seconds", "restart_s",
    "suspect_after", "checkpoint_every", "checkpoint_cost_s",
)  # fmt: skip
_FAULTS_IN_SECONDS = re.compile(r"\bt=|\+\s*[\d.]|mtbf|pause|\.ya?ml$")


def lacks_compute_time(given: Mapping[str, Any]) -> bool:
    """Return whether simulated mini-batches last 1 virtual second though other options are in seconds."""
    set_ = {n for n, o in option_fields(TrainConfig).items() if given.get(n, o.default) != o.default}
    timed = _FAULTS_IN_SECONDS.search(str(given.get("faults"))) or not set_.isdisjoint(_IN_SECONDS)
    return given.get("engine") == "sim" and "compute_time" not in set_ and bool(timed)


@dataclass(frozen=True, kw_only=True)
class GradientConfig(TrainConfig):
    """The options of strategies whose server applies gradients."""

    traits = Traits(sends="gradients")

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
    def traits(self) -> Traits:
        return Traits(sends="weights", waits_for_all=self.exchange == "sync")

    @property
    def results_per_update(self) -> int:
        return self.num_workers if self.exchange == "sync" else 1


@dataclass(frozen=True, kw_only=True)
class PeerConfig(TrainConfig):
    """The options of strategies without a server: workers keep their own weights and exchange them."""

    graph: str = "ring"
    """Who exchanges with whom: ring | exponential | random | complete, or a file with an edge like `0 1` in
    each line (docs/network.md)."""
    edges = Parsed("graph", Graph.parse)

    traits = Traits(sends="weights", has_server=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        lacking = self.edges.lacking(self.num_workers, directed=self.traits.directed)
        require(not lacking, "graph", self.graph, lacking)
        rule = "needs a server, and --mode {} has none; leave it out"
        require(not self.timing.server_law, "server-time", self.timing.server_time, rule.format(self.mode))


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
