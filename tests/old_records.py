"""Small records of a commit, one of each kind, which every later one must resume, replay and report.

python tests/old_records.py     # makes tests/golden/records/COMMIT.zip of what is checked out,
                                # and COMMIT.json, which says on what kind of processor
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "tests/golden/records"

OPTIONS: Mapping[str, object] = {
    "engine": "sim", "num_workers": 3, "steps": 20, "hidden": 4, "samples": 96, "batch_size": 8,
    "eval_every": 8, "checkpoint_every": 2, "trace_last": 0,
}  # fmt: skip
WORKLOAD_FILE = Path("/tmp/dsgd-old-records/mine.py")
"""A record names it, and it goes on only where that file is."""
NO_DATA = {"hidden": None, "samples": None}
QUADRATIC = {"workload": "quadratic", "batch_size": None, **NO_DATA}
ON_RAY = {"engine": "ray", "num_workers": 2, "hosts": 1}


def made_on() -> dict[str, str]:
    """Return all that the bits of a result depend on: processor features and versions."""
    supported = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
    features = " ".join(sorted(name for name, there in supported.items() if there))
    return {
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "features": hashlib.sha256(features.encode()).hexdigest()[:16],
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
    }


class Kind(NamedTuple):
    """A run whose record is kept."""

    options: Mapping[str, object]
    killed_at: int | None = None
    """Its driver was killed after this update; None: the run came to its end."""

    @property
    def engine(self) -> object:
        """Of all its options this one decides where it can go on."""
        return {**OPTIONS, **self.options}["engine"]

    def arguments(self, name: str, **others: object) -> list[str]:
        """Return its command line, with some options other than they were."""
        given = {**OPTIONS, **self.options, "run_name": name, "out": ".", **others}
        said = {f"--{option.replace('_', '-')}": str(it) for option, it in given.items() if it is not None}
        return [*(text for pair in said.items() for text in pair), "--quiet"]


FAULTS = "kill:1@step=4;slow-disk=.2@t=2+4;torn@t=7;driver@update=9"
KINDS: Mapping[str, Kind] = {
    "asgd": Kind({"mode": "asgd", "compute_time": "exponential:1"}, 33),
    "faults": Kind({"mode": "ssgd", "momentum": 0.9, "faults": FAULTS}, 15),
    "allreduce": Kind({"mode": "diloco", "topology": "allreduce:halving", "local_steps": 2}, 7),
    "sharded": Kind({"mode": "asgd", "topology": "sharded:2", "slowdown": "0=2"}, 30),
    "gossip": Kind({"mode": "dpsgd", "num_workers": 4}, 9),
    "compressed": Kind({"mode": "ssgd", "compress": "topk:.2", "clip_norm": 1}, 9),
    "losses": Kind({"mode": "ssp", "slack": 1, "on_loss": "drop", "faults": "spot:mtbf=15,back=4"}, 40),
    "every-second": Kind({"mode": "ssgd", "record": "every:2"}, 11),
    "no-checkpoints": Kind({"mode": "localsgd", "local_steps": 2, "checkpoint_every": None}, 5),
    "rolled-back": Kind({"mode": "ssgd", **QUADRATIC, "lr": 30, "on_divergence": "rollback"}),
    "module": Kind({"mode": "ssgd", "workload": WORKLOAD_FILE, **NO_DATA}, 9),
    "finished": Kind({"mode": "easgd", "local_steps": 2}),
    "on-ray": Kind({"mode": "ssgd", **ON_RAY, "checkpoint_every": 0.05, "compute_time": "constant:.02"}, 12),
    "on-ray-asgd": Kind({"mode": "asgd", **ON_RAY}),
    "both": Kind({"mode": "ssgd", **ON_RAY, "engine": "both", "checkpoint_every": None, "steps": 6}),
}

WORKLOAD = """
import torch
from torch import nn

from dsgd import Problem


def loss(module, x, y):
    return (module(x) - y).square().mean()


def make():
    x = torch.linspace(-1, 1, 96)[:, None]
    data = torch.utils.data.TensorDataset(x, x**2)
    return Problem(nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)), loss, data, data)
"""


def write_workload() -> None:
    """Write the workload's file, in one step: tests of other processes may be reading it. Another user's will
    do.
    """
    if WORKLOAD_FILE.exists() and WORKLOAD_FILE.read_text() == WORKLOAD:
        return
    WORKLOAD_FILE.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=WORKLOAD_FILE.parent, delete=False) as file:
        file.write(WORKLOAD)
    os.chmod(file.name, 0o644)
    os.replace(file.name, WORKLOAD_FILE)


EXPERIMENT = """
title: Which mode?
question: Which of two modes is better?
base: {engine: sim, workload: quadratic, num_workers: 2, steps: 6}
variants: {ssgd: {mode: ssgd}, asgd: {mode: asgd}}
seeds: 2
"""

A_RUN = """
import sys

root, killed_at = sys.argv[1:3]
sys.argv = ["main.py", *sys.argv[3:]]
sys.path[:0] = [f"{root}/{folder}" for folder in ("", "tests", "tests/running")]
if killed_at == "None":
    from main import main
    sys.exit(main(sys.argv[1:]))
from test_resume import Kill, run
from dsgd.show.terminal.cli import parse
run(parse(sys.argv[1:]), Kill(int(killed_at), wait="--checkpoint-every" in sys.argv))
"""


def make(folder: Path) -> None:
    """Make all kinds in a folder."""

    def run(*arguments: str, killed_at: int | None = None) -> None:
        code = subprocess.call(
            [sys.executable, "-c", A_RUN, str(ROOT), str(killed_at), *arguments], cwd=folder
        )
        assert code == (0 if killed_at is None else -signal.SIGKILL), (arguments, code)

    write_workload()
    (folder / "compared.yaml").write_text(EXPERIMENT)
    for name, kind in KINDS.items():
        run(*kind.arguments(name), killed_at=kind.killed_at)
    run("--experiment", "compared.yaml", "--out", "compared")


def main() -> None:
    """Make the file of the commit that is checked out."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(KEPT / f"{commit}.zip", "w", 8) as kept:
        make(Path(folder))
        for file in sorted(Path(folder).rglob("*")):
            if file.is_file() and file.suffix not in (".lock", ".html", ".svg", ".png", ".pyc"):
                kept.write(file, file.relative_to(folder))
    (KEPT / f"{commit}.json").write_text(f"{json.dumps(made_on())}\n")


if __name__ == "__main__":
    main()
