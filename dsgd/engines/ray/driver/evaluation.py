"""Evaluations in a process for themselves: not on the driver's interpreter, and not where workers compute.

The process asks for no whole CPU and no share of a GPU, so it never takes a worker's place; where workers
compute on a GPU, it uses the one of worker 0. It is started with the first evaluation and ends with the run.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dsgd.engines.ray.connection.connect import ENDED, last_line

# isort: split
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dsgd.core.model import Evaluation, Workload
from dsgd.core.problem import ProblemError, TrialGradient
from dsgd.core.protocol import ClusterError, EvaluationLost
from dsgd.core.weights import Vector

_TRIES = 2


class EvaluatingActor:
    """The actor. gpus: the value of CUDA_VISIBLE_DEVICES, if it is to use a GPU."""

    def __init__(self, gpus: str | None) -> None:
        if gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus  # before torch looks
        self._workload: Workload | None = None

    def __repr__(self) -> str:
        return "the evaluation"  # under which Ray publishes its log

    def ready(self) -> int:
        """Return the process id."""
        return os.getpid()

    def evaluate(
        self, workload: list[Any], w: Vector, models: Mapping[int, Vector] | None
    ) -> Evaluation | None:
        """Return the evaluation of weights w (D,), beside workers' own, on the workload of this reference."""
        if self._workload is None:
            import torch

            torch.set_num_threads(1)  # as in the simulator: the last bit of a sum depends on it
            self._workload = ray.get(workload[0])
        assert self._workload
        return self._workload.evaluate(w, models)


class EvaluatingProcess:
    """Evaluates, one after another, in a process that is started again when it is lost.

    place: returns the node's id and the GPUs of worker 0, as CUDA_VISIBLE_DEVICES names them; None for the
    driver's node and no GPU. start_timeout_s: seconds within which the process must have started.
    """

    def __init__(
        self,
        workload: Workload,
        device: str,
        place: Callable[[], tuple[str, str] | None],
        start_timeout_s: float,
    ) -> None:
        self._device = device
        self._workload = workload._replace(objective=workload.objective.for_evaluation(device), shards=())
        self._place, self._start_timeout_s = place, start_timeout_s
        self._held: Any = None
        self._actor: Any = None
        self._closed = False
        self._lock = threading.Lock()
        self.pid: int | None = None
        """Of the process that evaluated last."""

    def try_out(self) -> TrialGradient:
        """Return what was seen when a gradient and an evaluation were tried, the latter on the driver's CPU
        unless it is for a GPU.

        Raises ProblemError for a workload that cannot be evaluated.
        """
        objective = self._workload.objective
        return objective.for_evaluation("cpu").try_evaluation() if self._device == "cpu" else objective.trial

    def evaluate(self, w: Vector, models: Mapping[int, Vector] | None = None) -> Evaluation | None:
        """Return the evaluation of weights w (D,), with workers' own weights (D,) beside them.

        Raises EvaluationLost if the process is lost, and the one after it too, if none starts in time, or if
        the run is over; ClusterError if the workload's own code fails.
        """
        sent, beside = ray.put(w), ray.put(models)
        for _ in range(_TRIES):
            actor = self._started()
            try:
                self.pid = ray.get(actor.ready.remote(), timeout=self._start_timeout_s)
                found: Evaluation | None = ray.get(actor.evaluate.remote([self._held], sent, beside))
            except RayTaskError as error:
                text = error.cause if isinstance(error.cause, ProblemError) else repr(error.cause)
                raise ClusterError(f"the evaluation failed: {text}") from error
            except GetTimeoutError:
                self._forget(actor)
                ray.kill(actor)
                within = f"--start-timeout-s {self._start_timeout_s:g}"
                raise EvaluationLost(f"its process did not start within {within}; allow more") from None
            except ENDED as error:
                lost = error
                self._forget(actor)
            except RayError as error:
                raise ClusterError(f"the evaluation failed: {last_line(error)}") from error
            else:
                return found
        raise EvaluationLost(
            f"its process was lost {_TRIES} times ({last_line(lost)}); look at this machine's memory"
        ) from lost

    def _started(self) -> Any:
        """Return the actor, a new one if there is none."""
        with self._lock:
            if self._closed:
                raise EvaluationLost("the run is over")
            if self._actor is None:
                place = self._place()
                node_id, gpus = place or (ray.get_runtime_context().get_node_id(), None)
                if self._held is None:
                    self._held = ray.put(self._workload)
                self._actor = (
                    ray.remote(EvaluatingActor)
                    .options(
                        num_cpus=0,
                        num_gpus=0,
                        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=True),
                        enable_task_events=False,
                    )
                    .remote(gpus)
                )
            return self._actor

    def _forget(self, actor: Any) -> None:
        with self._lock:
            if self._actor is actor:
                self._actor = None

    def close(self) -> None:
        """End the process; an evaluation that waits for it is lost."""
        with self._lock:
            self._closed = True
            actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(Exception):  # the cluster may be gone already
                ray.kill(actor)
