"""--profile: what torch computes in chosen updates, in all processes, for Perfetto."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dsgd

TWO: dict[str, Any] = {
    "workload": "digits_cnn",
    "num_workers": 2,
    "steps": 6,
    "batch_size": 8,
    "eval_every": 100,
}


def profile(file: Path, **options: Any) -> list[dict[str, Any]]:
    dsgd.run("ssgd", **TWO, profile=f"{file}@3-5", **options)
    events: list[dict[str, Any]] = json.loads(file.read_text(), parse_constant=pytest.fail)["traceEvents"]
    return events


def convolutions(events: list[dict[str, Any]]) -> Counter[str]:
    """Return how often each process computed the network's one convolution."""
    name_of = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return Counter(name_of[event["pid"]] for event in events if event["name"] == "aten::conv2d")


def test_a_profile_has_the_mini_batches_of_its_updates_and_no_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two workers, three updates; what is computed lies between the updates that begin and end it. Torch
    prints nothing of it.
    """
    events = profile(tmp_path / "p.json", engine="sim", compute_time="constant:2")
    assert convolutions(events) == {"driver": 6}
    assert capfd.readouterr() == ("", "")
    made = {event["name"]: event["ts"] for event in events if event["name"].startswith("update")}
    assert list(made) == ["update 2", "update 3", "update 4", "update 5"]
    assert sorted(made.values()) == list(made.values())
    assert abs(made["update 2"] - 4e6) < 1e5  # on the engine's clock, on which an update takes two seconds
    first, *_, last = (e["ts"] for e in events if e["name"] == "aten::conv2d")
    assert made["update 2"] < first < made["update 3"]
    assert made["update 4"] < last < made["update 5"]


@pytest.mark.ray
def test_on_ray_it_has_those_of_each_workers_process(
    tmp_path: Path, ray_cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one clock, and no process has an event of another's id."""
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    events = profile(tmp_path / "p.json", engine="ray")
    assert convolutions(events) == {"host 0": 3, "host 1": 3}
    made = {event["name"]: event["ts"] for event in events if event["name"].startswith("update")}
    for event in events:
        if event["name"] == "aten::conv2d":
            assert made["update 2"] < event["ts"] < made["update 5"]


def test_a_run_that_ends_before_it_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "p.json"
    dsgd.run("ssgd", engine="sim", steps=3, profile=f"{file}@40-50")
    assert "there is no file, as the run ended before update 40" in caplog.text
    assert not file.exists()


def test_a_file_that_cannot_be_written_at_the_end_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The name has room for a file's, but not for that of the one which is being written."""
    run = dsgd.run("ssgd", engine="sim", steps=3, profile=f"{tmp_path}/{'p' * 245}.json")
    assert (run.error, run.stopped_by) == (None, "budget")
    assert "p.json: cannot be written (File name too long); shorten it, or give" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("p.txt", "must be FILE.json or FILE.json@FIRST-LAST"),
        ("p.json@5-3", "must be FILE.json or FILE.json@FIRST-LAST"),
        ("no/p.json", "there is no folder no; make it first"),
        ("a/p.json", "is a folder; give another name"),
        ("/proc/p.json", "/proc/p.json: cannot be written (.*); give --profile another folder"),
    ],
)
def test_a_profile_that_cannot_be_made_is_refused(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a/p.json").mkdir(parents=True)
    with pytest.raises(ValueError, match=words):
        dsgd.run("ssgd", engine="sim", steps=3, profile=text)
