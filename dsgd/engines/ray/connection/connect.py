"""How a process is connected to Ray: to the cluster that the environment names, or to a private one.

Import this before anything else that imports ray: it sets what Ray reads at its import.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

# Read when ray is imported. Under `uv run` it would rebuild the environment in every worker, which
# here run in the driver's. Its own messages (a worker died, …) are not for the terminal of a run that
# reports and handles these events itself: all of them are dropped here and stay in Ray's log files.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
# Of a process that prints in a loop its last 200 MB are kept: otherwise it would fill the disk.
os.environ.setdefault("RAY_ROTATION_MAX_BYTES", "100000000")
os.environ.setdefault("RAY_ROTATION_BACKUP_COUNT", "1")

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError

from dsgd.core.protocol import ClusterError
from dsgd.engines.ray.connection.credentials import guard_token, session_folder
from dsgd.engines.ray.connection.processes import Calls, awaited, begun, kill, own_processes


class Connection(NamedTuple):
    """How this process is connected to Ray: whether since just now, and whether the cluster is private."""

    made_here: bool
    private: bool

    def close(self) -> None:
        """Leave the cluster, and end it if it is private, in bounded time: what does not end is killed."""
        if not self.made_here:
            return
        ours = own_processes() if self.private else ()
        with awaited(ours):
            try:
                _CALLS.within(_SHUTDOWN_S, ray.shutdown)
            except TimeoutError:
                killed = f"its {len(ours)} processes are killed" if ours else "it is left as it is"
                print(f"Ray did not shut down within {_SHUTDOWN_S:g} s; {killed}", file=sys.stderr)
                kill(ours)
                atexit.unregister(ray.shutdown)  # it would hang once more


# In milliseconds, how the head looks whether a node still answers; by default it takes long to give one up.
_WATCHFUL = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
ENDED = (RayActorError, OutOfMemoryError, NodeDiedError)  # what Ray raises where a process has ended
_SHUTDOWN_S = 30.0  # as a rule it takes one or two
_CALLS = Calls()
_started: set[str] = set()  # addresses of the private clusters of this process


def connect(timeout_s: float = 60.0, nodes: int = 1) -> Connection:
    """Connect to the cluster that the environment names, or start a private one.

    nodes: how many a private one will have; with several it is noticed sooner that one is lost.
    Raises ClusterError if nothing answers at RAY_ADDRESS within `timeout_s` seconds, or if Ray takes longer
    than that to start or to answer. Then nothing that was started is left.
    """
    if ray.is_initialized():  # maybe by a call before: the runs of an experiment share one cluster
        return Connection(made_here=False, private=is_private())
    address = os.environ.get("RAY_ADDRESS")
    if _is_named():
        if address and address not in ("auto", "local"):
            _knock(address, timeout_s)
        try:
            _init(timeout_s)
        except TimeoutError:
            raise ClusterError(
                f"RAY_ADDRESS={address}: what listens there does not answer as a Ray cluster within "
                f"--start-timeout-s {timeout_s:g}; correct the address, the token (RAY_AUTH_MODE, "
                "RAY_AUTH_TOKEN) or the certificates (RAY_USE_TLS, RAY_TLS_…), or unset it for a private "
                "cluster"
            ) from None
        except Exception as error:  # Ray raises bare ones too
            raise ClusterError(f"RAY_ADDRESS={address}: {last_line(error)}; correct or unset it") from error
        return Connection(made_here=True, private=address == "local")
    # A bare ray.init() would attach to any cluster alive on this machine.
    try:
        guard_token()
        folder = session_folder()
    except OSError as error:
        raise ClusterError(f"Ray could not be started on this machine ({error})") from error
    remedy = f"see {folder}/session_latest/logs, or simulate with --engine sim"
    # Ray's own limits while it starts are fixed or for idle machines; ours says what is wrong where it ends.
    patient = {
        "RAY_worker_register_timeout_seconds": f"{min(timeout_s + 60, 1e6):.0f}",
        "RAY_gcs_server_port_wait_time_s": f"{min(timeout_s + 60, 1e6):.0f}",
    }
    until_s = time.monotonic() + timeout_s
    with _environment(patient | (_WATCHFUL if nodes > 1 else {})):
        while True:
            try:
                left_s = max(until_s - time.monotonic(), 0.0)
                _init(left_s, address="local", include_dashboard=False, _temp_dir=folder)
                break
            except Exception as error:  # of its node's start Ray raises a bare one
                if not _ran_out_of_time(error):
                    raise ClusterError(
                        f"Ray could not be started on this machine ({last_line(error)}); {remedy}"
                    ) from error
                if time.monotonic() >= until_s:
                    raise ClusterError(
                        "Ray could not be started on this machine within --start-timeout-s "
                        f"{timeout_s:g}; wait longer, {remedy}"
                    ) from None
    _started.add(ray.get_runtime_context().gcs_address)
    return Connection(made_here=True, private=True)


def is_private() -> bool:
    """Whether this process is, or would be, connected to a cluster that runs on this machine for it alone."""
    if ray.is_initialized():
        return ray.get_runtime_context().gcs_address in _started
    return not _is_named() or os.environ.get("RAY_ADDRESS") == "local"


def _is_named() -> bool:
    return bool(os.environ.get("RAY_ADDRESS")) or "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def _init(timeout_s: float, **options: Any) -> None:
    """Call ray.init without its noise. In another thread than the main one it sets no handler of SIGTERM,
    which would leave processes behind.

    Raises TimeoutError if it takes longer; then, as after an interruption, what it has started is killed.
    """
    with begun():
        _CALLS.within(
            timeout_s, lambda: ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        )


def _ran_out_of_time(error: Exception) -> bool:
    """Return whether a start ended at a time limit: ours, or one of Ray's."""
    # Ray gives its own node a fixed 30 s, and says so in a bare Exception.
    return isinstance(error, TimeoutError) or "timed out" in str(error).lower()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the environment, where they are not set, for the block."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _knock(address: str, timeout_s: float) -> None:
    """See that something listens at HOST:PORT: ray.init would try for many minutes."""
    if address.startswith("http"):
        raise ClusterError(
            f"RAY_ADDRESS={address}: is the dashboard's address, to which jobs are submitted; give that of "
            "the cluster, like HOST:6379, or unset it for a private one"
        )
    host, _, port = address.removeprefix("ray://").rpartition(":")
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=2.0).close()
            return
        except (OSError, ValueError, OverflowError) as error:
            if time.monotonic() > until_s or not isinstance(error, OSError):
                raise ClusterError(
                    f"RAY_ADDRESS={address}: no Ray cluster answers there within --start-timeout-s "
                    f"{timeout_s:g} ({error}); start it, or unset RAY_ADDRESS for a private one"
                ) from None
            time.sleep(0.5)


def resources() -> dict[str, float]:
    """Return what the cluster has in all, by Ray's names."""
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found


def last_line(error: BaseException) -> str:
    """Return the line of an error's text where Ray says what happened: of a lack of memory the first."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0 if isinstance(error, OutOfMemoryError) else -1].strip()
