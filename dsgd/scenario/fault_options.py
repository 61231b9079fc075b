"""The options of what goes wrong, and of what is done about it (docs/faults.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from dsgd.core import option_texts as texts
from dsgd.core.option_effects import SIMULATED
from dsgd.core.option_rules import FINITE, HIDDEN, Checked, OnlyWith, Parsed, require
from dsgd.scenario import possible_faults as possible
from dsgd.scenario.fault import STORE, Fault, Faults
from dsgd.scenario.faults_text import parse_faults


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

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for faults that cannot happen in this run, and for options without an effect."""
        most = f"must be at most --num-workers {run.num_workers}"
        hosts = self.hosts or run.num_workers
        require(hosts <= run.num_workers, "hosts", self.hosts, most)
        require(self.min_workers <= run.num_workers, "min-workers", self.min_workers, most)
        processes = hosts + self.spares
        rule = f"must be at most the number of processes, {processes} with --hosts and --spares"
        require(self.nodes <= processes, "nodes", self.nodes, rule)
        rule = "needs a second process that can compute; raise --hosts or --spares"
        require(self.suspect_after is None or processes > 1, "suspect-after", self.suspect_after, rule)
        if run.engine == "sim" and not possible.takes_processes(self.fault_list):
            rule = "has no effect in the simulator unless --faults takes processes away; add such a fault"
            alone = self.spares and self.suspect_after is None
            require(not alone, "spares", self.spares, rule)
            require(not self.restart_s, "restart-s", self.restart_s, rule)
        wrong = possible.impossible(
            self.fault_list,
            num_workers=run.num_workers,
            nodes=self.nodes,
            budget=run.budget,
            masked=self.on_loss != "drop",
        )
        backed_up = run.network.parsed_topology.servers if run.network.replicas > 1 else 0
        wrong = wrong or possible.only_with_backups(self.fault_list, backed_up)
        if run.engine != "sim":
            wrong = wrong or possible.only_simulated(self.fault_list)
        if run.checkpoint.checkpoint_every is None:
            wrong = wrong or possible.only_with_checkpoints(self.fault_list)
        require(not wrong, "faults", self.faults, wrong or "")
        for lie in self.lies:
            flips, workload = lie.says is not None and lie.says.name == "labelflip", run.data.workload
            lacking = ("none", "quadratic") if flips else ("none",)
            rule = f"'{lie}': --workload {workload} has no {'labels' if flips else 'results'} to lie about"
            require(workload not in lacking, "faults", self.faults, f"{rule}; choose another")
            rule = f"'{lie}': --mode {run.mode} has no server to lie to; only labelflip is for all modes"
            require(flips or run.results_per_update > 0, "faults", self.faults, rule)
