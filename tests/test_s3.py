"""Records in S3, over HTTP: complete, never overwriting another's, and never lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from conftest import ROOT, stored

from dsgd.records.s3 import Destination, fetch
from dsgd.records.s3_access import TakenError
from main import main

SIM = "--engine sim --compute-time exponential:1"
URL = "s3://lab/runs/may"


class StandIn:
    """A server in place of S3 that answers as scripted, and remembers the requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Callable[[str, int], int] = lambda key, times: 200
        """Return the status for a key that is asked for so many times."""
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                stand_in.asked.append(self.path)
                self.send_response(stand_in.answer(self.path, stand_in.asked.count(self.path)))
                self.send_header("Content-Length", "0")
                self.send_header("ETag", '"1"')
                self.end_headers()

            def do_DELETE(self) -> None:  # the lease: all is well
                self.send_response(204)
                self.end_headers()

            def do_GET(self) -> None:  # what is there? nothing
                body = b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>"
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def stand_in(aws: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Put a stand-in where S3 was."""
    there = StandIn()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", there.url)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    thread = threading.Thread(target=there.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield there
    there.server.shutdown()
    there.server.server_close()
    thread.join()


def local(name: str, folder: Path | None = None) -> dict[str, bytes]:
    """Return the files of a local record, named as in the bucket."""
    record = (folder or Path()) / "runs/s3/lab/runs/may" / name
    return {
        f"runs/may/{name}/{path.relative_to(record).as_posix()}": path.read_bytes()
        for path in record.rglob("*")
        if path.is_file()
    }


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start main.py in a folder, which is made."""
    folder.mkdir()
    return subprocess.Popen(
        [sys.executable, str(ROOT / "main.py"), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s, "waited too long"
        time.sleep(0.05)


def run(text: str, name: str = "a", url: str = URL) -> int:
    return main([*SIM.split(), *text.split(), "--out", url, "--run-name", name])


def test_a_record_is_uploaded_whole(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What is in the bucket after a run is what is here, byte for byte, in all its folders."""
    assert run("--mode asgd --steps 20 --tensorboard") == 0
    assert stored(aws) == local("a")
    assert {Path(key).name for key in stored(aws)} >= {"summary.json", "trace.json", "config.yaml"}
    assert any("/tensorboard/" in key for key in stored(aws))
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "record  runs/s3/lab/runs/may/a",
        f"upload  {URL}/a",
    ]


def test_summary_json_is_the_last_to_come(stand_in: StandIn) -> None:
    """A record in the bucket that has its summary.json has all else; half-written files stay here."""
    record = Path("record")
    for name in ("ray/summary.json", "sim/summary.json", "sim/weights.npy", "z.json", "w.npy.partial"):
        (record / name).parent.mkdir(parents=True, exist_ok=True)
        (record / name).write_text("{}")
    Destination(URL).upload(record, "both")
    assert [key.removeprefix("/lab/runs/may/both/") for key in stand_in.asked] == [
        "sim/weights.npy", "z.json", "ray/summary.json", "sim/summary.json"
    ]  # fmt: skip


def test_a_large_file_is_uploaded_whole(aws: Any) -> None:
    """Files of many megabytes go up in parts, and are the same there."""
    content = os.urandom(20_000_001)
    Path("record").mkdir()
    Path("record/updates.jsonl").write_bytes(content)
    Destination(URL).upload(Path("record"), "a")
    assert stored(aws) == {"runs/may/a/updates.jsonl": content}


def test_a_taken_name_is_refused_before_the_run(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The second run of a name, started elsewhere: exit 2, and the first one's record stays as it was."""
    assert run("--dataset none --steps 3 --quiet") == 0
    before = stored(aws)
    os.rename("runs", "elsewhere")
    capsys.readouterr()
    assert run("--dataset none --steps 4 --quiet") == 2
    err = capsys.readouterr().err
    assert err == f"main.py: --run-name a: {URL}/a is taken and is never overwritten; choose another name\n"
    assert stored(aws) == before
    assert not Path("runs").exists()


def test_of_two_runs_at_once_one_has_the_name_and_sigterm_uploads_it(aws: Any, tmp_path: Path) -> None:
    """While a run goes on its name is taken; SIGTERM ends it with 130, and the partial record is uploaded."""
    options = f"{SIM} --mode asgd --dataset none --steps 1000000 --quiet --out {URL} --run-name a".split()
    one = start(tmp_path / "one", *options)
    updates = tmp_path / "one/runs/s3/lab/runs/may/a/updates.jsonl"
    try:
        wait_for(lambda: updates.exists() and updates.stat().st_size > 100_000)
        assert set(stored(aws)) == {"runs/may/a/config.yaml", "runs/may/a/lease"}
        two = start(tmp_path / "two", *options)
        _, err = two.communicate(timeout=60)
        assert two.returncode == 2
        assert "is taken" in err
    finally:
        one.send_signal(signal.SIGTERM)
        _, err = one.communicate(timeout=60)
    assert (one.returncode, err) == (130, "")
    assert stored(aws) == local("a", tmp_path / "one")
    summary = json.loads(stored(aws)["runs/may/a/summary.json"])
    assert summary["stopped_by"] == "interrupted"
    assert summary["updates"] == stored(aws)["runs/may/a/updates.jsonl"].count(b"\n")


def test_the_first_to_claim_a_name_has_it(aws: Any) -> None:
    """Of several that claim a name one gets it; a request repeated after a lost answer is not a second."""
    one, two = Destination(URL), Destination(URL)
    one.claim("a", "steps: 1")
    with pytest.raises(TakenError, match="a is taken"):
        two.claim("a", "steps: 2")
    one.claim("a", "steps: 1")
    assert stored(aws) == {"runs/may/a/config.yaml": b"steps: 1"}


def test_unnamed_runs_find_a_name_that_is_free(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two unnamed runs in the same second, from two machines, get two records."""
    monkeypatch.setattr("dsgd.records.upload.default_name", lambda cfg: "noon")
    for machine in ("one", "two"):
        os.mkdir(machine)
        monkeypatch.chdir(machine)
        assert main([*SIM.split(), "--dataset", "none", "--steps", "2", "--quiet", "--out", URL]) == 0
        monkeypatch.chdir("..")
    names = {key.split("/")[2] for key in stored(aws)}
    assert names == {"noon", "noon-2"}


def test_a_diverged_run_is_uploaded_and_keeps_its_code(aws: Any) -> None:
    """However a run ends its record is uploaded, and the exit code is the run's."""
    assert run("--mode asgd --dataset quadratic --lr 1e6 --steps 100 --quiet") == 3
    assert json.loads(stored(aws)["runs/may/a/summary.json"])["stopped_by"] == "diverged"


def test_a_run_that_cannot_begin_gives_its_name_back(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake that is seen only with the data at hand: exit 2, and nothing is left in the bucket."""
    assert run("--samples 3") == 2
    assert "--samples 3" in capsys.readouterr().err
    assert stored(aws) == {}
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("url", "changed", "parts"),
    [
        ("s3://nowhere/may", {}, ["no such bucket", "create it"]),
        (URL, {"AWS_ACCESS_KEY_ID": None}, ["credentials", "AWS_PROFILE"]),
        (URL, {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, ["credentials", "AWS_PROFILE"]),
        (URL, {"AWS_PROFILE": "nobody"}, ["(nobody)", "AWS_PROFILE"]),
    ],
)
def test_what_the_user_can_fix_is_said_before_the_run(
    url: str,
    changed: dict[str, str | None],
    parts: list[str],
    aws: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No bucket, no credentials, no such profile: exit 2, one line with the remedy, nothing written."""
    for name, value in changed.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    assert run("--steps 3", url=url) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    for part in (f"--out {url}", *parts):
        assert part in err
    assert not Path("runs").exists()


def test_a_refusal_is_not_repeated(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    """403 on the first request: exit 2 at once, one line, nothing written."""
    stand_in.answer = lambda key, times: 403
    assert run("--steps 3") == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "S3 refuses" in err
    assert "AWS_PROFILE" in err
    assert len(stand_in.asked) == 1
    assert not Path("runs").exists()


def test_a_failed_upload_leaves_the_record_and_says_where(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """503 after the run: asked again as often as AWS_MAX_ATTEMPTS says, then exit 1; the record is here."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    stand_in.answer = lambda key, times: 503 if "/evals" in key else 200
    assert run("--dataset none --steps 3 --quiet") == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "S3 fails" in err
    assert "is in runs/s3/lab/runs/may/a and" in err
    asked = {"config.yaml": 2, "lease": 1, "evals.jsonl": 3}
    assert Counter(stand_in.asked) == {f"/lab/runs/may/a/{file}": n for file, n in asked.items()}
    assert json.loads(local("a")["runs/may/a/summary.json"])["stopped_by"] == "budget"


def test_a_run_that_failed_keeps_its_code_when_its_upload_fails_too(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both errors are reported, the exit code is the run's."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    stand_in.answer = lambda key, times: 200 if times == 1 else 503
    assert run("--mode asgd --dataset quadratic --lr 1e6 --steps 100 --quiet") == 3
    first, second = capsys.readouterr().err.splitlines()
    assert "--lr" in first
    assert "S3 fails" in second


def test_what_fails_for_a_moment_is_repeated(stand_in: StandIn) -> None:
    """A 503 and then an answer: all is well. By default it tries five times."""
    stand_in.answer = lambda key, times: 503 if "/meta" in key and times == 1 else 200
    assert run("--dataset none --steps 3 --quiet") == 0
    assert stand_in.asked.count("/lab/runs/may/a/meta.json") == 2
    config: Any = Destination(URL)._client.meta.config
    assert config.retries["total_max_attempts"] == 5


def test_a_server_that_is_not_there_is_a_failure(
    aws: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No answer at the endpoint: exit 1, one line, nothing written."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    assert run("--steps 3") == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "http://127.0.0.1:1" in err
    assert not Path("runs").exists()


def test_what_reports_read_is_fetched(aws: Any) -> None:
    """All records below a URL, without weights and traces; a second time, only what has changed."""
    for name in ("a", "b"):
        assert run("--dataset none --steps 3 --quiet", name) == 0
    folder = fetch(URL)
    assert folder == Path("runs/from-s3/lab/runs/may")
    for name in ("a", "b"):
        assert {path.name: path.read_bytes() for path in (folder / name).iterdir()} == {
            Path(key).name: content
            for key, content in local(name).items()
            if not key.endswith((".npy", "trace.json"))
        }
    (folder / "a/meta.json").unlink()
    os.utime(folder / "a/summary.json", (0, 0))
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json*")}
    fetch(URL)
    assert (folder / "a/meta.json").exists()
    changed = [path for path, ns in times.items() if path.stat().st_mtime_ns != ns]
    assert changed == [folder / "a/summary.json"]


def test_nothing_is_fetched_to_another_folder(aws: Any, tmp_path: Path) -> None:
    """Keys that would lead out of the folder are left alone."""
    for key in ("runs/may/a/meta.json", "runs/may/../../../../up.json", f"runs/may/{tmp_path}/root.json"):
        aws.put_object(Bucket="lab", Key=key, Body=b"{}")
    fetch(URL)
    found = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.json")]
    assert found == [Path("runs/from-s3/lab/runs/may/a/meta.json")]


def test_a_report_is_drawn_from_the_bucket(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`--report s3://...` prints where the report is, which is here."""
    assert run("--dataset none --steps 3 --quiet") == 0
    capsys.readouterr()
    assert main(["--report", f"{URL}/a"]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == Path("runs/from-s3/lab/runs/may/a/report.html")
    assert page.exists()


@pytest.mark.parametrize("url", [f"{URL}/empty", "s3://nowhere/may", "s3://UPPER"])
def test_a_url_without_records_is_refused(url: str, aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and one line."""
    assert main(["--report", url]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert f"--report {url}" in err
    assert not Path("runs").exists()


EXPERIMENT = """
title: Slack
question: How much slack?
base: {engine: sim, dataset: none, num_workers: 2, steps: 3, mode: ssp}
grid: {slack: [0, 2]}
seeds: 1
"""


def experiment(url: str = URL) -> int:
    Path("slack.yaml").write_text(EXPERIMENT)
    return main(["--experiment", "slack.yaml", "--out", url, "--processes", "1"])


def test_an_experiment_is_uploaded_and_a_broken_upload_completed(
    stand_in: StandIn,
    aws: Any,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S3 fails: exit 1, and all is here. Repeated, the command uploads what is missing, and nothing else."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    stand_in.answer = lambda key, times: 503
    assert experiment() == 1
    err = capsys.readouterr().err
    assert "S3 fails" in err
    assert "the same command uploads what is missing" in err
    assert len(stand_in.asked) == 1

    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    assert experiment() == 0
    assert f"upload  {URL}/slack" in capsys.readouterr().out
    assert stored(aws) == local("slack")
    assert sum(key.endswith("/summary.json") for key in stored(aws)) == 2

    for key in ("slack=0-s0/summary.json", "slack=0-s0/weights.npy"):  # as if it had broken off
        aws.delete_object(Bucket="lab", Key=f"runs/may/slack/{key}")
    assert experiment() == 0
    assert stored(aws) == local("slack")


def test_an_experiment_from_elsewhere_is_not_mixed_with(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The same experiment from another machine: exit 2, before anything runs."""
    aws.put_object(Bucket="lab", Key="runs/may/slack/experiment.yaml", Body=b"")
    assert experiment() == 2
    assert f"--out {URL}: {URL}/slack is taken" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_record_is_added_once_and_never_over_another(aws: Any) -> None:
    """A finished record that is there already is left alone; another record of that name is refused."""
    for name in ("a", "b"):
        assert run("--dataset none --steps 3 --quiet", name, url="runs") == 0
    Destination(URL).add(Path("runs/a"), "x")
    aws.put_object(Bucket="lab", Key="runs/may/x/weights.npy", Body=b"left alone")
    Destination(URL).add(Path("runs/a"), "x")
    assert stored(aws)["runs/may/x/weights.npy"] == b"left alone"
    with pytest.raises(TakenError, match="x is taken"):
        Destination(URL).add(Path("runs/b"), "x")
    aws.delete_object(Bucket="lab", Key="runs/may/x/summary.json")
    Destination(URL).add(Path("runs/a"), "x")
    assert stored(aws) == {f"runs/may/x/{p.name}": p.read_bytes() for p in Path("runs/a").iterdir()}


@pytest.mark.ray
def test_a_comparison_of_engines_is_uploaded_whole(aws: Any, ray_cluster: str) -> None:
    """--engine both: two records and comparison.json, under one claimed name."""
    arguments = f"--engine both --mode asgd --steps 5 --quiet --out {URL} --run-name a".split()
    assert main(arguments) == 0
    assert stored(aws) == local("a")
    assert stored(aws).keys() >= {
        f"runs/may/a/{file}" for file in ("ray/summary.json", "sim/summary.json", "comparison.json")
    }
    os.rename("runs", "elsewhere")
    assert main(arguments) == 2
