"""A head's job manager and `ray job`, played: an entrypoint runs here, on the simulator, with small data.

`head` is what the head's pod runs, and the driver is its child, as in a cluster: it ends with that pod. The
other commands are those of the submitter's shell; both sides meet in files of the head's folder. It imports
nothing of the project, so that a head starts at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_HEAD, _SUBMITTED = Path("head.pid"), Path("entrypoint.json")
_LOG, EXIT_CODE = Path("driver.log"), Path("exit-code")
_POLL_S = 0.05
# Of the entrypoint's options, those that only a real cluster can have, and what a played one has instead.
_REPLACED = {"engine": "sim", "device": "cpu", "metrics-linger-s": "2", "metrics-host": "127.0.0.1"}
_LEFT_OUT = {"start-timeout-s", "gpus-per-worker", "eval-images"}  # the last is of what GPUs train
# What keeps GPUs busy takes minutes here; what it is replaced by learns as visibly.
_WORKLOAD, _DATASET = "workload", "dataset"
_METRICS = {"metrics-port", "metrics-host", "metrics-linger-s"}  # a simulated experiment has none


def here(words: list[str], metrics_port: str) -> list[str]:
    """Return an entrypoint as it can run on this machine."""
    replaced = _REPLACED | {"metrics-port": metrics_port}
    left_out = _LEFT_OUT | (_METRICS if "--experiment" in words else set())
    left: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--set":
            setting, _, value = rest.pop(0).partition("=")
            name = setting.replace("_", "-")
            if name == _WORKLOAD:
                left += ["--set", f"{_DATASET}=digits"]
            elif name not in left_out:
                left += ["--set", f"{setting}={replaced.get(name, value)}"]
        elif word == f"--{_WORKLOAD}":
            rest.pop(0)
            left += [f"--{_DATASET}", "digits"]
        elif (name := word.removeprefix("--")) in left_out and word != name:
            rest.pop(0)
        elif word != name and name in replaced:
            rest.pop(0)
            left += [word, replaced[name]]
        else:
            left.append(word)
    return left


def head() -> None:
    """Run the driver that is submitted, and stay until the pod is to end: a driver that runs ends first."""
    ending = False

    def end(*_: object) -> None:  # the driver, of the same process group, has got the signal too
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    _put(_HEAD, str(os.getpid()))
    driver: subprocess.Popen[bytes] | None = None
    while True:
        if driver is None and _SUBMITTED.exists() and not ending:
            command = here(json.loads(_SUBMITTED.read_text()), os.environ["PLAYED_METRICS_PORT"])
            with _LOG.open("wb") as log:
                guarded = ["setpriv", "--pdeathsig", "KILL", *command]  # nothing survives its head
                driver = subprocess.Popen(guarded, stdout=log, stderr=subprocess.STDOUT)
        code = driver.poll() if driver else None
        if code is not None and not EXIT_CODE.exists():
            _put(EXIT_CODE, str(code))
        if ending and (driver is None or code is not None):
            return
        time.sleep(_POLL_S)


def follow() -> int:
    """Print the driver's log to its end; return 0 however it ended, and 1 if the head is gone."""
    position = 0
    while True:
        over = EXIT_CODE.exists()  # before reading, so that the last words are read
        if _LOG.exists():
            with _LOG.open("rb") as log:
                log.seek(position)
                new = log.read()
            position += len(new)
            sys.stdout.buffer.write(new)
            sys.stdout.flush()
        if over:
            return 0
        if not Path("/proc", _HEAD.read_text()).exists():
            print("WebSocket connection closed unexpectedly", file=sys.stderr)
            return 1
        time.sleep(_POLL_S)


def main(words: list[str]) -> int:
    """Do what one call of `ray` asks for."""
    match words[:2]:
        case ["head"]:
            head()
            return 0
        case ["job", "status"]:
            return 0 if _SUBMITTED.exists() else 1
        case ["job", "submit"]:
            instead = os.environ.get("PLAYED_DRIVER")
            command = ["/bin/sh", "-c", instead] if instead else words[words.index("--") + 1 :]
            _put(_SUBMITTED, json.dumps(command))
            return 0
        case ["job", "logs"]:
            return follow()
    print(f"played ray: no such command: {words}", file=sys.stderr)
    return 2


def _put(path: Path, text: str) -> None:
    """Write a file that the other side sees whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
