"""A record may come from a stranger: the commands that read it take it as data."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import CommandLine

from dsgd.show.live.followed_folder import FollowedFolder
from main import main

EVIL = """
from pathlib import Path

Path(__file__).with_name("it ran").touch()

import train_asgd
from dsgd import DataConfig
from dsgd.config import TrainConfig


class Config(DataConfig):
    pass
"""

NAMES: Mapping[str, str] = {
    "workload": "{evil}/train_evil.py",
    "strategy_file": "{evil}/train_evil.py",
    "compute_time": "trace:{evil}/pipe",
    "faults": "{evil}/pipe",
}
"""What an option of the record says."""


@pytest.mark.parametrize("option", NAMES)
def test_a_command_that_reads_a_record_runs_nothing_that_it_names(
    option: str, cli: CommandLine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a workload nor a strategy is imported, no pipe is waited for, and the run is shown."""
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "train_evil.py").write_text(EVIL)
    os.mkfifo(evil / "pipe")
    record = cli("--engine sim --mode asgd --num-workers 2 --steps 8 --quiet").record
    (record / "config.yaml").write_text(
        re.sub(
            rf"^{option}: .*$",
            f"{option}: {NAMES[option].format(evil=evil)}",
            (record / "config.yaml").read_text(),
            flags=re.M,
        )
    )
    if option == "strategy_file":
        (record / "config.yaml").write_text(
            (record / "config.yaml").read_text().replace("mode: asgd", "mode: evil")
        )
        summary = (record / "summary.json").read_text().replace('"mode": "asgd"', '"mode": "evil"')
        (record / "summary.json").write_text(summary)
    begun = json.loads((record / "meta.json").read_text())
    del begun["options_sha256"]  # as who made the record could have it, too
    (record / "meta.json").write_text(json.dumps(begun))
    assert str(evil) in (record / "config.yaml").read_text()
    for arguments in (["report", str(record)], ["report", str(cli.out)], ["list", str(cli.out)]):
        assert main(arguments) == 0, arguments
    folder = FollowedFolder(cli.out)
    while any(folder.read()):
        pass
    (followed,) = folder.runs.values()
    assert (followed.path, followed.view()["state"]) == (record, "budget")
    assert (record / "report.html").stat().st_size > 10_000
    assert not (evil / "it ran").exists()
