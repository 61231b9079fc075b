"""What a process has once for all its code: generators of random numbers, settings, the working folder.

The generators follow the seed of each task. Settings that a user's file makes are put back: Ray's workers get
its code by value and would not have them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dsgd.process.user_code import UserCodeError

AT_FIRST = 67280421310721
"""The seed with which torch begins."""


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed the generators of torch, for a device and the processor, of numpy and of Python.

    `torch.manual_seed` seeds those of all devices, and takes 70 times as long.
    """
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def drawn_from() -> tuple[Any, ...]:
    """Return the states of the processor's generators: other ones once a number was drawn."""
    of_numpy = np.random.get_state(legacy=False)["state"]
    of_torch = torch.default_generator.get_state().numpy()
    return of_torch.tobytes(), of_numpy["key"].tobytes(), of_numpy["pos"], random.getstate()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have all generators seeded, and then as they were before."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        seed_generators(torch.device("cpu"), seed)
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
_REFUSED: tuple[_Setting, ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (
        torch.get_default_device,
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
)
_PUT_BACK: tuple[_Setting, ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (os.getcwd, os.chdir),
)


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put back what code sets for the whole process.

    Raises UserCodeError for torch's default dtype and device, with which it makes another module.
    """
    settings = (*_REFUSED, *_PUT_BACK)
    before, refused = [get() for get, _ in settings], None
    try:
        yield
        for (get, _), value in zip(_REFUSED, before, strict=False):
            if get() != value:
                refused = f"{get.__name__.replace('get', 'set', 1)}({get()})"
    finally:
        for (get, put), value in zip(settings, before, strict=True):
            if get() != value:
                put(value)
    if refused:
        raise UserCodeError(
            f"calls torch.{refused}, for the whole process; leave that out: a run trains float32, on the "
            "device that --device names"
        )
