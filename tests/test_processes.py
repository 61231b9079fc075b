"""Waiting for processes: what is closed has ended."""

from __future__ import annotations

import signal
import subprocess
import sys

import dsgd.cluster.ray_connection  # noqa: F401 - sets what Ray reads at its import
from dsgd.cluster.processes import awaited

# isort: split
import psutil

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


def test_what_has_ended_already_is_not_waited_for() -> None:
    """A zombie, whose parent has not reaped it, counts as ended."""
    with ready(STUBBORN) as process:
        gone = psutil.Process(process.pid)
        process.kill()
        with awaited([gone], timeout_s=60):
            pass
        assert process.wait() == -signal.SIGKILL
