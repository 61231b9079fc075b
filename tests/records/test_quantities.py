"""One table of quantities: a row is enough for a quantity to be shown everywhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from msgspec import Struct
from test_metrics import scraped
from test_tensorboard import scalars

from dsgd.core.clocks import Clocks
from dsgd.core.protocol import Cluster, Update
from dsgd.metrics import QUANTITIES, Quantity, Tally, of_updates, quantity
from dsgd.records.documents import fields_table, json_schema, metrics_table
from dsgd.records.reader import read_record
from dsgd.records.schema import Summary, WorkerTotals, summary_type
from dsgd.running.quick_run import run
from dsgd.show.report.frames import read_folder
from dsgd.show.report.tables import results
from dsgd.strategies import train_asgd

SIM = "--engine sim --compute-time exponential:1"


@pytest.fixture
def added() -> Iterator[list[Quantity]]:
    """Add two rows for the time of a test: one that the strategy hands over, one taken from the update."""
    rows = [
        of_updates("parity", "1", "whether the version is odd"),
        of_updates("oldest", "updates", "first version read", of=lambda u: min(d.read for d in u.dones)),
    ]
    QUANTITIES.extend(rows)
    yield rows
    for row in rows:
        QUANTITIES.remove(row)


def hand_over_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    real = train_asgd.train

    def train(*arguments: Any) -> Iterator[Update]:
        for update in real(*arguments):
            yield update._replace(measured={"parity": update.weights.version % 2})

    monkeypatch.setattr(train_asgd, "train", train)


def test_a_row_is_shown_everywhere(
    added: list[Quantity], cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row more, and the record, Prometheus, TensorBoard, the report and the documents have the quantity."""
    hand_over_parity(monkeypatch)
    got, ran = scraped(cli, f"{SIM} --mode asgd --num-workers 3 --steps 15 --tensorboard")
    updates = ran.lines("updates.jsonl")
    expected = {
        "parity": [u["version"] % 2 for u in updates],
        "oldest": [u["version"] - 1 - u["gradients"][0]["staleness"] for u in updates],
    }
    read, frames = read_record(ran.record), read_folder(ran.record)
    for row in added:
        values = expected[row.name]
        mean = sum(values) / len(values)
        assert mean > 0
        assert [update[row.name] for update in updates] == values
        assert [update.measured[row.name] for update in read.updates()] == values
        assert read.update_frame()[row.name].to_list() == values
        assert ran.summary[row.name] == mean == read.summary.measured[row.name]
        assert f"\n{row.name} " in ran.out
        assert got(f"dsgd_{row.name}") == mean
        assert [point.value for point in scalars(ran.record)[f"update/{row.name}"]] == values
        assert frames.runs[row.name].to_list() == [mean]
        assert row.name in results(frames).headings
        named = f"| `{row.name}`, {row.unit} |"
        assert f"{named} {row.text} |" in fields_table("RecordedUpdate")
        assert f"{named} mean of" in fields_table("Summary")
        assert f"\n| `dsgd_{row.name}`, {row.unit} | gauge |  | {row.text.capitalize()}," in metrics_table("")
        parts = json.loads(json_schema())["$defs"]
        assert parts["Summary"]["properties"][row.name]["unit"] == row.unit
    assert "parity" in json_schema()


def test_a_record_from_before_the_row_is_read(
    cli: CommandLine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A record that was written before a row was added is read, without the quantity."""
    record = cli(f"{SIM} --mode asgd --steps 5").record
    request.getfixturevalue("added")
    read = read_record(record)
    assert read.summary.measured["parity"] is None
    assert {update.measured["oldest"] for update in read.updates()} == {None}


def test_what_has_no_row_is_refused() -> None:
    """A strategy that hands over a number that has no row is stopped with a message where to add one."""
    outcome = run("asgd", num_workers=2, steps=1)
    update = outcome.updates[0]._replace(measured={"parity": 1.0})
    with pytest.raises(ValueError, match=r"has parity, which dsgd\.metrics\.QUANTITIES lacks; add a row"):
        Tally(2, 32, outcome.cluster.clocks).add(update)


def test_the_rows_are_the_fields_of_the_summary() -> None:
    """Each row of a count is a field of summary.json and each field a row, except what no update changes."""

    def fields(kind: type[Struct]) -> set[str]:
        return set(kind.__struct_fields__)

    not_counted = {
        "mode", "engine", "num_workers", "steps", "seed", "stopped_by", "error", "eval", "theory", "wall_s",
        "startup_s", "weights_sha256", "workers", "over_workers", "extra", "overflows",
    }  # fmt: skip
    assert {row.name for row in QUANTITIES if row.total} == fields(summary_type()) - not_counted
    assert {row.name for row in QUANTITIES if row.by_worker} == fields(WorkerTotals)
    assert fields(summary_type()) - fields(Summary) == {row.name for row in QUANTITIES if row.of}
    assert len({row.name for row in QUANTITIES}) == len(QUANTITIES)
    assert quantity("drift").families.keys() == {"dsgd_localsgd_drift"}


@pytest.mark.parametrize("mode", ["asgd", "ssgd", "kasync", "localsgd"])
def test_the_tally_counts_what_updates_say(mode: str) -> None:
    """The tally writes out `Update.loss`, `.staleness` and `.finished_s` for speed: they are the same."""
    staleness: Counter[int] = Counter()
    tally = Tally(4, 32, Clocks(range(4)))

    def check(_: Cluster, update: Update) -> None:
        tally.add(update)
        staleness.update(map(update.staleness, update.dones))
        assert tally.last_loss == update.loss
        assert tally.last_update_s == update.finished_s
        assert tally.staleness_counts == staleness

    run(mode, on_update=check, num_workers=4, steps=12, compute_time="exponential:1")
    assert tally.updates > 1
