"""Processes that stand for the ranks of a group, on gloo: started once, they serve many laws."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from conftest import ROOT

_ANSWER_WITHIN_S = 60
multiprocessing.set_forkserver_preload(["torch._dynamo", "dsgd.models.objectives.group_objective"])


class RankProcesses:
    """Some processes, of which the first G form a group of torch.distributed for each call."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("forkserver")  # of a process that imports torch, once
        self._context, self._folder = context, tempfile.TemporaryDirectory()
        self._groups = 0
        self._there = [self._started() for _ in range(count)]

    def _started(self) -> tuple[Any, Connection]:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(there, [str(ROOT), *sys.path]), daemon=True)
        process.start()
        there.close()  # so that the end of the process is the end of what comes from it
        return process, here

    def __call__(self, ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what function(rank, ranks, *args) returns on each rank of a group; None where it ended the
        process, which is replaced.
        """
        self._groups += 1
        store = Path(self._folder.name) / f"group{self._groups}"
        chosen = self._there[:ranks]
        for rank, (_, connection) in enumerate(chosen):
            connection.send((rank, ranks, str(store), function, args))
        try:
            answers = [self._answer(rank) for rank in range(ranks)]
        except BaseException:
            for rank in range(ranks):  # some may wait for others
                self._replace(rank)
            raise
        return answers

    def _answer(self, rank: int) -> Any:
        _, connection = self._there[rank]
        if not connection.poll(_ANSWER_WITHIN_S):
            raise TimeoutError(f"rank {rank} has not answered within {_ANSWER_WITHIN_S} s")
        try:
            failed, answer = connection.recv()
        except EOFError:
            self._replace(rank)
            return None
        if failed:
            raise AssertionError(answer)
        return answer

    def _replace(self, rank: int) -> None:
        process, connection = self._there[rank]
        connection.close()
        process.kill()
        process.join()
        self._there[rank] = self._started()

    def end(self) -> None:
        for process, connection in self._there:
            connection.close()
            process.join(5)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()


def _serve(connection: Connection, path: list[str]) -> None:
    sys.path[:] = path
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # untyped

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    while True:
        try:
            rank, ranks, store, function, args = connection.recv()
        except EOFError:
            return
        try:
            dist.init_process_group("gloo", store=FileStore(store, ranks), rank=rank, world_size=ranks)
            dist.barrier()  # else one may leave before another has connected to it
            answer = (False, function(rank, ranks, *args))
        except Exception:
            answer = (True, traceback.format_exc())
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        connection.send(answer)
