"""--batch-size auto: the largest mini-batch that fits, found by trial."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

from dsgd.running import fitting
from dsgd.running.fitting import largest_batch_size
from dsgd.running.quick_run import config
from main import main

WIDE: dict[str, Any] = {"workload": str(ROOT / "tests/workloads/wide.py"), "num_workers": 2}


@pytest.mark.thorough
def test_what_fits_grows_with_the_memory() -> None:
    """At a megabyte a sample for each of two to eight vectors, and as exactly as the trial goes on."""
    a_sample = [mb / largest_batch_size(config("ssgd", **WIDE), mb * 1e6) for mb in (400, 600)]
    assert 2 < min(a_sample) < 8
    assert max(a_sample) / min(a_sample) < 1.15


def test_a_trial_without_room_for_a_sample_is_refused_in_a_line() -> None:
    said = "--batch-size auto: not one sample fits into memory; give a number"
    with pytest.raises(ValueError, match=said):
        largest_batch_size(config("ssgd", **WIDE), 1e6)


@pytest.mark.thorough
def test_the_number_is_recorded_and_a_run_that_goes_on_keeps_it(tmp_path: Path) -> None:
    """At most what a worker has: of 1,400 samples 350; with another size it would not go on."""
    command = f"--engine sim --workload digits_cnn --batch-size auto --out {tmp_path} --run-name a --quiet"
    for steps, resume in (("3", ""), ("5", "--resume auto")):
        assert main([*command.split(), "--steps", steps, *resume.split()]) == 0
        options = yaml.safe_load((tmp_path / "a/config.yaml").read_text())
        assert (options["batch_size"], options["steps"]) == (350, int(steps))


def test_a_config_file_is_read_once_and_a_run_that_goes_on_with_it_keeps_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is a pipe, as `--config <(…)` gives one, and the second trial finds another size."""
    command = f"--engine sim --steps 3 --batch-size auto --out {tmp_path} --run-name a --quiet"
    for size, resume in ((30, ""), (20, "--resume auto")):
        monkeypatch.setattr(fitting, "largest_batch_size", lambda _, size=size: size)
        reader, writer = os.pipe()
        os.write(writer, b"lr: .02")
        os.close(writer)
        assert main([*command.split(), f"--config=/dev/fd/{reader}", *resume.split()]) == 0
        os.close(reader)
        options = yaml.safe_load((tmp_path / "a/config.yaml").read_text())
        assert (options["batch_size"], options["lr"]) == (30, 0.02)


def test_several_ranks_are_refused() -> None:
    cfg = config("ssgd", engine="ray", workload="digits_cnn", num_workers=1, ranks_per_worker=2)
    with pytest.raises(ValueError, match="is found for one process, and --ranks-per-worker are several"):
        largest_batch_size(cfg)
