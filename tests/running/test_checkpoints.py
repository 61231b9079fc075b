"""A run's state as the bytes of a file: every bit comes back, and only what is in the vocabulary goes in."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st

from dsgd.core.cluster_state import ClusterState, InFlight
from dsgd.core.rules import Schedule
from dsgd.core.tasks import LocalSGD, gradient
from dsgd.core.weights import Vector, Weights
from dsgd.records.stores.store import MemoryStore, Part, name_of
from dsgd.running.checkpoints.checkpointer import Checkpointer, Tier
from dsgd.running.checkpoints.codec import Decoder, Encoder, NotKept, vocabulary
from dsgd.running.checkpoints.run_state import RunState, from_bytes, to_parts
from dsgd.theory.checkpointing import checkpoint_interval

KNOWN = vocabulary(None)


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def written(state: RunState, known: Any = KNOWN) -> bytes:
    return b"".join(to_parts(state, known))


def cluster(workers: int, flights: list[InFlight] | None = None, **fields: Any) -> ClusterState:
    """Return the state of a cluster, with numbers that are all different where they can be."""
    some: dict[str, Any] = {
        "now_s": 1.5,
        "workers": tuple(range(workers)),
        "clocks": {worker: worker + 1 for worker in range(workers)},
        "slowest": 1,
        "fastest": workers,
        "latest": None,
        "waiting": [],
        "flights": flights or [],
        "steps": list(range(workers)),
        "came_in_s": [(worker * 0.1, worker * 0.3) for worker in range(workers)],
        "given": 7,
        "lost": 2,
        "cancelled": [0] * workers,
        "cancelled_s": [math.pi] * workers,
        "came_in": 5,
        "restarts": [0] * workers,
        "engine": {"serial": 9, "flights": [[1, 0.1, 0.2]]},
    }
    return ClusterState(**some | fields)


def again(tree: Any, known: Any = KNOWN) -> Any:
    encoder = Encoder(known)
    decoder = Decoder(b"".join(encoder.parts({"it": encoder.tree(tree)})), known)
    return decoder.tree(decoder.document["it"])


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner)  # also empty ones
    ),
    max_leaves=20,
)


@given(trees)
def test_a_kept_value_comes_back_as_it_was(tree: Any) -> None:
    """Numbers to the last bit, NaN and infinity included; a tuple is no list, 1 neither 1.0 nor True."""
    assert repr(again(tree)) == repr(tree)


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"])
def test_an_array_comes_back_bit_for_bit(dtype: str) -> None:
    """Of every type and shape, empty, without dimensions or not contiguous: the same bits, read-only."""
    full = np.random.default_rng(0).integers(0, 256, (6, 8 * 4), np.uint8)
    some = full.view(np.uint8 if dtype == "?" else f"<{dtype}")
    some = some > 100 if dtype == "?" else some
    for array in (some, some[0], some[::2, ::2], some.T, some[:0], some[0, 0, ...]):
        back = again({"it": array})["it"]
        assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert not back.flags.writeable


def test_what_is_written_is_a_safetensors_file() -> None:
    """The library of the format reads the same arrays, each once however often it is shared."""
    w = Weights(vector(1, 2), 3, {"velocity": vector(3, 4)})
    state = RunState(weights=w, cluster=cluster(2, [InFlight(1, gradient, w, 0.5)]))
    found = safetensors.numpy.load(written(state))
    assert found["F32[2]"].tolist() == [[1, 2], [3, 4]]


def test_a_state_comes_back_as_it_was() -> None:
    """All of a run's state; what was one object, as weights in flight are the newest, is one again."""
    old, schedule = Weights(vector(0, -0.0), 2, {}, (1, {3: math.inf})), Schedule(shape="cosine", steps=9)
    new = Weights(vector(1, math.nan), 3, {"velocity": vector(3, 4)})
    task = LocalSGD(batches=3, lr=0.1, schedule=schedule)
    flights = [InFlight(0, task, old, 0.1), InFlight(2, gradient, new, 0.2), InFlight(1, task, new, 0.3)]
    asked = cluster(
        3, flights, states={1: np.ones((2, 2), np.float32)}, hosts={"alive": [True]}, latest=2, leaving=[1]
    )
    back = from_bytes(written(RunState(weights=new, cluster=asked, due_s={"disk": 3.5}, digest="d")), KNOWN)
    assert back.weights is back.cluster.flights[1].origin is back.cluster.flights[2].origin
    assert [(f.worker, f.task, f.origin.version, f.started_s) for f in back.cluster.flights] == [
        (f.worker, f.task, f.origin.version, f.started_s) for f in flights
    ]
    assert back.weights.vector.tobytes() == new.vector.tobytes()
    assert back.cluster.flights[0].origin.kept == (1, {3: math.inf})
    assert back.cluster.states[1].tolist() == [[1, 1], [1, 1]]
    plain = {name: value for name, value in vars(asked).items() if name not in ("flights", "states")}
    assert {name: type(value)(getattr(back.cluster, name)) for name, value in plain.items() if value} == {
        name: value for name, value in plain.items() if value
    }
    assert (back.due_s, back.digest) == ({"disk": 3.5}, "d")


