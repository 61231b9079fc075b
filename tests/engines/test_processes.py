"""Waiting for processes: what is closed has ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from conftest import PATIENCE_S, python

from dsgd.core.protocol import ClusterError
from dsgd.engines.ray.connection import connect  # sets what Ray reads at its import
from dsgd.engines.ray.connection.processes import Calls, awaited, begun

# isort: split
import psutil
import ray

from deploy.local_processes import end

STUBBORN = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)
SLOW_TO_END = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(0)))\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)


def ready(code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_process_that_takes_its_time_is_waited_for() -> None:
    """After the block, it has ended by itself."""
    with ready(SLOW_TO_END) as process:
        with awaited([psutil.Process(process.pid)]):
            process.terminate()
            assert process.poll() is None
        assert process.poll() == 0


def test_a_process_that_does_not_end_is_killed() -> None:
    """The wait is bounded; processes left after it are killed."""
    with ready(STUBBORN) as process:
        with awaited([psutil.Process(process.pid)], timeout_s=0.2):
            process.terminate()
        assert process.wait() == -signal.SIGKILL


def test_a_server_is_asked_to_end_before_it_is_made_to() -> None:
    """One that completes its work is given the time for it, one that does not listen is killed."""
    with ready(SLOW_TO_END) as process:
        end(process, 30)
        assert process.returncode == 0
    with ready(STUBBORN) as process:
        end(process, 0.2)
        assert process.returncode == -signal.SIGKILL


def test_what_has_ended_already_is_not_waited_for() -> None:
    """A zombie, whose parent has not reaped it, counts as ended."""
    with ready(STUBBORN) as process:
        gone = psutil.Process(process.pid)
        process.kill()
        with awaited([gone], timeout_s=60):
            pass
        assert process.wait() == -signal.SIGKILL


def test_a_call_that_hangs_is_given_up() -> None:
    """What a call returns or raises comes back; one that does not end is a TimeoutError, also the next."""
    calls, end = Calls(), threading.Event()
    assert calls.within(60, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        calls.within(60, lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            calls.within(0.1, end.wait)
    end.set()
    assert calls.within(60, lambda: 3) == 3


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Exception("The current node timed out during startup."), "within --start-timeout-s 0.3; wait"),
        (TimeoutError("port file"), "within --start-timeout-s 0.3; wait"),
        (Exception("no such option"), "on this machine (no such option); see "),
        (AttributeError("of Ray's own"), "on this machine (of Ray's own); see "),
    ],
)
def test_a_start_that_ray_gives_up_is_tried_again(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as --start-timeout-s lasts; whatever Ray raises is one line."""
    tries = []

    def init(**_: object) -> None:
        tries.append(time.monotonic())
        time.sleep(0.01)
        raise error

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ClusterError) as raised:
        connect.connect(0.3)
    assert said in str(raised.value)
    assert (len(tries) > 1) == ("within" in said)


def test_what_a_failed_start_began_is_killed() -> None:
    """Of this process's children, those of the program that began in the block are killed, and no others."""
    with ready(STUBBORN) as before:
        with suppress(TimeoutError), begun(STUBBORN):
            during, other = ready(STUBBORN), ready(SLOW_TO_END)
            raise TimeoutError
        assert during.wait() == -signal.SIGKILL
        assert before.poll() is other.poll() is None
        for process in (before, other):
            process.kill()
            process.communicate()
        during.communicate()


# What listens does not answer, and a process that does not end: Ray hangs at its start, or at its end.
STARTED = """
import os, signal, socket, sys
from dsgd.core.protocol import ClusterError
from dsgd.engines.ray.connection import connect
import psutil
from ray._private import services

silent = socket.create_server(("127.0.0.1", 0))
if sys.argv[1] == "slow":
    asked = services.get_node
    def too_late(*arguments):
        services.get_node = asked
        raise Exception("The current node timed out during startup.")
    services.get_node = too_late
if sys.argv[1] == "start":
    os.environ["RAY_ADDRESS"] = f"127.0.0.1:{silent.getsockname()[1]}"
try:
    connection = connect.connect(2.0 if sys.argv[1] == "start" else 120.0)
except ClusterError as error:
    print(error)
else:
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    (raylet,) = [child for child in alive if child.name() == "raylet"]
    raylet.send_signal(signal.SIGSTOP)
    print(services.get_node.__name__, file=sys.stderr)
    connect._SHUTDOWN_S = 1.0
    connection.close()
print([child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE])
"""


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("start", "what listens there does not answer as a Ray cluster within --start-timeout-s 2; "),
        ("end", "Ray did not shut down within 1 s; its "),
        ("slow", "get_node\nRay did not shut down within 1 s; its "),
    ],
)
def test_ray_that_hangs_does_not_hang_the_run(when: str, said: str) -> None:
    """At the start and at the end it is one line, a late node is tried again, and nothing is left."""
    with python("-c", STARTED, when) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert said in out + err
    assert out.splitlines()[-1] == "[]"
    assert process.returncode == 0, err
