"""A cluster of Ray actors in wall time.

Workers are carried by hosts, which are actors (`host.py`). The driver keeps, for each task in flight,
what it sent; so when a host is lost, another gets the same bytes again. What follows from that is decided in
`supervisor.py`, and carried out here; faults that were asked for happen in `faults.py`, for real.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import ClassVar

from dsgd.engines.ray.connection.connect import Connection, connect

# isort: split
import numpy as np
import ray
from ray.exceptions import RayError

from dsgd.config import TrainConfig
from dsgd.core import chunked
from dsgd.core.cluster_state import ClusterState
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.ledger import Ledger
from dsgd.core.ledger_views import LedgerViews
from dsgd.core.model import Evaluation, Workload
from dsgd.core.problem import ProblemError
from dsgd.core.protocol import ClusterError, Done, TimeUp, TraceEvents
from dsgd.core.rules import Rule, TaskResult
from dsgd.core.tasks import Task
from dsgd.core.traffic import MessageSizes
from dsgd.core.weights import Vector, Weights
from dsgd.engines.configured_network import compute_times, network_of
from dsgd.engines.ray.driver.evaluation import EvaluatingProcess
from dsgd.engines.ray.driver.faults import RayFaults, Timers
from dsgd.engines.ray.driver.host_process import HostProcess
from dsgd.engines.ray.driver.host_processes import HostProcesses
from dsgd.engines.ray.driver.news import (
    Answered,
    Failed,
    Gone,
    News,
    Noticed,
    RayFlight,
    Ready,
    Replied,
    StateLost,
)
from dsgd.engines.ray.driver.sent_tasks import SentTasks
from dsgd.engines.ray.driver.start import choose_device, lacking, missing_ranks, start_hosts
from dsgd.engines.ray.driver.states import StateCopies
from dsgd.engines.ray.transport.delayed_results import HeldBack
from dsgd.scenario.fault import Fault
from dsgd.scenario.fault_plan import Plan, outside_at_first
from dsgd.scenario.hosts import Hosts
from dsgd.scenario.star import Star
from dsgd.scenario.supervisor import (
    Ask,
    BringState,
    GiveUp,
    LookAgain,
    Orders,
    Send,
    StartAgain,
    Stop,
    Stranded,
    Supervisor,
)

_SWITCH_S = 2e-4  # how long another thread, an evaluation's, may keep the interpreter when an answer comes
_POLL_S = 1.0  # how long waiting may last
_PLACE_S = 5.0  # how long to wait for a process to say which GPUs it has
_LOOK_S = 0.02  # how often to look whether a node has started
_DYING = 64  # how many processes may not have closed their links when others take their places


class RayCluster(LedgerViews[RayFlight]):
    """Runs the workers on as many actors as there are hosts and spares; use it as a context manager.

    A start barrier: it returns once every host has imported what it needs and holds its shards. The clock
    starts with the first task.
    Raises ValueError for a device or node that is not there, ClusterError when the hosts cannot be started
    within cfg.ray.start_timeout_s. `connection` is closed with it.
    """

    _sends: ClassVar[type[SentTasks]] = SentTasks

    def __init__(self, cfg: TrainConfig, workload: Workload, connection: Connection | None = None) -> None:
        num_workers, fault = len(workload.shards), cfg.fault
        self._cfg, self._objective = cfg, workload.objective
        self._keep(Ledger[RayFlight](num_workers))
        self._hosts = Hosts(
            num_workers,
            fault.hosts or num_workers,
            fault.spares,
            on_loss=fault.on_loss,
            min_workers=fault.min_workers,
            max_restarts=fault.restart_limit.most,
            window_s=fault.restart_limit.within_s,
            seed=cfg.seed,
        )
        ranks = cfg.group.ranks_per_worker
        self._plan = Plan(fault.of_engine, seed=cfg.seed, hosts=len(self._hosts.alive), ranks=ranks)
        for worker in outside_at_first(fault.fault_list):
            self._ledger.leave(worker)
        self._supervisor = Supervisor(self._ledger, self._hosts, lambda: self._clock_s, fault.suspect_after)
        self._supervisor.book.answers = 0  # how often `next_done` has returned
        self._sizes = MessageSizes(workload.objective.num_weights, cfg.timing.padding_bytes)
        self._tasks = self._sends(workload.objective.num_weights, cfg.timing.padding_bytes)
        star = Star(network_of(cfg))
        self._held: HeldBack[Answered] | None = None if star.instant else HeldBack(star)
        self._states = StateCopies()
        self._sent_tickets: dict[int, int] = {}  # by worker: of the task that was sent last
        self._version_of: dict[int, int] = {}  # by worker: of the weights it was sent, where that matters
        self._running: dict[int, HostProcess] = {}  # by host
        self._readying: set[HostProcess] = set()  # they have been started, and cannot compute yet
        self._draining: set[HostProcess] = set()  # asked to end: they finish the tasks that they have
        self._timers = Timers()
        self._faults = RayFaults(
            self._supervisor, self._timers, self._running, lambda: self._clock_s, self._send_unsent
        )
        self._driver_due = False  # it is to end, once that is recorded
        self._ending = False  # that is
        self._threads = os.cpu_count() or 1
        self._executor = ThreadPoolExecutor(self._threads)  # for `combine`; threads start with their work
        self._began_s: float | None = None
        self._now_s = 0.0
        self._connection = connection or connect(cfg.ray.start_timeout_s)
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_S, self._switch_s))
        self._processes: HostProcesses | None = None
        self._evaluating: EvaluatingProcess | None = None
        try:
            self.device = choose_device(cfg, self._connection)
            times = compute_times(cfg, workload.objective.num_weights)
            self._processes = HostProcesses(cfg, workload.objective, times, self._connection, self.device)
            started = start_hosts(
                cfg, self._connection, self.device, self._processes, workload.shards, self._hosts
            )
            self._here = ray.get_runtime_context().get_node_id()
            self._require_nodes()
            self._running.update(enumerate(started))
            self._pids = [process.ranks.pids for process in started]
            self._open_links(started)
            if workload.objective.in_own_process:
                trials = [process.ranks.trial for process in started]
                workload.objective.trial = max(
                    trials, key=lambda trial: (len(trial.carried), len(trial.notes))
                )
                self._evaluating = EvaluatingProcess(
                    workload, self.device, self._place_to_evaluate, cfg.ray.start_timeout_s
                )
                workload.objective.trial = self._evaluating.try_out()
        except ProblemError as error:
            self.close()
            raise ValueError(f"--workload {cfg.data.workload}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _open_links(self, started: Sequence[HostProcess]) -> None:
        """Open the links to the processes on the driver's machine; from now on all are watched.

        Raises ValueError if --transport wants a link where there can be none.
        """
        transport, until_s = self._cfg.ray.transport, time.monotonic() + self._cfg.ray.start_timeout_s
        far = [process.host for process in started if process.node_id != self._here]
        if transport == "local" and far:
            raise ValueError(
                f"--transport local: host {far[0]} is on another machine than the driver; use auto, which "
                "reaches the others locally"
            )
        if transport != "ray":
            try:
                self._tasks.use_links(self._here, len(started) + _DYING)
            except OSError as error:
                if transport == "local":
                    raise ValueError(f"--transport local: {error}; use ray") from error
        self._readying.update(started)
        for process in started:
            self._tasks.watch(process)
        while not self._readying.isdisjoint(started):
            news = self._tasks.wait(_POLL_S)
            if isinstance(news, Ready):
                self._readying.discard(news.process)
            elif news is not None:
                self._take(news)
            if time.monotonic() > until_s:
                raise ClusterError(lacking(self._cfg, self.device, "the links to the workers"))
        linkless = {p.host for p in self._running.values() if p.link is None and p not in self._readying}
        if transport == "local" and linkless:
            raise ValueError(f"--transport local: host {min(linkless)} does not reach the driver; use auto")

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        return self._processes.output.memory_bytes if self._processes else {}

    def process_logs(self, *, wait: bool) -> Mapping[str, str]:
        logs = self._processes.logs if self._processes else None
        return logs.close(wait=wait) if logs else {}

    def profile(self, begin: bool) -> Mapping[str, TraceEvents]:
        return self._processes.profile(begin) if self._processes else {}

    @property
    def faults_seen(self) -> list[FaultSeen]:  # type: ignore[override]
        return self._supervisor.book.seen

    @property
    def restarts(self) -> list[int]:
        return self._supervisor.restarts

    @property
    def now_s(self) -> float:
        # It stands still between two answers: a replay, which knows when each came, decides the same by it.
        return self._now_s

    @property
    def _clock_s(self) -> float:
        return 0.0 if self._began_s is None else time.perf_counter() - self._began_s

    @property
    def pids(self) -> Sequence[int]:
        return [self._pids[host][0] for host in self._hosts.carrier]

    @property
    def rank_pids(self) -> Sequence[Sequence[int]]:
        """By worker: the processes of the group that carries it, or did last, by rank."""
        return [self._pids[host] for host in self._hosts.carrier]

    def start(self, worker: int, task: Task, w: Weights) -> None:
        if self._began_s is None:
            self._began_s = time.perf_counter()
        step = self._ledger.steps[worker]
        self._ledger.start(worker, self._tasks.flight(task, w, self._clock_s, step))
        self._supervisor.book.version = w.version
        self._send(worker)
        self._plan.at_step(worker, step, task.batches)

    def travel(self, source: int, target: int, num_bytes: int | None = None) -> None:
        pass

    def cancel(self, worker: int) -> None:
        flight = self._ledger.flights[worker]
        self._stop(worker)
        self._ledger.cancel(worker, self._clock_s - flight.started_s)

    def combine(self, rule: Rule, w: Weights, results: Sequence[TaskResult]) -> Weights:
        # While workers compute, they need the processors.
        threads = 1 if self._ledger.flights else self._threads
        is_whole = len(w.vector) == self._objective.num_weights  # a strategy may step on a part
        fresh = self._tasks.fresh if is_whole else partial(np.empty_like, w.vector)
        return chunked.combine(rule, w, results, fresh, self._executor, threads)

    def next_done(self) -> Done | None:
        done = self._next_done()
        assert self._supervisor.book.answers is not None
        self._supervisor.book.answers += 1
        return done

    def _next_done(self) -> Done | None:
        while True:
            if not self._supervisor.changed:
                self._look()
            if self._supervisor.changed:
                self._supervisor.changed = False
                self._now_s = max(self._now_s, self._supervisor.book.members_s)  # the last time in the record
                return None
            if self._held and (late := self._held.there(self._clock_s)) and (done := self._answered(late)):
                return done
            left_s = self._next_s() - self._clock_s
            if not self._readying and not self._tasks.expects(self._faults.cut):
                self._require_a_future()
            news = self._tasks.wait(max(0.0, min(_POLL_S, left_s)), self._faults.unheard)
            if left_s < _POLL_S and self._clock_s > self._cfg.stop.max_seconds:
                raise TimeUp
            if news is not None and (done := self._take(news)):
                return done

    def reached(self, version: int) -> None:
        self._supervisor.book.version = version
        self._driver_due |= any(fault.kind == "driver" for fault in self._plan.at_update(version))
        if self._driver_due and not self._ending:
            self._ending = True  # when the strategy next waits: until then it is recorded
            text = "the driver was killed; --resume goes on"
            self._supervisor.book.note("driver", (), text, recovered_s=None)

    def ended(self) -> Sequence[str]:
        self._supervisor.book.end_all()
        self._began_s = None
        return self._plan.left

    def state(self) -> ClusterState:
        """Return the cluster between two updates; the workers' states are fetched when they are read."""
        return replace(
            self._ledger.state(self.now_s),
            states=self._states.fetched(self._ledger.states),
            restarts=list(self.restarts),
            heard=dict(self._version_of),
            hosts=self._hosts.state(),
            faults=self._plan.position(),
            engine={"answers": self._supervisor.book.answers},
        )

    def restore(self, state: ClusterState) -> None:
        """Go back, or on, to a state; its tasks in flight are sent again, with the same steps and weights.

        Processes are not part of it: those that live carry on, those that were lost are still awaited.
        """
        for worker in list(self._ledger.flights):
            self._stop(worker)
        for worker in self._tasks.workers():  # computed again, for what they had left
            self._tasks.stop(worker)
        if self._began_s is None or self._clock_s < state.now_s:  # it never goes back
            self._began_s = time.perf_counter() - state.now_s
        self._now_s = state.now_s
        states = dict(state.states)
        flights = {
            f.worker: self._tasks.flight(f.task, f.origin, f.started_s, state.steps[f.worker])
            for f in state.flights
        }
        self._keep(Ledger.restored(replace(state, states=states), flights))
        self._ledger.traffic.by_chance = True  # tasks in flight are sent again
        self._supervisor.keep(self._ledger, list(state.restarts) or [0] * len(self.restarts))
        self._supervisor.book.answers = state.engine.get("answers", state.came_in)
        self._states = StateCopies(states)
        self._version_of = dict(state.heard)
        for process in self._running.values():
            process.heard.clear()  # versions of these numbers may have other contents now
        if state.faults is not None:
            self._plan.go_to(state.faults)
        if state.hosts is not None:
            self._hosts.restore(state.hosts)
        for host in range(len(self._hosts.alive)):
            lives = host in self._running and self._running[host] not in self._readying
            if lives and not self._hosts.alive[host]:
                self._obey(self._supervisor.back(host, self._unsent()))
            self._hosts.alive[host] = lives
            if lives and self._hosts.is_silent(host):
                self._ask(host)
        self._send_unsent()

    def evaluate(
        self, workload: Workload, w: Vector, models: Mapping[int, Vector] | None = None
    ) -> Evaluation | None:
        if self._evaluating:
            return self._evaluating.evaluate(w, models)
        return workload.evaluate(w, models)

    def _place_to_evaluate(self) -> tuple[str, str] | None:
        """Return the node of a process that computes on a GPU, and its GPUs; None if none does."""
        for process in list(self._running.values()) if self.device == "cuda" else ():
            with contextlib.suppress(RayError):  # that one is lost, or silent: another will do
                if process.node_id:
                    return process.node_id, ray.get(process.actor.gpus.remote(), timeout=_PLACE_S)
        return None

    def close(self) -> None:
        """Stop the workers, and the cluster if this run started it."""
        if self._evaluating:
            self._evaluating.close()
        if self._processes:
            self._processes.close()
        self._tasks.close()
        self._executor.shutdown()
        sys.setswitchinterval(self._switch_s)
        self._connection.close()

    # --- tasks ----------------------------------------------------------------------------------------------

    def _send(self, worker: int) -> None:
        """Send the task of a worker to the host that carries it, if that can be reached; else it waits."""
        host = self._hosts.place(worker, self._clock_s)
        if self._hosts.alive[host]:
            if host in self._faults.cut:
                self._expect(host, worker)
            else:
                self._send_to(host, worker)

    def _send_to(self, host: int, worker: int) -> None:
        process, flight = self._running[host], self._ledger.flights[worker]
        if worker not in process.carried:
            assert self._processes
            self._processes.carry(process, worker)
        state, slower = self._ledger.states.get(worker), self._faults.slower(host)
        left_by = self._states.left_by(worker)
        flight, to_worker = self._as_sent(worker, flight, process)
        cut = host in self._faults.cut
        self._tasks.send(process, worker, flight, state, slower, left_by=left_by, cut=cut)
        self._ledger.traffic.to_worker[worker] += to_worker
        if self._held is not None:
            self._held.sent(worker, self._clock_s, to_worker)
        self._expect(host, worker)

    def _as_sent(self, worker: int, flight: RayFlight, process: HostProcess) -> tuple[RayFlight, int]:
        """Return a task as a process gets it, and the bytes of its weights: the first time what its worker
        has missed (--compress-down), else all.
        """
        again, w = self._sent_tickets.get(worker) == flight.ticket, flight.w
        self._sent_tickets[worker] = flight.ticket
        self._ledger.traffic.by_chance |= again
        if w.changes is not None:
            heard = None if again else process.heard.get(worker)
            self._ledger.traffic.by_chance |= heard != self._version_of.get(worker)
            flight = flight._replace(w=w.changes.since(w, heard))
            process.heard[worker] = self._version_of[worker] = w.version
            if not again:
                self._ledger.flights[worker] = flight
        return flight, self._sizes.of_whole if again else self._sizes.to_worker(flight.w)

    def _expect(self, host: int, worker: int) -> None:
        """Look later whether a host was silent for too long since it got, or should have got, a task."""
        if self._cfg.fault.suspect_after is not None:
            self._look_again(self._cfg.fault.suspect_after, host, worker)

    def _look_again(self, after_s: float, host: int, worker: int) -> None:
        ticket = self._ledger.flights[worker].ticket
        self._timers.after(after_s, lambda: self._silent(host, worker, ticket))

    def _unsent(self) -> list[int]:
        """Return the workers in flight whose tasks no process has."""
        sent = self._tasks.workers()
        return [w for w in self._ledger.flights if w not in sent and not (self._held and w in self._held)]

    def _send_unsent(self) -> None:
        """Send every task in flight that no process has."""
        for worker in self._unsent():
            self._send(worker)

    def _stop(self, worker: int, first: int | None = None) -> None:
        """Stop the task of a worker wherever it still is; first: the host from which it has come in."""
        having = self._tasks.stop(worker)
        if self._held:
            self._held.drop(worker)
        wasted = having * self._ledger.flights[worker].task.batches
        self._supervisor.task_over(worker, wasted, first)
        self._end_drained()

    def _obey(self, orders: Orders) -> None:
        """Carry out what the supervisor orders."""
        for order in orders:
            match order:
                case Send(worker, _) if worker not in self._tasks.workers():
                    self._send(worker)  # placed anew: who was chosen may be silent
                case Send(worker, host):
                    self._send_to(host, worker)
                case Stop(worker):
                    self._stop(worker)
                case Ask(host):
                    self._ask(host)
                case LookAgain(worker, host, at_s):
                    self._look_again(at_s - self._clock_s, host, worker)
                case StartAgain(host, backoff_s, held_s):
                    self._timers.after(max(backoff_s, held_s), partial(self._start_again, host))
                case GiveUp(worker):
                    raise self._given_up(worker)
                case BringState(worker):
                    self._bring_state_here(worker)

    def _take(self, news: News) -> Done | None:
        """Do what follows from news; return the finished task, if that is what they are."""
        match news:
            case Answered(sent) if self._held is not None and not sent.again:
                to_server = self._sizes.to_server(self._ledger.flights[sent.worker].task)
                self._held.hold(sent.worker, self._clock_s, to_server, news)
            case Answered():
                return self._answered(news)
            case Failed(sent, text, by_problem):
                worker = sent.worker
                if by_problem:
                    raise ClusterError(f"worker {worker}: {text}")
                raise ClusterError(
                    f"worker {worker} failed in its task: {text}; try --engine sim, which shows where"
                )
            case StateLost(sent):
                self._lost_with_its_machine(sent.worker)
            case Ready(process):
                self._readying.discard(process)
                self._pids[process.host] = process.ranks.pids
                self._obey(self._supervisor.back(process.host, self._unsent()))
            case Replied(process):
                if self._running.get(process.host) is process:
                    self._hosts.answered(process.host, self._clock_s, late=True)
            case Noticed(process):
                self._drain(process)
            case Gone(process):
                self._lose(process)
        return None

    def _answered(self, news: Answered) -> Done | None:
        """Enter a finished task and return it; None if only the state that it leaves was wanted."""
        sent = news.sent
        worker, process = sent.worker, sent.process
        if sent.again:
            self._ledger.states[worker] = sent.left
            self._send_unsent()
            return None
        if self._running.get(process.host) is process:
            self._hosts.answered(process.host, self._clock_s, late=False)
        if self._supervisor.doubts(worker):
            self._stop(worker, first=process.host)
        if process in self._draining:
            self._end_drained()
        flight = self._ledger.flights[worker]
        if sent.left is not None:
            self._ledger.states[worker] = sent.left
            self._states.keep(worker, sent.left, flight, elsewhere=process.node_id != self._here)
        self._now_s = finished_s = self._clock_s
        self._ledger.finish(worker, finished_s)
        to_server = self._sizes.to_server(flight.task)
        self._ledger.traffic.to_server[worker] += to_server
        return Done(
            worker,
            flight.step,
            flight.task.batches,
            flight.w.version,
            news.loss if self._objective.num_weights else None,
            news.value,
            flight.started_s,
            finished_s,
            news.compute_s,
            self._sizes.to_worker(flight.w),
            to_server,
            flight.w,
        )

    def _silent(self, host: int, worker: int, ticket: int) -> None:
        """Enter that so much time has passed since a host got, or should have got, a task, if it has not
        answered.
        """
        flight, process = self._ledger.flights.get(worker), self._running.get(host)
        if flight is None or flight.ticket != ticket or process is None or process in self._readying:
            return
        having, after_s = self._tasks.copies(worker), self._cfg.fault.suspect_after
        if process not in having and (having or host not in self._faults.cut):
            return
        if host not in self._faults.cut and self._tasks.has_answered(process):
            assert after_s is not None
            self._look_again(max(after_s, _LOOK_S), host, worker)  # it was this process that did not look
        else:
            self._obey(self._supervisor.silent(worker, host))

    def _ask(self, host: int) -> None:
        """Ask a host for an answer, which comes when its tasks are done or stopped."""
        self._tasks.ask(self._running[host])

    def _lost_with_its_machine(self, worker: int) -> None:
        """Send a task again whose answer, or the state that it needs, was lost with a machine."""
        if worker in self._ledger.states:
            rescued = self._states.newest(worker)
            if rescued is None:
                self._redo(worker, self._hosts.carrier[worker])  # its task waits for that
            else:
                self._ledger.states[worker] = rescued
        self._send_unsent()

    def _redo(self, worker: int, host: int) -> None:
        """Have the task that made a worker's state computed again, by this host."""
        redo = self._states.to_redo(worker)
        if redo is None or host not in self._running:
            raise ClusterError(
                f"worker {worker}: its state was lost with its machine, and so was the copy; go on from the "
                "last checkpoint with --resume, or give --checkpoint-every for the next time"
            )
        flight, before = redo
        again = self._tasks.flight(flight.task, flight.w, flight.started_s, flight.step)
        self._tasks.send(self._running[host], worker, again, before, again=True)
        self._ledger.traffic.to_worker[worker] += self._sizes.of_whole
        self._ledger.traffic.by_chance = True

    # --- what is due ----------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Do what is due."""
        self._timers.run_due()
        if self._ending:
            os.kill(os.getpid(), signal.SIGKILL)
        while fault := self._plan.pop_due(self._clock_s):
            self._happens(fault)
        self._supervisor.depart()

    def _next_s(self) -> float:
        """Return when, in engine seconds, waiting must end: something is to be done then."""
        timer_s = self._clock_s + self._timers.left_s
        held_s = self._held.next_s() if self._held else math.inf
        return min(self._cfg.stop.max_seconds, self._plan.next_s, timer_s, held_s)

    def _require_a_future(self) -> None:
        """Raise ClusterError if nobody works and nobody will."""
        if self._timers.left_s < math.inf or self._plan.will_join or self._held:
            return
        for worker in self._ledger.flights:
            raise ClusterError(f"worker {worker}: its process is given up; give --restarts more")
        assert not self._ledger.workers, "no worker has a task: nothing can finish"
        raise ClusterError("all members have left, and none will join; give --faults a join with t=")

    # --- hosts ----------------------------------------------------------------------------------------------

    def _lose(self, process: HostProcess) -> None:
        """Enter that a process has ended, and others with it; carry out what follows, and record it."""
        assert self._processes
        lost = {process.host: process, **self._lost_with(process)}
        stranded = set[int]()
        for one in lost.values():
            self._processes.end(one)  # it may only be out of reach, or about to end
            self._readying.discard(one)
            self._draining.discard(one)
            stranded.update(self._tasks.strand(one))
        hosts = sorted(host for host, one in lost.items() if self._running.get(host) is one)
        for host in hosts:
            del self._running[host]
        unsent = self._unsent()
        if hosts:
            tasks = {
                worker: Stranded(flight.task.batches if worker in stranded else 0, worker not in unsent)
                for worker, flight in self._ledger.flights.items()
                if worker in stranded or worker in unsent
            }
            self._obey(self._supervisor.lost(hosts, tasks))
        else:
            self._send_unsent()

    def _lost_with(self, process: HostProcess) -> Mapping[int, HostProcess]:
        """Return, by host, the processes that the same fault ends, or whose end is at hand, too: what follows
        is decided once for all of them, so no worker moves to one that is lost as well.
        """
        if self._running.get(process.host) is not process:
            return {}
        fault, gone = self._supervisor.book.expecting(process.host), self._tasks.gone()
        ending = fault.expected if fault else ()
        return {host: one for host, one in self._running.items() if host in ending or one in gone}

    def _drain(self, process: HostProcess) -> None:
        """Have a process that was asked to end finish its tasks; its workers go on as after a loss."""
        if self._running.get(process.host) is process:
            del self._running[process.host]
            self._readying.discard(process)
            self._draining.add(process)
            self._obey(self._supervisor.asked_to_end(process.host, self._unsent()))
            self._end_drained()

    def _end_drained(self) -> None:
        """End the processes that were asked to end and have no task any more."""
        if self._draining:
            busy = self._tasks.processes()
            for process in self._draining - busy:
                self._draining.discard(process)
                assert self._processes
                self._processes.end(process)

    def _given_up(self, worker: int) -> ClusterError:
        limit = self._cfg.fault.restart_limit
        return ClusterError(
            f"worker {worker} died: its process was lost more than "
            f"{limit.most} times within {limit.within_s:g} s (--restarts); look for the reason in "
            "its log, or allow more"
        )

    def _bring_state_here(self, worker: int) -> None:
        """Use the copy of a state whose machine may be lost."""
        if worker in self._ledger.states and (copy := self._states.newest(worker)) is not None:
            self._ledger.states[worker] = copy

    def _start_again(self, host: int) -> None:
        """Start a new process for a host that was lost, and its node before if that is gone too."""
        assert self._processes
        nodes = self._processes.nodes
        if not nodes.lives(host):
            started = nodes.start_again(host)
            if not started.done():
                self._timers.after(_LOOK_S, lambda: self._start_again(host))
                return
            started.result()
        process = self._running[host] = self._processes.start(host, self._hosts.carried(host))
        self._readying.add(process)
        self._tasks.watch(process)
        timeout_s = self._cfg.ray.start_timeout_s

        def require() -> None:
            waiting = [worker for worker in self._hosts.carried(host) if worker in self._ledger.workers]
            if process in self._readying and waiting:
                workers = ", ".join(map(str, waiting))
                late = lacking(self._cfg, self.device, f"worker {workers}, which died,")
                raise ClusterError(missing_ranks(self._cfg, [process], self._hosts) or late)
            if process in self._readying:  # its workers are elsewhere, and the run goes on
                self._timers.after(timeout_s, require)

        self._timers.after(timeout_s, require)

    # --- faults ---------------------------------------------------------------------------------------------

    def _happens(self, fault: Fault) -> None:
        """Make a fault happen, for real."""
        homes = sorted({self._hosts.home(worker) for worker in fault.workers})
        match fault.kind:
            case "leave":
                for worker in fault.workers:
                    self._supervisor.leave(worker)
            case "join":
                for worker in fault.workers:
                    self._supervisor.join(worker)
            case "driver":
                self._driver_due = True
            case "kill":
                self._faults.end_processes(fault, [h for h in fault.hosts or homes if h in self._running])
            case "node":
                node_id = self._node_ids[fault.node]
                there = [h for h, process in self._running.items() if process.node_id == node_id]
                self._faults.end_processes(fault, there)
            case _:
                self._faults.disturb(fault, homes)

    def _require_nodes(self) -> None:
        """Raise ValueError if --faults ends a node that is not there, or that the run needs."""
        assert self._processes
        letters = [f.node for f in self._cfg.fault.fault_list if isinstance(f, Fault) and f.kind == "node"]
        self._node_ids = self._processes.nodes.named() if letters else {}
        for letter in letters:
            if letter not in self._node_ids:
                names = ", ".join(self._node_ids)
                raise ValueError(f"--faults node:{letter}: the nodes are {names}; name one of those")
            if self._node_ids[letter] == self._here:
                raise ValueError(f"--faults node:{letter}: that is the driver's own node; name another")