@dataclass(frozen=True)
class Sign:
    """A task of a user's own strategy."""

    share: float


def test_only_the_vocabulary_is_kept() -> None:
    """Code, objects and arrays of objects are refused with what they are; a user's own task is known by its
    strategy, and by no other.
    """
    strategy = ModuleType("train_mine")
    vars(strategy)["Sign"] = Sign
    assert again(Sign(0.5), vocabulary(strategy)) == Sign(0.5)
    for wrong in (lambda: 0, object(), {1, 2}, np.array([None]), Sign(0.5), 1j, b"bytes"):
        with pytest.raises(NotKept, match=r"of type|array of object"):
            again([{"a": (wrong,)}])
    w = Weights(vector(1), 0, {}, {"best": lambda: 0})
    with pytest.raises(NotKept, match=r"^Weights.kept has <function.*>, of type function; keep numbers"):
        written(RunState(weights=w, cluster=cluster(1)))


def _set(path: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Return an edit of what a checkpoint's metadata has at a path."""

    def edit(header: dict[str, Any], at: dict[str, Any]) -> None:
        *folders, name = path.split("/")
        for folder in folders:
            at = at[folder]
        at[name] = value

    return edit


def _set_count(header: dict[str, Any], content: dict[str, Any]) -> None:
    content["tally"]["values"][content["tally"]["keys"].index("steps")] = [1, 2]


EDITS: Mapping[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "a later format": (_set("format", 2), "is of format 2; this version reads 1"),
    "no document": (_set("cluster", None), "is not a checkpoint (TypeError"),
    "code": (_set("tasks", [{"of": "os.system", "fields": {"a": "true"}}] * 4), "class os.system, which"),
    "no task": (_set("tasks", [1] * 4), "has 1, which is no task"),
    "endless rows": (lambda header, _: header["F32[65]"].update(shape=[1 << 60, 65]), "is not a checkpoint"),
    "text for a count": (_set("collected", "x"), "collected: Expected `int`, got `str`"),
    "a list for lengths": (_set("lengths", [1]), "lengths: Expected `object`, got `array`"),
    "a table for numbers": (_set("cluster/steps", ["I64[3]", True]), "an array of 3 axes where 1 belong"),
    "a member without a clock": (_set("cluster/latest", 9), "has no clock of worker 9"),
    "counts of two workers": (_set_count, "the tally's steps cannot be [1, 2]"),
    "other weights": (_set("versions/vectors", ["I64[3]", ["I64[3]", 15]]), "weights of int64[3], not [65]"),
    "no engine": (_set("cluster/engine", {}), "does not fit the run (KeyError: 'flights')"),
    "a third host": (_set("cluster/hosts/alive", [True] * 3), "alive of 3, not of 2"),
    "text for a time": (_set("cluster/hosts/heard_s", ["x", 0]), "could not convert string to float: 'x'"),
    "an unknown fault": (_set("cluster/faults/due", ["kill:2@t=9"]), "'kill:2@t=9' is none of the run's"),
    "an event by number": (_set("cluster/engine/future", [[0, 1, 2, 3, []]]), "Expected `str`, got `int`"),
}


def edited(content: bytes, edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    size = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:size])
    document = json.loads(header["__metadata__"]["dsgd"])
    edit(header, document)
    header["__metadata__"]["dsgd"] = json.dumps(document)
    return framed(json.dumps(header).encode()) + content[size:]


def framed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


NONE = (b"x" * 7, b"\xff" * 200, framed(b"{}"), framed(b"[" * 50_000))


