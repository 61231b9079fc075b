"""How many worker processes a machine or a cluster has the memory for: estimated before any is started.

The estimate is what a worker's process has to itself (its unique set size, measured on Linux with Ray 2.60
and torch 2.15); data and weights come on top. So what is refused could not have run; what is not refused may
still fail. Import `dsgd.engines.ray.connection.connect` first: it sets what Ray reads when it is
imported.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import psutil  # Ray brings it, and makes it importable

from dsgd.config import TrainConfig

_PROCESS_BYTES = 57_000_000  # Python, Ray's client and NumPy
_TORCH_BYTES = 282_000_000  # and the CUDA build of torch, on a CPU
_VECTORS = 5  # the module's weights, its replica's and their gradient, a task's weights, what it returns
_VECTORS_BESIDE_GPU = 2  # the module's weights, and what a task returns
_GB = 1e9


def num_hosts(cfg: TrainConfig) -> int:
    """Return how many hosts carry the workers, spares included: processes, or groups of ranks."""
    return (cfg.fault.hosts or cfg.num_workers) + cfg.fault.spares


def num_processes(cfg: TrainConfig) -> int:
    """Return how many processes these are."""
    return num_hosts(cfg) * cfg.group.ranks_per_worker


def bytes_per_worker(cfg: TrainConfig, num_weights: int = 0) -> int:
    """Return the memory in bytes that each process of the workers needs at least.

    num_weights: of a module; 0 before they are known, and where they are few. A rank of a group has the whole
    module only until it is cut, and its slice of all other vectors.
    """
    torch = 0 if cfg.data.dataset == "none" else _TORCH_BYTES  # without weights, workers do not import it
    vectors = _VECTORS_BESIDE_GPU if cfg.ray.device == "cuda" else _VECTORS
    whole, slices = (1, (vectors - 1) / cfg.group.shards) if cfg.group.ranks_per_worker > 1 else (vectors, 0)
    return int(_PROCESS_BYTES + torch + cfg.timing.padding_bytes + 4 * (whole + slices) * num_weights)


def num_servers(cfg: TrainConfig) -> int:
    """Return how many processes hold slices of the weights, backups included."""
    network = cfg.network
    return network.parsed_topology.servers * network.replicas if network.has_servers_apart else 0


def shortage(cfg: TrainConfig, free_bytes: float, where: str, num_weights: int = 0) -> str | None:
    """Return in one line why the workers and servers do not fit, and the remedy; None if they do.

    free_bytes: the memory that is left. where: what has it, like `this machine has`.
    num_weights: of a module.
    """
    each, count, fault = bytes_per_worker(cfg, num_weights), num_processes(cfg), cfg.fault
    servers = num_servers(cfg)
    if count * each + servers * _PROCESS_BYTES <= free_bytes:
        return None
    if servers * _PROCESS_BYTES > free_bytes / 2:
        return (
            f"--topology {cfg.network.topology}: {servers:,} processes of servers need at least "
            f"{_gb(servers * _PROCESS_BYTES)} of memory, and {where} {_gb(free_bytes)}; ask for fewer, or "
            "simulate them with --engine sim"
        )
    option = f"--num-workers {cfg.num_workers}" if fault.hosts is None else f"--hosts {fault.hosts}"
    group = each * cfg.group.ranks_per_worker
    fit = max(0, int((free_bytes - servers * _PROCESS_BYTES) / group) - fault.spares)
    lower = f"lower {option.split()[0]} ({fit} fit)" if fit else "free some memory"
    spares = f" and --spares {fault.spares}" if fault.spares else ""
    return (
        f"{option}{spares}: {count:,} Ray worker processes need at least "
        f"{_gb(count * each)} of memory ({_gb(each)} each, as measured, without data), "
        f"and {where} {_gb(free_bytes)}; {lower}, or simulate them with --engine sim"
    )


def free_here() -> float:
    """Return the bytes of memory, swap space included, that new processes on this machine can have."""
    left = min(psutil.virtual_memory().available, left_in_container())  # psutil knows of the machine alone
    return float(left + psutil.swap_memory().free)


def left_in_container(groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the bytes that this container's limit leaves, with what the kernel gives back of its page cache.

    groups: the folder of control groups, of either version. Infinite without a limit.
    """
    for limit, used, stat, cache in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat",
            "total_inactive_file"),
    ):  # fmt: skip
        with suppress(OSError, ValueError):  # no such file, or "max"
            most, now = int((groups / limit).read_text()), int((groups / used).read_text())
            of_kind = dict(line.split() for line in (groups / stat).read_text().splitlines())
            return most - now + int(of_kind.get(cache, 0))
    return math.inf


def _gb(size: float) -> str:
    """Return a size in GB with two digits.

    >>> _gb(339e6), _gb(22.53e9), _gb(1.695e12)
    ('0.34 GB', '23 GB', '1,695 GB')
    """
    gb = size / _GB
    return f"{gb:,.0f} GB" if gb >= 10 else f"{gb:.2g} GB"
