"""Values as the bytes of one safetensors file, and back: arrays raw, all else as JSON in its metadata.

What can be kept is a closed vocabulary: numbers, text, None, arrays, tuples, lists and dicts of these, and
the tasks of a run. Reading a file never runs code that the file names, as unpickling would.

Arrays of one type and shape are the rows of one tensor, each array once, however often it is referred to. So
a file has a few tensors even where thousands of versions of the weights are in flight, and all bits are kept.
The file's first row of `F32[D]` is the newest vector of weights. Format:
https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsgd.core import rules, tasks
from dsgd.core.tasks import Task
from dsgd.core.weights import Weights
from dsgd.records.stores.store import Part
from dsgd.transforms import carrying, codecs, compressed, mislabelled

Array: TypeAlias = NDArray[Any]
Place: TypeAlias = tuple[str, int]
"""Where an array is: the name of its tensor, and its row."""
Rows: TypeAlias = tuple[str, Place]
"""Where arrays are: the name of their tensor, and where the numbers of their rows are."""
Vocabulary: TypeAlias = Mapping[str, type]

FORMAT = 1
_NAMES = {
    "<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8",
    "<u8": "U64", "<u4": "U32", "<u2": "U16", "|u1": "U8", "|b1": "BOOL",
}  # fmt: skip
_TYPES = {name: np.dtype(text) for text, name in _NAMES.items()}
_PLAIN = frozenset({type(None), bool, int, float, str})
_JOINED_BYTES = 1 << 16  # smaller rows are written together

STRANGE = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
"""What a file leads to whose values are of other types, sizes or depths than this module writes."""


class NotKept(TypeError):
    """A value is not in the vocabulary; the message is a part of a line."""


class Unreadable(ValueError):
    """Bytes are not a file of this module's; the message is a part of a line."""


def vocabulary(strategy: object) -> Vocabulary:
    """Return the classes that a run's tasks may have, by name: those of dsgd.core and of its strategy."""
    own = vars(strategy).values() if isinstance(strategy, ModuleType) else ()
    classes = [
        rules.Schedule,
        carrying.Carrying,
        mislabelled.LabelsFlipped,
        *(value for module in (tasks, codecs, compressed) for value in vars(module).values()),
    ]
    classes += own
    return {
        found.__name__: found
        for found in classes
        if isinstance(found, type) and dataclasses.is_dataclass(found) and found.__name__ != "Config"
    }


