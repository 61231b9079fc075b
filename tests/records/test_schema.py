"""One schema: what is written, read, followed and documented is the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import CommandLine

from dsgd.records.documents import documents, json_schema
from dsgd.records.reader import read_record
from dsgd.records.schema import RecordError
from dsgd.show.live.followed_run import FollowedRun

SIM = "--engine sim --compute-time exponential:1"


@pytest.fixture
def record(cli: CommandLine) -> Path:
    return cli(f"{SIM} --mode ksync --backup 1 --rest ignore --num-workers 3 --steps 20").record


def read_all(run: FollowedRun) -> None:
    while run.read():
        pass


def contents(record: Path) -> dict[str, Any]:
    """Return a record's JSON files by name; of a .jsonl file the list of its lines."""
    texts = {path.name: path.read_text() for path in (*record.glob("*.json"), *record.glob("*.jsonl"))}
    return {
        name: [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)
        for name, text in texts.items()
    }


def test_the_documents_are_those_of_the_types() -> None:
    """The tables of the documents and the JSON Schema are what `make docs` would write."""
    for path, text in documents().items():
        assert path.read_text() == text, f"{path.name} is out of date; run `make docs`"


@pytest.mark.parametrize("mode", ["localsgd", "ksync --backup 1 --rest ignore", "asgd --workload none"])
def test_a_record_follows_its_json_schema(mode: str, cli: CommandLine) -> None:
    """The files of a run are valid, each field is described, and a wrong type is found."""
    written = contents(cli(f"{SIM} --mode {mode} --num-workers 3 --steps 20").record)
    described = json.loads(json_schema())
    closed = {name: part | {"additionalProperties": False} for name, part in described["$defs"].items()}
    check = jsonschema.Draft202012Validator(described | {"$defs": closed})
    check.validate(written)
    written["updates.jsonl"][-1]["gradients"][0]["staleness"] = 0.5
    with pytest.raises(jsonschema.ValidationError, match="is not of type 'integer'"):
        check.validate(written)


def test_a_record_that_python_wrote_is_read(record: Path) -> None:
    """Records as json.dumps wrote them, with spaces and in another order, are read as the same values."""
    before = read_record(record)
    updates = list(before.updates())
    for path in (*record.glob("*.json"), *record.glob("*.jsonl")):
        if path.name != "trace.json":
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            path.write_text("".join(json.dumps(json.loads(line), sort_keys=True) + "\n" for line in lines))
    after = read_record(record)
    assert (after.summary, after.meta, after.evals) == (before.summary, before.meta, before.evals)
    assert list(after.updates()) == updates
    assert any(update.ignored for update in updates)


def set_field(record: Path, file: str, line: int, path: list[Any], value: Any) -> None:
    """Change a field of a record; None as value removes it."""
    lines = [json.loads(text) for text in (record / file).read_text().splitlines()]
    inner = lines[line - 1]
    for name in path[:-1]:
        inner = inner[name]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    (record / file).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("file", "path", "value", "says"),
    [
        ("updates.jsonl", ["t_s"], "late", "t_s is not a number"),
        ("updates.jsonl", ["gradients", 1, "worker"], 0.5, "gradients[1].worker is not a whole number"),
        ("updates.jsonl", ["gradients", 0, "loss"], "low", "gradients[0].loss is not a number or null"),
        ("updates.jsonl", ["gradients", 0, "step"], None, "has no gradients[0].step; the record is from an "),
        ("updates.jsonl", ["gradients"], {}, "gradients is not a list"),
        ("evals.jsonl", ["version"], True, "version is not a whole number"),
        ("evals.jsonl", ["bytes"], None, "has no bytes; the record is from an older version, run it again"),
    ],
)
def test_a_wrong_field_is_named(record: Path, file: str, path: list[Any], value: Any, says: str) -> None:
    """Reader and live page refuse a damaged line, in one line with the file, its line and its field."""
    other = record.with_name("other")
    shutil.copytree(record, other)
    set_field(other, file, 3, path, value)
    (other / "summary.json").unlink()  # as of a run that goes on, for the live page
    with pytest.raises(RecordError) as seen:
        read_all(FollowedRun(other))
    set_field(record, file, 3, path, value)
    with pytest.raises(RecordError) as read:
        list(read_record(record).updates())
    assert str(read.value).startswith(f"{record / file}, line 3: {says}")
    assert str(seen.value).startswith(f"{other / file}, line 3: {says}")
    assert "\n" not in str(read.value) + str(seen.value)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["staleness", "counts", "many"], 3, "staleness.counts has a name that is not a whole number"),
        (["staleness", "counts", "0"], "three", "staleness.counts[...] is not a whole number"),
        (["workers", "1", "busy_s"], None, "has no workers[...].busy_s; the record is from an older version"),
        (["eval"], 3, "eval is not an object"),
    ],
)
def test_a_wrong_field_of_the_summary_is_named(record: Path, path: list[str], value: Any, says: str) -> None:
    """A damaged summary is refused in one line with the file and the field."""
    file = record / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text())))
    set_field(record, "summary.json", 1, path, value)
    with pytest.raises(RecordError) as error:
        read_record(record)
    assert str(error.value).startswith(f"{file}: {says}")
