"""--profile: what torch computes during a few updates, in this process and in those of hosts on Ray."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsgd.core.protocol import TraceEvents, Update
from dsgd.engines.torch_profile import TorchProfile
from dsgd.process.files import WriteError, whole_file
from dsgd.running.keeper import Running, Watcher

_ELSEWHERE = "give --profile another folder"


class Profiling(Watcher):
    """Profiles updates `first` to `last`, and writes the file, once it has the last of them or the run ends.

    Raises ValueError if the file cannot be written at the beginning; later that is a warning.
    """

    def __init__(self, file: str, first: int, last: int) -> None:
        self._file, self._first, self._last = Path(file), first, last
        self._here, self._begun = TorchProfile(), False
        self._zero_us = 0.0  # of the engine's clock, in microseconds since 1970
        self._updates: list[tuple[str, float]] = []
        if not self._file.parent.is_dir():
            raise ValueError(f"--profile {file}: there is no folder {self._file.parent}; make it first")
        if self._file.is_dir():
            raise ValueError(f"--profile {file}: is a folder; give another name")
        try:
            tempfile.TemporaryFile(dir=self._file.parent).close()
        except OSError as error:
            raise ValueError(f"--profile {WriteError(error, self._file, _ELSEWHERE)}") from None

    def started(self, running: Running) -> None:
        self._cluster, self._version = running.cluster, running.tally.updates
        self._begin_before(self._version + 1)

    def updated(self, update: Update) -> None:
        self._version = update.weights.version
        if self._begun:
            self._updates.append((f"update {self._version}", _now_us()))
        if self._version >= self._last:
            self.ended()
        else:
            self._begin_before(self._version + 1)

    def _begin_before(self, version: int) -> None:
        if not self._begun and self._first <= version <= self._last:
            self._begun = True
            self._cluster.profile(True)
            self._here.begin()
            self._zero_us = _now_us() - 1e6 * self._cluster.now_s
            self._updates.append((f"update {version - 1}", _now_us()))

    def ended(self) -> None:
        if self._begun:
            self._begun, self._first = False, self._last + 1
            processes = {"driver": self._here.end(), **self._cluster.profile(False)}
            try:
                with whole_file(self._file, _ELSEWHERE) as file:
                    file.write(json.dumps({"traceEvents": self._merged(processes)}).encode())
            except WriteError as error:  # what is trained is whole without it
                logging.getLogger("dsgd").warning(f"--profile {error}")
        elif self._version < self._first <= self._last:
            what = f"--profile {self._file}: there is no file, as the run ended before update {self._first}"
            logging.getLogger("dsgd").warning(what)

    def _merged(self, processes: Mapping[str, TraceEvents]) -> TraceEvents:
        """Return the events of all processes on the engine's clock, each process under its name.

        Machines may give two processes one id, and torch counts arrows in each from 1.
        """
        merged: list[dict[str, Any]] = []
        for number, (name, events) in enumerate(processes.items(), 1):
            pids: dict[Any, int] = {}
            for event in events:
                pid = pids.setdefault(event["pid"], 1000 * number + len(pids))
                own = {"pid": pid, "ts": event["ts"] - self._zero_us}
                own |= {"id": f"{number}.{event['id']}"} if "id" in event else {}
                if event["name"] == "process_name":
                    own["args"] = {"name": name}
                merged.append(event | own)
        first_pid = {"ph": "i", "pid": 1000, "tid": 0, "s": "g"}
        return merged + [{**first_pid, "name": n, "ts": at - self._zero_us} for n, at in self._updates]


def _now_us() -> float:
    return time.time() * 1e6  # noqa: TID251 - torch's clock