class Encoder:
    """Collects the values of one file. The arrays are not copied, so they must not change meanwhile."""

    def __init__(self, known: Vocabulary) -> None:
        self._known = known
        self._rows: dict[tuple[Any, tuple[int, ...]], list[Array]] = {}
        self._places: dict[int, Place] = {}
        self._versions: list[Weights] = []
        self._indices: dict[int, int] = {}  # by id, which is an object's as long as that lives
        self._tasks: list[Any] = []
        self._task_indices: dict[Task, int] = {}

    def array(self, array: Array) -> Place:
        """Return where an array is in the file, to which it is added if it is not there."""
        place = self._places.get(id(array))
        if place is None:
            rows = self._rows.get((array.dtype, array.shape))
            if rows is None:
                if array.dtype.str not in _NAMES:
                    raise NotKept(f"an array of {array.dtype}")
                rows = self._rows[array.dtype, array.shape] = []
            place = self._places[id(array)] = (_tensor(array.dtype, array.shape), len(rows))
            rows.append(array)
        return place

    def column(self, values: Iterable[Any], kind: type = np.int64) -> Place:
        """Return where numbers are, as one array; thousands of them are quick."""
        return self.array(np.array(list(values), kind))

    def weights(self, w: Weights) -> int:
        """Return the index of a version of the weights, each of which is kept once."""
        index = self._indices.setdefault(id(w), len(self._versions))
        if index == len(self._versions):
            self._versions.append(w)
        return index

    def rows(self, arrays: Sequence[Array]) -> Rows:
        """Return where arrays of one type and shape are: their tensor, and the column of their rows.

        Of thousands, in a quarter of the time that `array` needs for each.
        """
        if not arrays:
            return "", self.column(())
        tensor, first = self.array(arrays[0])
        dtype, shape = arrays[0].dtype, arrays[0].shape
        there, places, found = self._rows[dtype, shape], self._places, [first]
        for array in arrays[1:]:
            place = places.get(id(array))
            if place is None:
                if array.dtype != dtype or array.shape != shape:
                    raise NotKept(f"arrays of {dtype}{list(shape)} and {array.dtype}{list(array.shape)}")
                place = places[id(array)] = (tensor, len(there))
                there.append(array)
            found.append(place[1])
        return tensor, self.column(found)

    def _all_versions(self) -> Any:
        """Return the versions of the weights, in columns; of slots and `kept`, for those that have them."""
        versions = self._versions
        having: dict[str, list[int]] = {}
        kept = {}
        for index, w in enumerate(versions):
            for name in w.slots:
                having.setdefault(name, []).append(index)
            if w.kept is not None:
                try:
                    kept[index] = self.tree(w.kept)
                except NotKept as error:
                    raise NotKept(f"Weights.kept has {error}") from None
        return {
            "vectors": self.rows([w.vector for w in versions]),
            "versions": self.column(w.version for w in versions),
            "slots": {
                name: [self.column(which), self.rows([versions[index].slots[name] for index in which])]
                for name, which in having.items()
            },
            "kept": kept,
            "wire_bytes": {i: w.wire_bytes for i, w in enumerate(versions) if w.wire_bytes is not None},
        }

    def task(self, task: Task) -> int:
        """Return the index of a task; equal ones are one."""
        index = self._task_indices.get(task)
        if index is None:
            index = self._task_indices[task] = len(self._tasks)
            self._tasks.append(self.tree(task))
        return index

    def tree(self, value: Any) -> Any:
        """Return a value as JSON; raises NotKept for one that is not in the vocabulary."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            return value if _PLAIN.issuperset(map(type, value)) else [self.tree(item) for item in value]
        if kind is tuple:
            return {"tuple": self.tree(list(value))}
        if kind is dict:
            return {"keys": self.tree(list(value)), "values": self.tree(list(value.values()))}
        if isinstance(value, np.ndarray):
            return {"array": self.array(value)}
        if isinstance(value, np.generic):
            return {"number": self.array(np.array(value))}
        if self._known.get(kind.__name__) is kind:
            fields = {f.name: self.tree(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
            return {"of": kind.__name__, "fields": fields}
        raise NotKept(
            f"{value!r:.60}, of type {kind.__qualname__}; keep numbers, text, None, arrays, and tuples, "
            "lists and dicts of these"
        )

    def parts(self, document: Mapping[str, Any]) -> list[Part]:
        """Return the file, in parts to be written one after the other."""
        content = {"format": FORMAT, "versions": self._all_versions(), "tasks": self._tasks, **document}
        header: dict[str, Any] = {"__metadata__": {"dsgd": json.dumps(content, separators=(",", ":"))}}
        parts: list[Part] = []
        begin = 0
        # Wide types first, so that each tensor begins at a multiple of its type's size.
        for (dtype, shape), rows in sorted(self._rows.items(), key=lambda item: -item[0][0].itemsize):
            row_bytes = dtype.itemsize * math.prod(shape)
            end = begin + row_bytes * len(rows)
            header[_tensor(dtype, shape)] = {
                "dtype": _NAMES[dtype.str],
                "shape": [len(rows), *shape],
                "data_offsets": [begin, end],
            }
            if row_bytes < _JOINED_BYTES:
                parts.append(np.stack(rows).tobytes())
            else:
                parts += [np.ascontiguousarray(row).reshape(-1).view(np.uint8).data for row in rows]
            begin = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return [len(text).to_bytes(8, "little") + text, *parts]


class Decoder:
    """Reads the bytes of a file; its arrays are read-only views of them, so `content` may be a mapped file.

    Raises Unreadable for bytes that are not of this module's making.
    """

    def __init__(self, content: Any, known: Vocabulary) -> None:
        self._known = known
        with self.explained():
            size = int.from_bytes(content[:8], "little")
            header = json.loads(bytes(content[8 : 8 + size]))
            self.document: Mapping[str, Any] = json.loads(header.pop("__metadata__")["dsgd"])
            if self.document["format"] != FORMAT:
                raise Unreadable(f"is of format {self.document['format']}; this version reads {FORMAT}")
            self._tensors = {
                name: _viewed(content, 8 + size + place["data_offsets"][0], place)
                for name, place in header.items()
            }
            self._rows: dict[tuple[str, int], Array] = {}
            self._tasks: dict[int, Any] = {}
            self._versions = self._all_versions(self.document["versions"])

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Have what a strange content leads to raise Unreadable."""
        try:
            yield
        except Unreadable:
            raise
        except STRANGE as error:
            raise Unreadable(f"is not a checkpoint ({type(error).__name__}: {error})") from None

    def array(self, place: Sequence[Any]) -> Array:
        """Return the array at a place."""
        tensor, row = place
        return self._row(tensor, row)

    def _row(self, tensor: str, row: int) -> Array:
        """Return an array; the same place gives the same object, so that it is written once again."""
        found = self._rows.get((tensor, row))
        if found is None:
            found = self._rows[tensor, row] = self._tensors[tensor][row, ...]
        return found

    def column(self, place: Sequence[Any], axes: int = 1) -> list[Any]:
        """Return numbers as Python's."""
        array = self.array(place)
        if array.ndim != axes:
            raise Unreadable(f"has an array of {array.ndim} axes where {axes} belong")
        values: list[Any] = array.tolist()
        return values

    def rows(self, place: Sequence[Any]) -> list[Array]:
        """Return the arrays at a place."""
        tensor, rows = place
        if not tensor:
            return []
        return [self._row(tensor, row) for row in self.column(rows)]

    def weights(self, index: int) -> Weights:
        """Return a version of the weights; the same index gives the same object."""
        return self._versions[index]

    def task(self, index: int) -> Any:
        """Return a task; the same index gives the same object."""
        if index not in self._tasks:
            task = self._tasks[index] = self.tree(self.document["tasks"][index])
            if type(task) not in self._known.values():
                raise Unreadable(f"has {task!r:.60}, which is no task")
        return self._tasks[index]

    def tree(self, value: Any) -> Any:
        """Return the value that `Encoder.tree` was given."""
        if isinstance(value, list):
            return value if _PLAIN.issuperset(map(type, value)) else [self.tree(item) for item in value]
        if not isinstance(value, dict):
            return value
        match value:
            case {"tuple": items}:
                return tuple(self.tree(items))
            case {"keys": keys, "values": values}:
                return dict(zip(self.tree(keys), self.tree(values), strict=True))
            case {"array": place}:
                return self.array(place)
            case {"number": place}:
                return self.array(place)[()]
            case {"of": name, "fields": fields}:
                if name not in self._known:
                    raise Unreadable(f"has a task of class {name}, which its strategy does not have")
                return self._known[name](**{key: self.tree(field) for key, field in fields.items()})
        raise Unreadable(f"has {value!r:.60}, which is no value of a checkpoint")

    def _all_versions(self, place: Mapping[str, Any]) -> list[Weights]:
        versions = self.column(place["versions"])
        slots: list[dict[str, Array]] = [{} for _ in versions]
        for name, (which, rows) in place["slots"].items():
            for index, array in zip(self.column(which), self.rows(rows), strict=True):
                slots[index][name] = array
        kept = {int(index): self.tree(value) for index, value in place["kept"].items()}
        wire_bytes = {int(index): count for index, count in place.get("wire_bytes", {}).items()}
        return [
            Weights(vector, version, slots[index], kept.get(index), wire_bytes.get(index))
            for index, (vector, version) in enumerate(zip(self.rows(place["vectors"]), versions, strict=True))
        ]


@cache
def _tensor(dtype: Any, shape: tuple[int, ...]) -> str:
    """Return the name of the tensor whose rows have that type and shape.

    >>> _tensor(np.dtype(np.float32), (2, 65))
    'F32[2,65]'
    """
    return f"{_NAMES[dtype.str]}[{','.join(map(str, shape))}]"


def _viewed(content: Any, offset: int, place: Mapping[str, Any]) -> Array:
    shape = place["shape"]
    array = np.frombuffer(content, _TYPES[place["dtype"]], math.prod(shape), offset).reshape(shape)
    array.setflags(write=False)
    return array