def test_a_crafted_checkpoint_is_skipped_or_named(cli: CommandLine) -> None:
    """Its digest is right, and its values are strange: one line says which checkpoint it is and why, or the
    run goes on from the one before, to the same weights.
    """
    options = "--mode asgd --engine sim --num-workers 3 --steps 20 --checkpoint-every 3 --latency-s 0.1"
    ran = cli(f"{options} --hosts 2 --faults kill:1@t=3")
    weights = (ran.record / "weights.npy").read_bytes()
    content = sorted((ran.record / "checkpoints").iterdir())[-2].read_bytes()
    damaged = {
        **{name: (edited(content, edit), why) for name, (edit, why) in EDITS.items()},
        **{f"{len(bad)}_bytes": (bad, "is not a checkpoint") for bad in NONE},
    }
    for name, (crafted, why) in damaged.items():
        copy = ran.record.with_name(name.replace(" ", "_"))
        shutil.copytree(ran.record, copy)
        (copy / "summary.json").unlink()
        newest = sorted((copy / "checkpoints").iterdir())[-1]
        newest.unlink()
        bad = newest.with_name(name_of(60, [crafted]))
        bad.write_bytes(crafted)
        resumed = cli("--resume", str(copy), "--quiet")
        assert (resumed.code, resumed.err.count("\n")) in [(0, 1), (2, 1)], name
        assert bad.name in resumed.err
        assert why in resumed.err
        assert resumed.code == 2 or (copy / "weights.npy").read_bytes() == weights


def test_the_cost_grows_with_the_workers_alone() -> None:
    """The header of a file has a few tensors, however many workers there are and versions in flight."""
    sizes = []
    for workers in (10, 1000):
        versions = [Weights(np.full(5, worker, np.float32), worker) for worker in range(workers)]
        flights = [InFlight(worker, gradient, w, 0.1) for worker, w in enumerate(versions)]
        states = {worker: np.zeros((2, 5), np.float32) for worker in range(workers)}
        began_s = time.process_time()
        content = written(RunState(weights=versions[0], cluster=cluster(workers, flights, states=states)))
        assert len(from_bytes(content, KNOWN).cluster.flights) == workers
        assert time.process_time() - began_s < 5
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        sizes.append(len(header))
    assert sizes[0] == sizes[1] < 10


class Kept(MemoryStore):
    """A store in memory, which fails for a while."""

    failing = 0

    def write(self, name: str, parts: Sequence[Part]) -> None:
        if self.failing:
            self.failing -= 1
            raise OSError(28, "No space left on device")
        super().write(name, parts)


def versions(store: Kept) -> list[int]:
    return [int(name.partition("-")[0]) for name in store.names()]


def followed(tier: Tier, until: int, checkpointer: Checkpointer | None = None) -> Checkpointer:
    """Let a run of one update a second take its checkpoints, and wait for each."""
    checkpointer = checkpointer or Checkpointer([tier], KNOWN, lambda: None)
    for version in range(1, until + 1):
        if version >= checkpointer.next_s:
            state = RunState(weights=Weights(vector(version), version), cluster=cluster(1))
            checkpointer.take(version, partial(replace, state))
            checkpointer.wait()
    return checkpointer


def test_checkpoints_are_taken_at_their_interval_and_the_newest_are_kept() -> None:
    """One each 3 s, of which 2 stay."""
    store = Kept()
    followed(Tier("disk", store, every_s=3, keep=2), 10).close()
    assert versions(store) == [6, 9]


def test_a_full_place_loses_no_older_checkpoint_and_does_not_end_the_run() -> None:
    """A failed write is counted and its first error kept; the next one is tried all the same."""
    store = Kept()
    tier = Tier("disk", store, every_s=1, keep=2)
    checkpointer = followed(tier, 3)
    store.failing = 2
    followed(tier, 5, checkpointer)
    assert (versions(store), tier.failed) == ([2, 3], 2)
    assert tier.error
    assert tier.error.strerror == "No space left on device"
    checkpointer.close()


def test_what_cannot_be_kept_ends_the_run() -> None:
    """That is a mistake in the strategy, no failure of the place."""
    checkpointer = Checkpointer([Tier("disk", Kept(), every_s=1, keep=2)], KNOWN, lambda: None)
    w = Weights(vector(1), 1, {}, object())
    checkpointer.take(1, lambda: RunState(weights=w, cluster=cluster(1)))
    with pytest.raises(NotKept, match=r"Weights.kept has"):
        checkpointer.close()


def test_auto_takes_the_best_interval_for_the_cost() -> None:
    """With a known cost at once; else the first checkpoint is taken to measure it."""
    assert Tier("disk", Kept(), every_s=None, keep=1, mtbf_s=600, cost_s=2).due_s == checkpoint_interval(
        2, 600
    )
    measured = Tier("disk", Kept(), every_s=None, keep=1, mtbf_s=600)
    assert measured.due_s == 0
    followed(measured, 1).close()
    assert 0 < measured.every_s < 600
