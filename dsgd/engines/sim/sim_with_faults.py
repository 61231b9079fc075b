"""The simulator with hosts and faults: --faults, --hosts, --spares and --suspect-after in virtual time.

Tasks go through a host's queue (`sim_hosts`), then, computed, over the star. The future is a heap of events
(time, rank, serial number, name, arguments): at equal times what is computed is computed before anything
else happens. Results on their way are in a second heap: one comes in when nothing else happens before.

A cut link holds messages back at the host's end. What has left a host comes in, whatever happens to the host.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from dsgd.core.cluster_state import ClusterState
from dsgd.core.model import Workload
from dsgd.core.protocol import ClusterError, Done, DriverLost, TimeUp
from dsgd.core.tasks import Task
from dsgd.core.timing import ComputeTimes
from dsgd.core.weights import Weights
from dsgd.engines.sim.sim import NOTHING_RUNS, SimCluster, SimFlight, as_started, overflow
from dsgd.engines.sim.sim_hosts import QUESTION, Copy, SimHost
from dsgd.scenario.fault import MEMBERSHIP, Fault
from dsgd.scenario.fault_book import OpenFault
from dsgd.scenario.fault_options import FaultConfig
from dsgd.scenario.fault_plan import Plan, outside_at_first
from dsgd.scenario.hosts import Hosts
from dsgd.scenario.star import Network
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

_RAMP_STEPS = 20  # a growing slowdown grows in equal steps: between two of them every time is exact
_COMPUTED, _OTHER = 0, 1  # ranks of events


class HostedCluster(SimCluster):
    """Simulates workers that hosts carry, hosts that fail, and members that come and go.

    fault: what happens, and what is done about it. seed: of what is drawn: losses of spot hosts, and backoff.
    The others are those of SimCluster.
    """

    def __init__(
        self,
        workload: Workload,
        times: ComputeTimes,
        network: Network | None = None,
        *,
        fault: FaultConfig,
        ranks: int = 1,
        seed: int = 0,
        deadline_s: float = math.inf,
        threads: int | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(workload, times, network, deadline_s=deadline_s, threads=threads, device=device)
        num_workers = len(workload.shards)
        num_hosts = fault.hosts or num_workers
        self._fault = fault
        self._hosts = Hosts(
            num_workers,
            num_hosts,
            fault.spares,
            on_loss=fault.on_loss,
            min_workers=fault.min_workers,
            max_restarts=fault.restart_limit.most,
            window_s=fault.restart_limit.within_s,
            seed=seed,
        )
        self._supervisor = Supervisor(self._ledger, self._hosts, lambda: self.now_s, fault.suspect_after)
        self._supervisor.keep(self._ledger, self.restarts)
        self._supervisor.book.answers = 0
        self.faults_seen = self._supervisor.book.seen
        self._plan = Plan(fault.of_engine, seed=seed, hosts=num_hosts + fault.spares, ranks=ranks)
        self._sims = [SimHost() for _ in self._hosts.alive]
        self._copies: dict[int, list[Copy]] = {}  # by worker in flight: where its task is; empty if nowhere
        self._future: list[tuple[float, int, int, str, tuple[Any, ...]]] = []
        self._next_of = [0] * len(self._sims)  # by host: serial number of the event that is valid
        self._back_of = [0] * len(self._sims)
        self._began_s = [-math.inf] * len(self._sims)  # by host: when its newest process is or was started
        self._sent: list[tuple[float, int, int, int]] = []  # results: when sent, task's serial, worker, host
        for worker in outside_at_first(fault.fault_list):
            self._ledger.leave(worker)

    # --- What a strategy calls ------------------------------------------------------------------------------

    def start(self, worker: int, task: Task, w: Weights) -> None:
        ledger, now_s = self._ledger, self.now_s
        step = ledger.steps[worker]
        compute_s = self._times.total(worker, step, task.batches)
        self._serial += 1
        arrived_s = self._peers.begin(worker, now_s) if self._peers else now_s
        host = self._hosts.place(worker, now_s)
        if w.changes is not None:  # a host that is down will be a new process, which holds no weights
            w = w.changes.since(w, self._sims[host].heard.get(worker) if self._hosts.alive[host] else None)
        ledger.start(worker, SimFlight(self._serial, task, w, now_s, arrived_s, compute_s))
        self._copies[worker] = []
        if self._hosts.alive[host]:
            self._send(worker, host, self._sizes.to_worker(w))
        if self._values:
            self._values.add(worker, task, step, w.vector)
        self._plan.at_step(worker, step, task.batches)

    def cancel(self, worker: int) -> None:
        computed_s = 0.0
        for copy in self._copies[worker]:
            computed_s += self._sims[copy.host].computed_s(copy, self.now_s)
        self._forget(worker)
        self._ledger.cancel(worker, computed_s)

    def next_done(self) -> Done | None:
        book = self._supervisor.book
        book.at_once = False
        try:
            return self._wait_for_one()
        finally:
            book.answered()

    def _wait_for_one(self) -> Done | None:
        ledger, supervisor = self._ledger, self._supervisor
        if not supervisor.changed:
            self._happen_due()
        while not supervisor.changed:
            self._drop_void_results()
            if not ledger.flights and not self._somebody_may_come():
                raise self._nobody()
            event_s = self._next_event_s()
            next_s = min(self._next_result_s(), event_s)
            if not next_s < math.inf:
                raise overflow(next(iter(ledger.flights)))
            if next_s > self._deadline_s:
                self.now_s = self._deadline_s
                raise TimeUp
            self.now_s = max(self.now_s, next_s)
            if event_s > next_s:
                return self._deliver()
            if self._future and self._future[0][0] == next_s:
                self._pass_event()
            else:
                self._happen_due(next_s)
        supervisor.changed = False
        return None

    def _happen_due(self, until_s: float = -math.inf) -> None:
        """Have happen in one go what is due, timed faults up to a moment, and let members depart."""
        while fault := self._plan.pop_due(until_s):
            self._happens(fault)
        self._supervisor.depart()

    def reached(self, version: int) -> None:
        self._supervisor.book.version = version
        for fault in self._plan.at_update(version):
            if fault.kind == "driver":
                self._happens(fault)

    def stand_still(self, seconds: float) -> None:
        """Have the server do nothing for so long; raise DriverLost if the driver is lost meanwhile."""
        until_s = self.now_s + seconds
        while self._next_event_s() <= min(until_s, self._deadline_s):
            self._pass_event()
        self.now_s = max(self.now_s, until_s)
        if self._peers:
            self._sent = as_started(self._sent, self.now_s)

    def ended(self) -> Sequence[str]:
        self._supervisor.book.end_all()
        return self._plan.left

    # --- Tasks ----------------------------------------------------------------------------------------------

    def _send(self, worker: int, host: int, to_worker: int | None = None) -> None:
        """Send the task of a worker to a host, for the first time in so many bytes, else with all weights."""
        flight, sim = self._ledger.flights[worker], self._sims[host]
        to_worker = self._sizes.of_whole if to_worker is None else to_worker
        sim.heard[worker] = flight.w.version
        arrived_s = self.now_s if self._instant else self._star.send(self.now_s, to_worker, worker)
        self._ledger.traffic.to_worker[worker] += to_worker
        arrived_s = max(arrived_s, flight.arrived_s)
        self._serial += 1
        copy = Copy(
            number=self._serial,
            worker=worker,
            serial=flight.serial,
            host=host,
            arrived_s=arrived_s,
            left_s=flight.compute_s,
        )
        self._copies[worker].append(copy)
        sim.add(copy)
        if sim.queue[0] is copy:
            self._expect(host)
        if self._fault.suspect_after is not None:
            self._at(self.now_s + self._fault.suspect_after, "silence", worker, flight.serial, host)

    def _expect(self, host: int) -> None:
        """Enter when the host's first task will be computed; what was entered before is void."""
        finish_s = self._sims[host].finish_s
        self._next_of[host] = 0 if finish_s is None else self._at(finish_s, "computed", host, rank=_COMPUTED)

    def _computed(self, host: int) -> None:
        sim = self._sims[host]
        copy = sim.finish(self.now_s)
        self._expect(host)
        if sim.cut_until_s > self.now_s:
            sim.held.append(copy)
        else:
            self._leaves(copy)

    def _leaves(self, copy: Copy) -> None:
        """Send what a host has computed to the server."""
        if copy.worker == QUESTION:
            self._hosts.answered(copy.host, self.now_s, late=True)
        else:
            sent_s = self.now_s
            if self._many_links:
                to_server = self._sizes.to_server(self._ledger.flights[copy.worker].task)
                sent_s = self._star.pass_links(sent_s, to_server, copy.worker)
            heapq.heappush(self._sent, (sent_s, copy.serial, copy.worker, copy.host))

    def _drop_void_results(self) -> None:
        flights, sent = self._ledger.flights, self._sent
        while sent and (sent[0][2] not in flights or flights[sent[0][2]].serial != sent[0][1]):
            heapq.heappop(sent)

    def _next_result_s(self) -> float:
        """Return when the next result comes in, if nothing happens before."""
        if not self._sent:
            return math.inf
        sent_s, _, worker, _ = self._sent[0]
        return self._star.arrival_s(sent_s, self._sizes.to_server(self._ledger.flights[worker].task))

    def _deliver(self) -> Done:
        sent_s, _, worker, host = heapq.heappop(self._sent)
        ledger, to_server = self._ledger, self._sizes.to_server(self._ledger.flights[worker].task)
        finished_s = max(self._star.collect(sent_s, to_server), self.now_s)
        step, copies = ledger.steps[worker], self._copies[worker]
        first = next(copy for copy in copies if copy.host == host)
        loss, value = self._values.take(worker) if self._values else (None, self.reading(worker).vector)
        if self._hosts.alive[host] and first.since_s >= self._began_s[host]:  # not of a process that was lost
            self._hosts.answered(host, finished_s, late=False)
        self._forget(worker, first)
        ledger.traffic.to_server[worker] += to_server
        if self._has_backups:
            ledger.traffic.to_backups[worker] += to_server
        flight = ledger.finish(worker, finished_s)
        return Done(
            worker,
            step,
            flight.task.batches,
            flight.w.version,
            loss,
            value,
            flight.started_s,
            finished_s,
            first.computed_s,
            self._sizes.to_worker(flight.w),
            to_server,
            flight.w,
        )

    def _forget(self, worker: int, first: Copy | None = None) -> None:
        """Stop all copies of a worker's task but the one that came in, and close the suspicion about it."""
        batches, wasted = self._ledger.flights[worker].task.batches, 0
        for copy in self._copies.pop(worker):
            if copy is not first:
                sim = self._sims[copy.host]
                wasted += batches if sim.computed_s(copy, self.now_s) > 0 else 0
                is_next = sim.queue[:1] == [copy]
                sim.remove(copy, self.now_s)
                if is_next:
                    self._expect(copy.host)
        if self._values and first is None:
            self._values.drop(worker)
        self._supervisor.task_over(worker, wasted, None if first is None else first.host)

    # --- Events ---------------------------------------------------------------------------------------------

    def _next_event_s(self) -> float:
        return min(self._future[0][0] if self._future else math.inf, self._plan.next_s)

    def _pass_event(self) -> None:
        """Let the next thing happen, though the strategy does not wait; members leave and join later."""
        self.now_s = max(self.now_s, self._next_event_s())
        if self._future and self._future[0][0] <= self._plan.next_s:
            _, _, serial, name, arguments = heapq.heappop(self._future)
            self._occurs(name, serial, arguments)
            return
        _, fault = self._plan.pop_timed()
        if fault.kind in MEMBERSHIP:
            self._plan.put_off(fault)
        else:
            self._happens(fault)

    def _at(self, at_s: float, name: str, *arguments: Any, rank: int = _OTHER) -> int:
        self._serial += 1
        heapq.heappush(self._future, (at_s, rank, self._serial, name, arguments))
        return self._serial

    def _occurs(self, name: str, serial: int, arguments: tuple[Any, ...]) -> None:
        match name, arguments:
            case "computed", (host,) if serial == self._next_of[host]:
                self._computed(host)
            case "back", (host,) if serial == self._back_of[host]:
                self._back_of[host] = 0
                unsent = sorted(worker for worker, copies in self._copies.items() if not copies)
                self._obey(self._supervisor.back(host, unsent))
            case "factor", (number, factor) if passing := self._passing(number):
                self._slow(passing, factor)
            case "over", (number,) if passing := self._passing(number):
                self._passes(passing)
            case "silence", (worker, task, host):
                self._silent(worker, task, host)
            case "silence", (worker, task):  # of a checkpoint before hosts were suspected
                self._silent(worker, task, next((copy.host for copy in self._copies.get(worker, ())), 0))

    def _passing(self, number: int) -> OpenFault | None:
        """Return the fault with this number, if it is not over."""
        return next((fault for fault in self._supervisor.book.open if fault.number == number), None)

    def _numbered(self, fault: OpenFault) -> OpenFault:
        self._serial += 1
        fault.number = self._serial
        return fault

    def _silent(self, worker: int, task: int, host: int) -> None:
        """Enter that so much time has passed since a host got a task, if it has it still."""
        flight = self._ledger.flights.get(worker)
        if flight is None or flight.serial != task or self._fault.suspect_after is None:
            return
        if host in [copy.host for copy in self._copies[worker]]:
            self._obey(self._supervisor.silent(worker, host))

    def _obey(self, orders: Orders) -> None:
        """Carry out what the supervisor orders."""
        for order in orders:
            match order:
                case Send(worker, host):
                    self._send(worker, host)
                case Stop(worker):
                    self._forget(worker)
                case Ask(host):
                    self._ask(host)
                case LookAgain(worker, host, at_s):
                    self._at(at_s, "silence", worker, self._ledger.flights[worker].serial, host)
                case StartAgain(host, backoff_s, held_s):
                    began_s = self._began_s[host] = self.now_s + max(backoff_s, held_s)
                    self._back_of[host] = self._at(began_s + self._fault.restart_s, "back", host)
                case GiveUp(worker):
                    raise self._given_up(worker)
                case BringState():
                    pass  # a simulated worker has its state everywhere

    def _happens(self, fault: Fault) -> None:
        supervisor = self._supervisor
        match fault.kind:
            case "leave":
                for worker in fault.workers:
                    supervisor.leave(worker)
            case "join":
                for worker in fault.workers:
                    supervisor.join(worker)
            case "driver":
                supervisor.book.note("driver", (), "the run goes on from its last checkpoint")
                raise DriverLost(fault.lasts_s or 0.0)
            case "kill" if fault.servers:
                self._lose_servers(fault)
            case "kill":
                self._lose(fault, fault.hosts or self._homes(fault))
            case "node":
                nodes, number = self._fault.nodes, ord(fault.node) - ord("a")
                self._lose(fault, [h for h in range(len(self._sims)) if h % nodes == number])
            case _:
                self._disturb(fault, self._homes(fault))

    def _lose_servers(self, fault: Fault) -> None:
        """Have backups take over: all waits until the loss has been noticed."""
        took_s = fault.lasts_s or 0.0
        loss = self._supervisor.book.begin("kill")
        for number in fault.servers:
            self._supervisor.server_lost(number, "its backup took over", loss)
        loss.seen = loss.seen._replace(detected_s=took_s)
        self._supervisor.book.close(loss, took_s)
        self.stand_still(took_s)

    def _homes(self, fault: Fault) -> Sequence[int]:
        return sorted({self._hosts.home(worker) for worker in fault.workers})

    def _somebody_may_come(self) -> bool:
        """Whether, without any task in flight, the members may still change."""
        returning = bool(self._hosts.dropped) and any(self._back_of)  # whose host is given up too
        return returning or self._plan.will_join

    def _nobody(self) -> Exception:
        if self._ledger.workers:
            return AssertionError(NOTHING_RUNS)
        return ClusterError("all members have left, and none will join; give --faults a join with t=")

    # --- Hosts ----------------------------------------------------------------------------------------------

    def _lose(self, fault: Fault, lost: Sequence[int]) -> None:
        """Lose hosts, all at once."""
        now_s = self.now_s
        lost = [host for host in lost if self._has_process(host)]
        if not lost:
            self._supervisor.book.expect(fault.kind, (), 0.0)
            return
        begun: dict[int, bool] = {}  # by worker whose task was there
        for host in lost:
            sim = self._sims[host]
            computed = {copy: sim.computed_s(copy, now_s) > 0 for copy in [*sim.held, *sim.queue]}
            for copy in sim.lose():
                if copy.worker != QUESTION:
                    self._copies[copy.worker].remove(copy)
                    begun[copy.worker] = computed[copy] or begun.get(copy.worker, False)
            self._expect(host)
            self._back_of[host] = 0
        tasks = {
            worker: Stranded(
                self._ledger.flights[worker].task.batches if had_begun else 0, bool(self._copies[worker])
            )
            for worker, had_begun in begun.items()
        }
        loss = self._supervisor.book.begin(fault.kind, held_s=fault.lasts_s or 0.0)
        self._obey(self._supervisor.lost(lost, tasks, loss))
        self._numbered(loss)

    def _has_process(self, host: int) -> bool:
        """Whether there is a process, which computes or is being started."""
        return self._hosts.alive[host] or (bool(self._back_of[host]) and self._began_s[host] <= self.now_s)

    def _given_up(self, worker: int) -> ClusterError:
        limit = self._fault.restart_limit
        return ClusterError(
            f"worker {worker}: its process was lost more than {limit.most} times within "
            f"{limit.within_s:g} s; raise --restarts or use --on-loss rehost"
        )

    # --- Faults that pass -----------------------------------------------------------------------------------

    def _disturb(self, fault: Fault, hosts: Sequence[int]) -> None:
        """Pause, slow or cut off hosts."""
        if fault.kind == "pause":
            hosts = [host for host in hosts if self._hosts.alive[host]]
        passing = self._numbered(self._supervisor.disturb(fault.kind, hosts))
        number, lasts_s = passing.number, fault.size if fault.kind == "pause" else fault.lasts_s
        until_s = self.now_s + (math.inf if lasts_s is None else lasts_s)
        if fault.kind == "slow":
            start = fault.size if fault.from_size is None else fault.from_size
            self._slow(passing, start)
            if fault.from_size is not None and lasts_s is not None:
                for k in range(1, _RAMP_STEPS + 1):
                    factor = start + (fault.size - start) * k / _RAMP_STEPS
                    self._at(self.now_s + lasts_s * k / _RAMP_STEPS, "factor", number, factor)
                return  # it stays
        for host in passing.passing:
            if fault.kind == "pause":
                self._sims[host].pause(self.now_s, until_s)
            elif fault.kind == "cut":
                self._sims[host].cut(self.now_s, until_s)
            self._expect(host)
        if until_s < math.inf:
            self._at(until_s, "over", number)

    def _slow(self, passing: OpenFault, factor: float | None) -> None:
        for host in passing.passing:
            self._sims[host].slow(self.now_s, passing.number, factor)
            self._expect(host)

    def _passes(self, passing: OpenFault) -> None:
        """Have a slowdown, a pause or a cut end."""
        if passing.seen.kind == "slow":
            self._slow(passing, None)
        for host in passing.passing:
            sim = self._sims[host]
            if sim.cut_until_s <= self.now_s:
                for copy in sim.held:
                    self._leaves(copy)
                sim.held.clear()
        self._supervisor.book.end(passing)

    def _ask(self, host: int) -> None:
        """Ask a host for an answer, which comes when its tasks are done or stopped."""
        self._serial += 1
        sim, now_s = self._sims[host], self.now_s
        question = Copy(
            number=self._serial, worker=QUESTION, serial=0, host=host, arrived_s=now_s, left_s=0.0
        )
        sim.add(question)
        if sim.queue[0] is question:
            self._expect(host)

    # --- State ----------------------------------------------------------------------------------------------

    def state(self) -> ClusterState:
        state = super().state()
        future: dict[str, Any] = {
            "version": self._supervisor.book.version,
            "answers": self._supervisor.waits,
            "sims": [sim.state() for sim in self._sims],
            "next_of": list(self._next_of),
            "back_of": list(self._back_of),
            "began_s": [None if at_s == -math.inf else at_s for at_s in self._began_s],
            "future": [[at_s, rank, n, name, list(args)] for at_s, rank, n, name, args in self._future],
            "sent": [list(result) for result in self._sent],
            "away": [
                copy.state()
                for copies in self._copies.values()
                for copy in copies
                if copy not in self._sims[copy.host].queue and copy not in self._sims[copy.host].held
            ],
            **self._supervisor.state(),
        }
        return replace(
            state,
            hosts=self._hosts.state(),
            faults=self._plan.position(),
            engine={**state.engine, **future},
        )

    def restore(self, state: ClusterState) -> None:
        flights, hosts = self._restore_books(state), range(len(self._sims))
        if state.hosts is None or state.faults is None:
            raise ValueError("has no hosts")
        self._hosts.restore(state.hosts)
        future = state.engine
        due = [args[0] for *_, name, args in future["future"] if name == "fault"]
        self._plan.go_to({"due": due, **state.faults})  # earlier versions kept it there
        self._supervisor.keep(self._ledger, self.restarts)
        answers = future.get("answers")  # earlier versions did not count
        self._supervisor.book.version = int(future["version"])
        self._supervisor.book.answers = None if answers is None else int(answers)
        began_s = future.get("began_s", [None] * len(hosts))  # earlier versions did not keep it
        of_hosts = zip(hosts, future["sims"], future["next_of"], future["back_of"], began_s, strict=True)
        _, sims, next_of, back_of, began_s = zip(*of_hosts, strict=True)
        self._sims, self._next_of, self._back_of = [*map(SimHost.restored, sims)], [*next_of], [*back_of]
        self._began_s = [-math.inf if at_s is None else float(at_s) for at_s in began_s]
        if any(n and not sim.queue for sim, n in zip(self._sims, next_of, strict=True)):
            raise ValueError("a host computes a task that it does not have")
        events = msgspec.convert(future["future"], list[tuple[float, int, int, str, tuple[Any, ...]]])
        self._future = [event for event in events if event[3] != "fault"]
        self._sent = msgspec.convert(future["sent"], list[tuple[float, int, int, int]])
        heapq.heapify(self._future)
        heapq.heapify(self._sent)
        self._copies = {worker: [] for worker in flights}
        away = [Copy.restored(copy) for copy in future["away"]]
        here = [copy for sim in self._sims for copy in (*sim.queue, *sim.held)]
        for copy in sorted((*away, *here), key=lambda copy: copy.number):
            if copy.worker != QUESTION:
                self._copies[copy.worker].append(copy)
        self._supervisor.restore(future)
