"""How the ranks of a group find each other and form torch's default process group, in bounded time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import psutil  # Ray brings it

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # untyped

LOCAL = "127.0.0.1"
_FORMED_WITHIN = timedelta(seconds=20)  # once all ranks are there
_ANSWERED_WITHIN = timedelta(days=1)  # a rank may be paused: that it is lost, Ray says
_LOOK_S = 0.02


class RankMissing(Exception):
    """A rank of the group has not come to the meeting in time."""


class RankMeeting(NamedTuple):
    """Where the ranks of a group find each other."""

    who: str
    """Whose group it is, like `worker 0`."""
    address: str
    """Of the leader's machine, as the others reach it."""
    port: int
    """Of the leader's store."""
    ranks: int
    device: str
    """Where gradients are computed: cpu (gloo) or cuda (NCCL)."""
    within_s: float
    """How long ranks wait for each other."""


def meet(meeting: RankMeeting, rank: int, own_address: str, store: TCPStore | None = None) -> None:
    """Wait until all ranks are there, and form the process group with them.

    own_address: of this rank's machine, as the others reach it. store: the leader's; the others connect to
    it. Raises RankMissing, which names the ranks that have not come.
    """
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # untyped

    until_s = time.monotonic() + meeting.within_s
    if store is None:
        within = timedelta(seconds=max(1.0, meeting.within_s))
        store = TCPStore(meeting.address, meeting.port, wait_for_workers=False, timeout=within)
    store.set(f"here{rank}", "")
    missing = missing_from(store, meeting.ranks)
    while missing:
        if time.monotonic() > until_s:
            raise RankMissing(missing_in_words(meeting.who, missing, meeting.ranks, meeting.within_s))
        time.sleep(_LOOK_S)
        missing = [other for other in missing if not store.check([f"here{other}"])]
    if meeting.device == "cpu" and (name := _interface(own_address)):
        # Left alone, gloo would choose the interface that the machine's name stands for.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    dist.init_process_group(
        "gloo" if meeting.device == "cpu" else "nccl",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=meeting.ranks,
        timeout=_FORMED_WITHIN,
    )
    dist.barrier()  # NCCL connects with the first collective
    dist.distributed_c10d.set_timeout(_ANSWERED_WITHIN)


def missing_in_words(who: str, missing: Sequence[int], ranks: int, within_s: float) -> str:
    """Return, in one line with the remedy, that ranks of a group have not joined it in time.

    who: whose group it is, like `worker 0`.
    """
    which = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    return (
        f"{who}: {which} of its group of {ranks} did not join within {within_s:.3g} s; look for the reason "
        "in the logs of Ray, free GPUs or memory, or wait longer with --start-timeout-s"
    )


def missing_from(store: TCPStore, ranks: int) -> list[int]:
    """Return the ranks that have not come to the meeting."""
    return [rank for rank in range(ranks) if not store.check([f"here{rank}"])]


def _interface(address: str) -> str | None:
    """Return the name of this machine's interface with an address, None if it has none."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            return str(name)
    return None
