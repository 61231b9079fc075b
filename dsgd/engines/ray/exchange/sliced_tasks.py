"""Tasks whose weights and values go from servers to workers and back in slices, as Ray's objects.

The driver passes references on. A slice that is lost with a machine has a copy where another replica of its
server is, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import ray
from ray.exceptions import ObjectLostError

from dsgd.core.protocol import ClusterError
from dsgd.core.slices import Slices
from dsgd.core.weights import EMPTY, Vector, Weights
from dsgd.engines.ray.driver.news import Answered, Sent, StateLost
from dsgd.engines.ray.driver.remote_weights import Fetch
from dsgd.engines.ray.driver.sent_tasks import SentTasks
from dsgd.engines.ray.transport.messages import ALONE, REPLY, REQUEST, WHOLE
from dsgd.engines.ray.worker.slice_server import SlicedMessage
from dsgd.transforms.compressed import Compressed


class SlicedVector:
    """A vector (D,) that other processes have, in slices; called, it is fetched, once.

    copies: by slice, references to it; more than one where servers have replicas.
    """

    def __init__(self, copies: Sequence[Sequence[Any]]) -> None:
        self._copies = [list(refs) for refs in copies]

    @property
    def refs(self) -> list[Any]:
        """By slice, a reference to it."""
        return [refs[0] for refs in self._copies]

    def messages(self) -> Sequence[SlicedMessage | None]:
        """Return, by slice, what makes it of a codec's bytes; None: it is sent as it is."""
        return [None] * len(self._copies)

    def __call__(self) -> Vector:
        return self._here

    @cached_property
    def _here(self) -> Vector:
        found = np.concatenate(ray.get(self.refs))
        found.setflags(write=False)
        return found

    def drop_lost(self) -> None:
        """Forget what was lost with a machine; raises ClusterError if nothing is left of a slice."""
        for number, refs in enumerate(self._copies):
            refs[:] = [ref for ref in refs if _is_there(ref)]
            if not refs:
                raise ClusterError(
                    f"slice {number} of a vector was lost with its machine; go on from the last checkpoint "
                    "with --resume, and give replicas=2 with --topology, which keeps each on two machines"
                )


def _is_there(ref: Any) -> bool:
    try:
        ray.get(ref)
    except ObjectLostError:
        return False
    return True


class CompressedVector(SlicedVector):
    """A vector (D,) that is a codec's bytes, which each server gets, and decodes its slice of.

    ref: refers to them.
    """

    def __init__(self, ref: Any, slices: Slices, message: SlicedMessage) -> None:
        super().__init__([[ref]] * len(slices.bounds))
        self._slices, self._message = slices, message

    def messages(self) -> Sequence[SlicedMessage | None]:
        return [self._message._replace(bounds=bounds) for bounds in self._slices.bounds]

    @cached_property
    def _here(self) -> Vector:
        found = self._message.value(ray.get(self.refs[0]))
        found.setflags(write=False)
        return found


class SlicedWeights(Fetch):
    """What the driver has of a version that servers hold; slots: fetches those that they hold now.

    Only the newest version has them: no task reads slots, and servers keep those of one version.
    """

    def __init__(self, sliced: SlicedVector, slots: Callable[[], Mapping[str, Vector]]) -> None:
        super().__init__(sliced, slots)
        self.sliced = sliced
        self._is_old = False

    @property
    def has_slots(self) -> bool:
        """Whether `slots` are those that the rule had left at this version."""
        return not self._is_old or "slots" in vars(self)

    def is_old(self) -> None:
        """Enter that the servers have made the next version: slots that were not fetched are gone."""
        self._is_old, self._slots = True, lambda: EMPTY


class SlicedTasks(SentTasks):
    """Sends all tasks by calls of Ray, weights and values as references to slices."""

    def __init__(self, num_weights: int, padding_bytes: int) -> None:
        assert not padding_bytes
        super().__init__(num_weights, padding_bytes)
        self.slices = Slices(num_weights, 1)
        self._put: tuple[Vector | None, SlicedVector | None] = None, None

    def use_links(self, here: str, processes: int) -> None:
        """All goes through Ray's objects, also on the driver's machine."""

    def sliced(self, vector: Vector) -> SlicedVector:
        """Return a vector of the driver's as others get it; that of the last call is kept."""
        last, found = self._put
        if found is None or last is not vector:
            found = SlicedVector([[ray.put(part)] for part in self.slices.of(vector)])
            self._put = vector, found
        return found

    def of_weights(self, w: Weights) -> SlicedVector:
        """Return the slices of a version of the weights."""
        held = w[0]
        return held.sliced if isinstance(held, SlicedWeights) else self.sliced(w.vector)

    def _send_by_ray(self, sent: Sent) -> None:
        ticket, task, w, _, step, pickled = sent.flight
        count = 1 if isinstance(task, Compressed) else len(self.slices.bounds)
        keeps = bool(task.state_rows and self._num_weights)
        refs, come = self._sent_slices(sent)
        head = REQUEST.pack(
            sent.worker, ticket, step, len(pickled), sent.slower, sent.left_by, w.version, come
        )
        call = sent.process.actor.run_sliced.options(num_returns=1 + count + keeps)
        ref, *parts = call.remote(head + pickled, sent.state, len(self.slices.bounds), *refs)
        if keeps:
            *parts, sent.left = parts
        sent.value = parts
        self._report(ref, sent)

    def _sent_slices(self, sent: Sent) -> tuple[Sequence[Any], int]:
        """Return references to the weights of a task, in slices or as messages, and how they come."""
        w = sent.flight.w
        if w.changes is None or sent.again:
            return self.of_weights(w).refs, ALONE
        if w.wire_bytes is None:
            return self.of_weights(w).refs, WHOLE
        sent_w, come = self._sent_weights(sent)
        return [sent_w.ref(always=True)], come

    def _computed(self, sent: Sent, result: Any) -> Answered:
        loss, compute_s = REPLY.unpack(result)
        task, value = sent.flight.task, cast("Any", SlicedVector([[ref] for ref in sent.value]))
        if isinstance(task, Compressed):
            message = SlicedMessage(task, sent.worker, sent.flight.step, self._num_weights)
            value = CompressedVector(sent.value[0], self.slices, message)
        return Answered(sent, loss, compute_s, value)

    def _lost(self, sent: Sent) -> StateLost:
        self.of_weights(sent.flight.w).drop_lost()
        return super()._lost(sent)
