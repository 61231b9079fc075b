"""Weights and values that live in other processes: the driver fetches them only when it looks at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import cast

from dsgd.core.protocol import Done
from dsgd.core.weights import EMPTY, Vector, Weights

_NONE: Mapping[str, int] = MappingProxyType({})


class Fetch:
    """The vector (D,) and the slots of one version: each is fetched once, when it is first needed.

    held_as: the version whose vector this is to the processes that hold it; None if they do not know it by
    its version. earlier: by slot that is the vector of an earlier version: of which.
    """

    def __init__(
        self,
        vector: Callable[[], Vector],
        slots: Callable[[], Mapping[str, Vector]],
        held_as: int | None = None,
        earlier: Mapping[str, int] = _NONE,
    ) -> None:
        self._vector, self._slots = vector, slots
        self.held_as, self.earlier = held_as, earlier

    @cached_property
    def vector(self) -> Vector:
        found = self._vector()
        found.setflags(write=False)
        return found

    @cached_property
    def slots(self) -> Mapping[str, Vector]:
        return self._slots()


class HeldWeights(Weights):
    """A version of the weights as the driver has it: `vector` and `slots` are fetched.

    Make it with `held`.
    """

    __slots__ = ()

    @property
    def vector(self) -> Vector:
        return self._here.vector

    @property
    def slots(self) -> Mapping[str, Vector]:
        return self._here.slots

    @property
    def held_as(self) -> int | None:
        """The version whose vector this is to the processes that hold it."""
        return self._here.held_as

    def in_slot(self, name: str) -> Weights:
        here = self._here
        if name not in here.earlier:
            return super().in_slot(name)
        there = Fetch(lambda: here.slots[name], lambda: EMPTY, here.earlier[name])
        return held(self.version, None, there)

    @property
    def _here(self) -> Fetch:
        return cast("Fetch", self[0])


def held(version: int, kept: object, fetch: Fetch, wire_bytes: int | None = 0) -> HeldWeights:
    """Return a version of the weights whose contents are fetched; see `Weights` for the rest."""
    return HeldWeights(fetch, version, {}, kept, wire_bytes)  # type: ignore[arg-type]


def have_fetched(w: Weights, *, slots: bool = False) -> None:
    """Have a version, and its slots if asked, in this process; it stays here."""
    if isinstance(w, HeldWeights):
        w.vector  # noqa: B018 - it is fetched now, and kept
        if slots:
            w.slots  # noqa: B018


class HeldDone(Done):
    """A finished task whose value stays where it was computed; whoever looks at it has it fetched."""

    __slots__ = ()

    @property
    def value(self) -> Vector:
        held = self[5]
        return held() if callable(held) else held
