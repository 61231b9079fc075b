"""Records in S3, over HTTP: complete, never overwriting another's, and never lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
from conftest import PATIENCE_S, ROOT, keys, run_python, stored, wait_for

from dsgd.records import lease
from dsgd.records.growing_object import GrowingObject
from dsgd.records.lease import Lease, LostError, TakenError
from dsgd.records.s3 import Destination, fetch
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import name_of, newest_whole
from dsgd.records.upload import Upload, restore_record
from dsgd.running.quick_run import config
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
    assert run("--workload none --steps 3 --quiet") == 0
    before = stored(aws)
    os.rename("runs", "elsewhere")
    capsys.readouterr()
    assert run("--workload none --steps 4 --quiet") == 2
    err = capsys.readouterr().err
    assert err == f"main.py: --run-name a: {URL}/a is taken and is never overwritten; choose another name\n"
    assert stored(aws) == before
    assert not Path("runs").exists()


@pytest.mark.thorough
def test_of_two_runs_at_once_one_has_the_name_and_sigterm_uploads_it(aws: Any, tmp_path: Path) -> None:
    """While a run goes on its name is taken; SIGTERM ends it with 130, and the partial record is uploaded."""
    options = f"{SIM} --mode asgd --workload none --steps 1000000 --quiet --out {URL} --run-name a".split()
    one = start(tmp_path / "one", *options)
    updates = tmp_path / "one/runs/s3/lab/runs/may/a/updates.jsonl"
    try:
        wait_for(lambda: updates.exists() and updates.stat().st_size > 100_000)
        assert set(stored(aws)) == {"runs/may/a/config.yaml", "runs/may/a/lease"}
        two = start(tmp_path / "two", *options)
        _, err = two.communicate(timeout=PATIENCE_S)
        assert two.returncode == 2
        assert "is taken" in err
    finally:
        one.send_signal(signal.SIGTERM)
        _, err = one.communicate(timeout=PATIENCE_S)
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
        assert main([*SIM.split(), "--workload", "none", "--steps", "2", "--quiet", "--out", URL]) == 0
        monkeypatch.chdir("..")
    names = {key.split("/")[2] for key in stored(aws)}
    assert names == {"noon", "noon-2"}


def test_a_diverged_run_is_uploaded_and_keeps_its_code(aws: Any) -> None:
    """However a run ends its record is uploaded, and the exit code is the run's."""
    assert run("--mode asgd --workload quadratic --lr 1e6 --steps 100 --quiet") == 3
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
    assert run("--workload none --steps 3 --quiet") == 1
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
    assert run("--mode asgd --workload quadratic --lr 1e6 --steps 100 --quiet") == 3
    first, second = capsys.readouterr().err.splitlines()
    assert "--lr" in first
    assert "S3 fails" in second


