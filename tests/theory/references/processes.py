"""Runs a reference in one process a worker, in a gloo group on this machine."""

from __future__ import annotations

import importlib
import multiprocessing
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from references.problem import Problem, Version


def train_in_processes(
    mode: str, problems: Sequence[Problem], options: Mapping[str, Any]
) -> list[list[Version]]:
    """Return all versions of the reference of a mode, for each problem; one group trains all of them."""
    multiprocessing.set_forkserver_preload(["torch"])  # imported once
    with tempfile.TemporaryDirectory() as folder:
        start_processes(
            _member,
            args=(mode, problems, dict(options), folder),
            nprocs=problems[0].num_workers,
            start_method="forkserver",
        )
        found: list[list[Version]] = torch.load(Path(folder) / "versions.pt", weights_only=False)
    return found


def _member(rank: int, mode: str, problems: Sequence[Problem], options: dict[str, Any], folder: str) -> None:
    torch.set_num_threads(1)
    size = problems[0].num_workers
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    reference = importlib.import_module(f"references.{mode}")
    found = [list(reference.train(problem, **options)) for problem in problems]
    if rank == 0:
        torch.save(found, Path(folder) / "versions.pt")
    dist.destroy_process_group()
