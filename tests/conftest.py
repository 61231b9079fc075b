"""Fixtures: one Ray cluster for all tests, and runs of the command line."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
# The workers' first import of torch may be slow on a loaded machine; nothing here tests that it is fast.
os.environ.pop("RAY_ADDRESS", None)


class Ran(NamedTuple):
    """A finished run of the command line."""

    code: int
    out: str
    err: str
    record: Path

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.record / "summary.json").read_text())
        return summary

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.record / name).read_text().splitlines()]


class CommandLine:
    """Runs main.py in this process, with records in a folder of its own."""

    def __init__(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self._capsys, self._count = out, capsys, 0

    def __call__(self, text: str, *more: str) -> Ran:
        from main import main

        self._count += 1
        name = f"run{self._count}"
        arguments = [*text.split(), *more]
        if "--out" not in arguments:
            arguments += ["--out", str(self.out)]
        if "--run-name" not in arguments:
            arguments += ["--run-name", name]
        try:
            code = main(arguments)
        except SystemExit as stop:  # --help
            code = int(stop.code or 0)
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err, self.out / name)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what tests/test_conformance.py can be asked."""
    parser.addoption("--strategy-file", help="hold this strategy, and no other, to the laws of strategies")


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path / "runs", capsys)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Start a private Ray cluster for this session; yield its address."""
    import ray

    import dsgd.cluster.ray  # noqa: F401 - sets what Ray reads at its import

    folder = tempfile.mkdtemp(prefix="dsgd-ray-", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=folder,
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def python(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a Python of this environment in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