def test_what_fails_for_a_moment_is_repeated(stand_in: StandIn) -> None:
    """A 503 and then an answer: all is well. By default it tries five times."""
    stand_in.answer = lambda key, times: 503 if "/meta" in key and times == 1 else 200
    assert run("--workload none --steps 3 --quiet") == 0
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
        assert run("--workload none --steps 3 --quiet", name) == 0
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
    """`report s3://...` prints where the report is, which is here."""
    assert run("--workload none --steps 3 --quiet") == 0
    capsys.readouterr()
    assert main(["report", f"{URL}/a"]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == Path("runs/from-s3/lab/runs/may/a/report.html")
    assert page.exists()


@pytest.mark.parametrize("url", [f"{URL}/empty", "s3://nowhere/may", "s3://UPPER"])
def test_a_url_without_records_is_refused(url: str, aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and one line."""
    assert main(["report", url]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert f"report {url}" in err
    assert not Path("runs").exists()


# --- One writer at a time -----------------------------------------------------------------------------------

HOLDER = """
import sys
from dsgd.running.quick_run import config
from dsgd.records import lease
from dsgd.records.s3 import Destination

lease.LASTS_S = 2.0
held = Destination(sys.argv[1]).lease("a")
held.take()
print("held", flush=True)
sys.stdin.readline()
try:
    held.require()
except OSError as error:
    print(type(error).__name__, error, flush=True)
else:
    print("still held", flush=True)
held.release()
"""


@pytest.fixture
def holder(aws: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds a lease of 2 s, and says whether it still has it when asked.

    Here it lasts longer, until a test says otherwise, so that a slow machine does not end it.
    """
    monkeypatch.setattr(lease, "LASTS_S", 600.0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, URL],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def another() -> Lease:
    return Destination(URL).lease("a")


def test_a_lease_lasts_as_long_as_its_holder(holder: subprocess.Popen[str]) -> None:
    """While the holder lives nobody else gets the lease, waiting or not; released, the next one has it."""
    for wait in (False, True):
        with pytest.raises(TakenError, match=r"a process on .* writes there; wait until it has ended"):
            another().take(wait=wait)
    assert holder.communicate("\n")[0] == "still held\n"
    last = another()
    last.take()
    last.require()
    last.release()


def test_the_lease_of_a_killed_holder_goes_to_one_process(holder: subprocess.Popen[str], aws: Any) -> None:
    """SIGKILL: before its end it is refused; of several that wait for its end exactly one gets it."""
    holder.kill()
    holder.wait()
    with pytest.raises(TakenError):
        another().take()
    lease.LASTS_S = 2.0
    leases, outcomes = [another() for _ in range(4)], []

    def take(one: Lease) -> None:
        try:
            one.take(wait=True)
            outcomes.append("has it")
        except TakenError:
            outcomes.append("refused")

    threads = [threading.Thread(target=take, args=(one,)) for one in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["has it", "refused", "refused", "refused"]
    for one in leases:
        one.release()
    assert stored(aws) == {}


@pytest.mark.thorough
def test_a_holder_that_stood_still_finds_that_it_has_lost(holder: subprocess.Popen[str], aws: Any) -> None:
    """SIGSTOP for longer than the lease lasts: another takes it over, and the first, woken, may not write."""
    holder.send_signal(signal.SIGSTOP)
    lease.LASTS_S = 2.0
    second = another()
    second.take(wait=True)
    holder.send_signal(signal.SIGCONT)
    out, _ = holder.communicate("\n")
    assert out.startswith("LostError --out s3://lab/runs/may/a: another process has taken this over")
    second.require()
    second.release()
    assert stored(aws) == {}
    assert issubclass(LostError, OSError)


# --- While a run goes on ------------------------------------------------------------------------------------


def test_a_growing_file_is_sent_once(aws: Any, tmp_path: Path) -> None:
    """The object is always what the file is, up to its last whole line, and only new bytes are sent,
    unless some were taken back.
    """
    file, sent = tmp_path / "updates.jsonl", []
    growing = GrowingObject(aws, "lab", "it")
    lengths = (
        "before-send.s3",
        lambda request, **_: sent.append(int(request.headers.get("Content-Length", 0))),
    )
    aws.meta.events.register(*lengths)
    line = os.urandom(6 << 20).replace(b"\n", b" ") + b"\n"
    for content, whole_lines, most in (
        (b"", True, 1 << 10),
        (line[:-3], True, 1 << 10),
        (line, True, len(line) + (1 << 10)),
        (line, True, 0),
        (line + b"more\nand", True, 1 << 10),
        (line + b"more\nand", False, 1 << 10),
        (line + b"less\nthan\n", True, len(line) + (1 << 10)),
        (line[:9], False, 1 << 10),
        (3 * line, True, 3 * len(line) + (1 << 10)),
    ):
        file.write_bytes(content)
        sent.clear()
        growing.send(file, whole_lines=whole_lines)
        there = content[: content.rfind(b"\n") + 1] if whole_lines else content
        assert aws.get_object(Bucket="lab", Key="it")["Body"].read() == there
        assert sum(sent) <= most
    aws.delete_object(Bucket="lab", Key="it")


def test_an_upload_that_fails_is_said_once_and_repeated(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S3 fails for a while: one line, and the upload is repeated until it succeeds."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    updates = "/lab/runs/may/a/updates.jsonl"
    stand_in.answer = lambda key, times: 503 if key == updates and times < 4 else 200
    upload = Upload(config("asgd", engine="sim", out=URL, run_name="a", upload_every=0.01))
    record = upload.cfg.output.folder / "a"
    record.mkdir(parents=True)
    (record / "updates.jsonl").write_text("{}\n")
    (record / "meta.json").write_text("{}")
    wait_for(lambda: stand_in.asked.count(updates) == 4)
    assert upload.finish() == f"{URL}/a"
    (line,) = capsys.readouterr().err.splitlines()
    assert "S3 fails" in line
    assert line.endswith("the run goes on, and the upload is repeated")
    assert stand_in.asked.count(updates) == 4


CRAWLS = """
import os, time
from dsgd.strategies.train_ssgd import Config, train as ssgd

def train(cluster, w, cfg):
    for update in ssgd(cluster, w, cfg):
        if update.weights.version > int(os.environ.get("CRAWLS_AFTER", "1000")):
            time.sleep(.1)
        yield update
"""


@pytest.mark.thorough
def test_the_same_command_in_another_pod_goes_on(
    aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One driver is evicted before its first checkpoint is due, the next one killed, and each disk is gone:
    the command begins a run, goes on with it, first from its very end, and then has nothing to do. The record
    is that of a run left alone.
    """
    monkeypatch.setattr(lease, "LASTS_S", 2.0)
    (tmp_path / "train_crawls.py").write_text(CRAWLS)
    options = f"--mode {tmp_path}/train_crawls.py --workload quadratic --steps 300 --checkpoint-every"
    command = f"{SIM} {options}".split()
    to_s3 = f"--out {URL} --run-name a --resume auto --upload-every .02 --quiet".split()

    def checkpoints() -> list[str]:
        return [key for key in keys(aws) if "/checkpoints/" in key]

    def cut(pod: str, every: str, how: signal.Signals, there: Callable[[], object]) -> dict[str, bytes]:
        monkeypatch.setenv("CRAWLS_AFTER", "30" if pod == "one" else "150")  # so it does not reach the end
        driver = start(tmp_path / pod, *command, every, *to_s3)
        wait_for(lambda: bool(there()))
        os.killpg(driver.pid, how)
        assert driver.communicate(timeout=PATIENCE_S)[1] == ""
        assert driver.returncode == (130 if how is signal.SIGTERM else -how)
        return stored(aws)

    first = cut("one", "1e9", signal.SIGTERM, lambda: stored(aws).get("runs/may/a/updates.jsonl"))
    (last_words,) = checkpoints()
    second = cut("two", "50", signal.SIGKILL, lambda: set(checkpoints()) - {last_words})
    for name in ("updates.jsonl", "evals.jsonl"):
        assert second[f"runs/may/a/{name}"].endswith(b"\n")
    monkeypatch.delenv("CRAWLS_AFTER")
    assert main([*command, "50", *to_s3]) == 0
    ended = stored(aws)
    updates = json.loads(first["runs/may/a/summary.json"])["updates"]
    attempts = json.loads(ended["runs/may/a/meta.json"])["attempts"]
    assert attempts[0]["from_version"] == updates < attempts[1]["from_version"] < 300
    assert main([*command, "50", "--out", "alone", "--run-name", "a", "--quiet"]) == 0
    for name in ("weights.npy", "updates.jsonl", "evals.jsonl"):
        assert ended[f"runs/may/a/{name}"] == Path("alone/a", name).read_bytes()
    os.rename("runs", "lost")
    assert main([*command, "50", *to_s3[:-1], "--no-quiet"]) == 0
    assert "finished before: budget; nothing is left to do" in capsys.readouterr().out
    assert stored(aws) == ended


# --- A run that goes on on another machine ------------------------------------------------------------------

DRIVER = """
import os, signal, sys
from dsgd.records.stores.store import name_of
from dsgd.running.quick_run import config
from dsgd.records.upload import Upload
from dsgd.core.option_rules import options
from dsgd.records.writer import config_text

cfg = config("asgd", engine="sim", out=sys.argv[1], run_name="a", steps=9)
upload = Upload(cfg, resume=sys.argv[2] == "resume")
record = cfg.output.folder / "a"
record.mkdir(parents=True, exist_ok=True)
(record / "config.yaml").write_text(config_text(options(cfg)))
(record / "meta.json").write_text("{}")
for version in map(int, sys.argv[3:]):
    with (record / "updates.jsonl").open("a") as file:
        file.write('{"version": %d}\\n' % version)
    parts = [b"checkpoint %d" % version]
    upload.checkpoints.write(name_of(version, parts), parts)
    (record / "checkpoints").mkdir(exist_ok=True)
    (record / "checkpoints" / name_of(version, parts)).write_bytes(parts[0])
print("reached", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def drive(*arguments: str) -> None:
    """Act as the driver of a run: write checkpoints of some versions, then be killed."""
    done = run_python("-c", DRIVER, URL, *arguments, cwd=Path())
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "reached\n"), done.stderr


def test_a_killed_run_is_found_on_an_empty_disk(aws: Any) -> None:
    """After SIGKILL the bucket has the record as far as its newest checkpoint; both are brought."""
    assert restore_record(f"{URL}/a", Path("new/a")) is None
    drive("begin", "3", "6")
    os.rename("runs", "lost")
    into = Path("new/a")
    newest = name_of(6, [b"checkpoint 6"])
    assert restore_record(f"{URL}/a", into) == (newest, True, [])
    assert {path.name for path in into.iterdir()} == {
        "config.yaml", "meta.json", "updates.jsonl", "checkpoints"
    }  # fmt: skip
    assert (into / "updates.jsonl").read_text().count("\n") == 2
    assert newest_whole(DiskStore(into / "checkpoints"))[:2] == (newest, b"checkpoint 6")
    assert [path.name for path in Path("new").iterdir()] == ["a"]


def test_of_two_records_the_one_that_is_further_is_taken(aws: Any) -> None:
    """A folder that is as far as the bucket stays as it is; one that is behind, or is none, is replaced."""
    drive("begin", "3", "6")
    record = Path("runs/s3/lab/runs/may/a")
    (record / "mine").write_text("")
    assert restore_record(f"{URL}/a", record) == (name_of(6, [b"checkpoint 6"]), False, [])
    assert (record / "mine").exists()
    for path in record.glob("checkpoints/00000006*"):
        path.unlink()
    assert restore_record(f"{URL}/a", record) == (name_of(6, [b"checkpoint 6"]), True, [])
    assert not (record / "mine").exists()


def test_a_damaged_checkpoint_in_the_bucket_is_skipped(aws: Any) -> None:
    """The newest whole one is brought, with the reason for the other; without any, the record alone."""
    drive("begin", "3", "6")
    names = [name_of(v, [b"checkpoint %d" % v]) for v in (3, 6)]
    aws.put_object(Bucket="lab", Key=f"runs/may/a/checkpoints/{names[1]}", Body=b"checkpoint")
    found = restore_record(f"{URL}/a", Path("new"))
    assert found
    assert (found.checkpoint, [name for name, _ in found.skipped]) == (names[0], [names[1]])
    aws.put_object(Bucket="lab", Key=f"runs/may/a/checkpoints/{names[0]}", Body=b"")
    found = restore_record(f"{URL}/a", Path("newer"))
    assert found
    assert found.checkpoint is None
    assert Path("newer/updates.jsonl").exists()


def test_the_same_run_goes_on_under_its_name(
    aws: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that is taken is refused to a new run, given to the one that resumes it, and keeps no lease."""
    monkeypatch.setattr(lease, "LASTS_S", 1.0)
    drive("begin", "3")
    os.rename("runs", "lost")
    assert run("--workload none --steps 3 --quiet") == 2
    assert "is taken" in capsys.readouterr().err
    cfg = config("asgd", engine="sim", out=URL, run_name="a", steps=9)
    upload = Upload(cfg, resume=True)
    record = cfg.output.folder / "a"
    assert restore_record(f"{URL}/a", record)
    (record / "updates.jsonl").write_text("more\nand")
    parts = [b"checkpoint 5"]
    upload.checkpoints.write(name_of(5, parts), parts)
    assert stored(aws)["runs/may/a/updates.jsonl"] == b"more\n"
    assert upload.finish() == f"{URL}/a"
    assert {name.removeprefix("runs/may/a/") for name in stored(aws)} == {
        "config.yaml", "meta.json", "updates.jsonl",
        *(f"checkpoints/{name_of(v, [b'checkpoint %d' % v])}" for v in (3, 5)),
    }  # fmt: skip


# --- Experiments --------------------------------------------------------------------------------------------

EXPERIMENT = """
title: Slack
question: How much slack?
base: {engine: sim, workload: none, num_workers: 2, steps: 3, mode: ssp}
grid: {slack: [0, 2]}
seeds: 1
"""


def experiment(url: str = URL) -> int:
    Path("slack.yaml").write_text(EXPERIMENT)
    return main(["compare", "slack.yaml", "--out", url, "--processes", "1"])


@pytest.mark.thorough
def test_an_experiment_is_uploaded_and_a_broken_upload_completed(
    stand_in: StandIn,
    aws: Any,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S3 fails: it is said at once and at the end, exit 1, and all is here. Repeated, the command uploads
    what is missing, and nothing else.
    """
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    stand_in.answer = lambda key, times: 200 if key.endswith("/lease") else 503
    assert experiment() == 1
    err = capsys.readouterr().err
    first, last = err.splitlines()
    assert "S3 fails" in first
    assert first.endswith("the experiment goes on, and the upload is repeated")
    assert last.endswith("the same command uploads what is missing")
    records = [key for key in stand_in.asked if key.endswith("/config.yaml")]
    assert records[-2:] == records[:2]

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


@pytest.mark.thorough
def test_another_machine_runs_only_what_is_missing(
    aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL of an experiment: on an empty disk the same command fetches what is finished, runs the others,
    and the folder and the bucket are whole.
    """
    monkeypatch.setattr(lease, "LASTS_S", 2.0)
    text = EXPERIMENT.replace("steps: 3", "steps: 1500").replace("seeds: 1", "seeds: 3")
    (tmp_path / "slack.yaml").write_text(text)
    command = ["compare", str(tmp_path / "slack.yaml"), "--out", URL, "--processes", "1"]
    one = start(tmp_path / "one", *command)
    wait_for(lambda: sum("summary.json" in key for key in keys(aws)) >= 2)
    os.killpg(one.pid, signal.SIGKILL)
    one.communicate()
    before = stored(aws)
    finished = {key.removesuffix("summary.json") for key in before if key.endswith("/summary.json")}
    assert 2 <= len(finished) < 6
    assert "runs/may/slack/lease" in before
    assert main(command) == 0
    assert f"upload  {URL}/slack" in capsys.readouterr().out
    after = stored(aws)
    assert after == local("slack")
    assert sum(key.endswith("/summary.json") for key in after) == 6
    kept = {key: content for key, content in before.items() if key.startswith(tuple(finished))}
    assert kept.items() <= after.items()


def test_another_machine_goes_on_with_a_run_that_was_cut_off(
    aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL of an experiment whose run has a checkpoint in S3: on an empty disk the run goes on from there,
    to the same weights as if it had never been killed.
    """
    monkeypatch.setattr(lease, "LASTS_S", 2.0)
    text = EXPERIMENT.replace("steps: 3", "steps: 20000, checkpoint_every: '500'").replace("[0, 2]", "[2]")
    (tmp_path / "slack.yaml").write_text(text)
    command = ["compare", str(tmp_path / "slack.yaml"), "--processes", "1", "--out"]
    one = start(tmp_path / "one", *command, URL)
    wait_for(lambda: bool(list((tmp_path / "one").rglob("checkpoints/*.safetensors"))))
    simulating = psutil.Process(one.pid).children(recursive=True)
    for process in simulating:
        process.suspend()  # else the run may end before its first checkpoint is in the bucket
    wait_for(lambda: any("/checkpoints/" in key for key in keys(aws)))
    os.killpg(one.pid, signal.SIGKILL)
    for process in simulating:
        process.kill()
    one.communicate()
    assert not any(key.endswith("summary.json") for key in stored(aws))
    assert main([*command, URL]) == 0
    assert "1 unfinished runs go on from their checkpoints" in capsys.readouterr().out
    there = stored(aws)
    assert not any("/checkpoints/" in key for key in there)
    record = "runs/may/slack/slack=2-s0"
    [attempt] = json.loads(there[f"{record}/meta.json"])["attempts"]
    assert attempt["from_version"] >= 500
    assert main([*command, "uncut"]) == 0
    uncut = Path("uncut/slack/slack=2-s0")
    for file in ("weights.npy", "updates.jsonl", "evals.jsonl"):
        assert there[f"{record}/{file}"] == (uncut / file).read_bytes()


@pytest.mark.thorough
def test_an_experiment_that_runs_elsewhere_is_left_alone(
    aws: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two machines at once: the second gets exit code 2 and one line, and nothing is written."""
    monkeypatch.setattr(lease, "LASTS_S", 4.0)
    first = Destination(URL).lease("slack")
    first.take()
    assert experiment() == 2
    err = capsys.readouterr().err
    assert f"--out {URL}/slack: a process on" in err
    assert len(err.splitlines()) == 1
    assert not Path("runs").exists()
    first.release()
    assert experiment() == 0


def test_a_record_is_added_once_and_never_over_another(aws: Any) -> None:
    """A finished record that is there already is left alone; another record of that name is refused."""
    for name in ("a", "b"):
        assert run("--workload none --steps 3 --quiet", name, url="runs") == 0
    Destination(URL).add(Path("runs/a"), "x")
    aws.put_object(Bucket="lab", Key="runs/may/x/weights.npy", Body=b"left alone")
    Destination(URL).add(Path("runs/a"), "x")
    assert stored(aws)["runs/may/x/weights.npy"] == b"left alone"
    with pytest.raises(TakenError, match="x is taken"):
        Destination(URL).add(Path("runs/b"), "x")
    aws.delete_object(Bucket="lab", Key="runs/may/x/summary.json")
    Destination(URL).add(Path("runs/a"), "x")
    assert stored(aws) == {f"runs/may/x/{p.name}": p.read_bytes() for p in Path("runs/a").iterdir()}


@pytest.mark.thorough
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
