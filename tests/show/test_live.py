"""The HTTP server and the live page: they hold, they show the truth, and they cannot slow a run down."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from conftest import PATIENCE_S, ROOT, CommandLine, needs, python, run_python, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from test_metrics import Scrape, free_port, scrape, watched

from dsgd.show.live import page, server
from dsgd.show.live.curve import MOST_POINTS, Curve
from dsgd.show.live.followed_folder import FollowedFolder
from dsgd.show.live.followed_run import MOST_WORKERS, FollowedRun
from dsgd.show.live.server import LIMITS, ClientLimits, Response, Routes
from dsgd.show.report.colours import on_dark

SIM = "--engine sim --compute-time exponential:1"
HERE = "Host: localhost\r\n"
in_a_browser = needs("chromium")


# ---- the server


@contextmanager
def serving(routes: Routes, host: str = "127.0.0.1", limits: ClientLimits = LIMITS) -> Iterator[int]:
    listener = server.listen("--port", host, 0)
    with server.serving(listener, routes, limits):
        yield int(listener.getsockname()[1])


def hello() -> Response:
    return Response("text/plain", b"hello")


def ask(port: int, request: bytes) -> bytes:
    """Return all that is answered to the bytes of a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(request)
        answer = b""
        while piece := client.recv(1 << 16):
            answer += piece
    return answer


def get(port: int, path: str = "/") -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
        body: bytes = answer.read()
    return body


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "get"])
def test_only_get_is_answered(method: str) -> None:
    """Every other method gets 405 with a message, also with a body."""
    with serving({"/": hello}) as port:
        body = b"x" * 100_000
        head = f"{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        answer = ask(port, head + body)
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"\r\nAllow: GET\r\n" in answer
        assert get(port) == b"hello"


@pytest.mark.parametrize(
    "target",
    [
        "/etc/passwd", "//etc/passwd", "/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/main.py",
        "/live/page.html", "/./", "/metrics/../etc/passwd", "file:///etc/passwd", "http://me/etc/passwd",
        "*", "", "/\x00", "/" + "a" * 7000,
    ],
)  # fmt: skip
def test_no_path_reaches_a_file(target: str) -> None:
    """A path that is not in the table is 404, however it is spelled."""
    with serving({"/": hello, "/metrics": hello}) as port:
        answer = ask(port, f"GET {target} HTTP/1.1\r\n{HERE}\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"root:" not in answer


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=200))
def test_what_is_not_http_is_refused(request: bytes) -> None:
    """Any bytes get 400 or a closed connection, and the server goes on."""
    with serving({"/": hello}) as port:
        answer = ask(port, request.replace(b" HTTP/1.", b"") + b"\r\n\r\n")
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
        assert get(port) == b"hello"


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["127.0.0.1"], 200),
        (["127.0.0.1:8000"], 200),
        (["LOCALHOST:1"], 200),
        (["[::1]:8000"], 200),
        (["evil.example"], 421),
        (["evil.example:8000"], 421),
        (["localhost.evil.example"], 421),
        (["127.0.0.1:8000.evil.example"], 421),
        (["evil.example", "localhost"], 421),
        (["::1"], 421),
        ([""], 421),
        ([], 421),
    ],
)
def test_this_machine_is_answered_by_its_own_names_only(hosts: list[str], status: int) -> None:
    """A page of another name that resolves to this machine (DNS rebinding) gets 421 at a loopback address."""
    request = "".join(["GET / HTTP/1.1\r\n", *(f"hOst:{host} \r\n" for host in hosts), "\r\n"]).encode()
    with serving({"/": hello}) as port:
        answer = ask(port, request)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert (b"hello" in answer) == (status == 200)
    with serving({"/": hello}, "0.0.0.0") as port:  # other machines have names for this one
        assert ask(port, request).startswith(b"HTTP/1.1 200 ")


def test_a_request_without_end_is_cut_off() -> None:
    """A head of more than eight kilobytes closes the connection, so memory is bounded."""
    with (
        serving({"/": hello}) as port,
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client,
    ):
        cut = False
        with suppress(OSError):  # reset or broken pipe, whichever comes first
            client.sendall(b"GET / HTTP/1.1\r\n")
            cut = True
            for _ in range(100_000):
                client.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")
            cut = False
        assert cut


def test_who_does_not_finish_asking_is_dropped() -> None:
    """A request that is not complete in time is closed unanswered."""
    with serving({"/": hello}, limits=ClientLimits(request_s=0.2)) as port:
        assert ask(port, b"GET / HTTP/1.1\r\n") == b""


def test_it_closes_however_many_have_asked() -> None:
    """Pages are made one by one, and those that are still to be made when it closes are not."""
    made = 0
    connected, second, ends = (threading.Event() for _ in range(3))

    def slow() -> Response:
        nonlocal made
        made += 1
        if made == 1:
            assert connected.wait(PATIENCE_S)
        elif made == 2:  # all the others have asked by now
            second.set()
            assert ends.wait(PATIENCE_S)
        time.sleep(0.02)
        return hello()

    with ExitStack() as clients, serving({"/": slow}) as port:
        for _ in range(100):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            client.sendall(f"GET / HTTP/1.1\r\n{HERE}\r\n".encode())
        connected.set()
        assert second.wait(PATIENCE_S)
        ends.set()
    assert made < 50


def test_who_does_not_read_is_dropped() -> None:
    """A client that takes nothing of an endless answer is dropped, and keeps no other client waiting."""
    dropped = threading.Event()

    async def endless() -> Any:
        try:
            while True:
                yield b"x" * (1 << 20)
        finally:
            dropped.set()

    routes = {"/": hello, "/endless": lambda: Response("text/plain", endless())}
    with (
        serving(routes, limits=ClientLimits(send_s=0.5)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client,
    ):
        client.sendall(f"GET /endless HTTP/1.1\r\n{HERE}\r\n".encode())
        assert get(port) == b"hello"
        assert dropped.wait(PATIENCE_S)


def test_a_large_answer_arrives_whole() -> None:
    """An answer of many pieces arrives unchanged."""
    large = os.urandom(3_000_001)
    with serving({"/": lambda: Response("application/octet-stream", large)}) as port:
        assert get(port) == large


def test_streams_are_limited_and_the_rest_is_answered() -> None:
    """More listeners than the limit get 503; a plain request is answered all the same."""

    async def forever() -> Any:
        import asyncio

        while True:
            yield b"x"
            await asyncio.sleep(0.05)

    routes = {"/": hello, "/stream": lambda: Response("text/plain", forever())}
    with serving(routes, limits=ClientLimits(streams=3)) as port, ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            client.sendall(f"GET /stream HTTP/1.1\r\n{HERE}\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(port, "/stream")
        assert get(port) == b"hello"


SLOW_CLIENTS = """
import socket, sys

def connect():
    return socket.create_connection(("127.0.0.1", int(sys.argv[1])))

clients = [connect() for _ in range(200)]
for byte in b"GET /metrics HTTP/1.1\\r\\nX-Slow: " + b"x" * 20:
    for i, client in enumerate(clients):
        try:
            client.send(bytes([byte]))
        except OSError:  # dropped: it comes again
            client.close()
            clients[i] = connect()
    print("sent", flush=True)
    sys.stdin.readline()
"""


def test_200_slow_clients_keep_nobody_from_the_metrics(cli: CommandLine) -> None:
    """While 200 sockets send a byte at a time, a run trains on and is scraped, in bounded memory."""
    scrapes: list[Scrape] = []

    def look(url: str, record: Path) -> None:
        wait_for((record / "meta.json").exists)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # A separate process: in this one they would share the interpreter with the run.
        command = [sys.executable, "-c", SLOW_CLIENTS, str(urlsplit(url).port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            assert clients.stdin
            assert clients.stdout
            for _ in clients.stdout:
                scrapes.append(scrape(url))
                until_s = time.monotonic() + PATIENCE_S
                while len(scrapes) > 1 and scrapes[-1]("dsgd_updates_total") == scrapes[-2](
                    "dsgd_updates_total"
                ):
                    assert time.monotonic() < until_s, "the run stands still while clients are slow"
                    scrapes[-1] = scrape(url)
                clients.stdin.write("\n")
                clients.stdin.flush()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 200_000

    ran = watched(cli, f"{SIM} --mode asgd --steps 10000000 --workload none --record none", look)
    updates = [got("dsgd_updates_total") for got in scrapes]
    assert len(updates) == 51
    assert updates == sorted(set(updates))  # it went on between any two of them
    assert ran.summary["stopped_by"] == "interrupted"  # by the end of this test, not by its clients


# ---- following records


def copy_in_pieces(record: Path, to: Path, cuts: list[int], after_each: Callable[[], object]) -> None:
    """Write a record's files again as a run would, cut anywhere."""
    to.mkdir()
    for name in ("config.yaml", "meta.json"):
        (to / name).write_bytes((record / name).read_bytes())
    after_each()
    for name in ("updates.jsonl", "evals.jsonl", "faults.jsonl"):
        content = (record / name).read_bytes()
        places = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
        for begin, end in itertools.pairwise(places):
            with (to / name).open("ab") as file:
                file.write(content[begin:end])
            after_each()
    (to / "summary.json").write_bytes((record / "summary.json").read_bytes())
    after_each()


def read_all(run: FollowedRun) -> FollowedRun:
    while run.read():
        pass
    return run


@pytest.fixture(scope="module")
def asgd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a record, with a straggler and several evaluations."""
    from main import main

    out = tmp_path_factory.mktemp("runs")
    text = f"{SIM} --mode asgd --steps 60 --slowdown 0=5 --eval-every 7 --run-name asgd --quiet"
    assert main([*text.split(), "--out", str(out)]) == 0
    return out / "asgd"


def test_the_page_shows_what_the_summary_says(asgd: Path) -> None:
    """Of a finished run: counts, losses, mean staleness of each worker and idle shares are the record's."""
    view, summary = read_all(FollowedRun(asgd)).view(), json.loads((asgd / "summary.json").read_text())
    assert view["state"] == "budget"
    for name in ("updates", "gradients", "mode", "engine", "num_workers"):
        assert view[name] == summary[name]
    assert view["eval_loss"] == pytest.approx(summary["eval"]["loss"], rel=1e-5)
    assert view["train_loss"] == pytest.approx(summary["loss"]["last"], rel=1e-5)
    assert view["staleness"] == pytest.approx(summary["staleness"]["mean"], rel=1e-5)
    assert view["t_s"] == pytest.approx(summary["clock_s"], rel=1e-5)
    assert view["gradients_per_s"] == pytest.approx(summary["gradients"] / summary["clock_s"], rel=1e-5)
    counts = summary["staleness"]["counts"]
    shown = dict(
        zip(view["bins"], map(sum, zip(*(w["staleness"] for w in view["workers"]), strict=True)), strict=True)
    )
    assert shown["0"] == counts.get("0", 0)
    assert shown["3–4"] == counts.get("3", 0) + counts.get("4", 0)
    assert sum(shown.values()) == sum(counts.values())
    for worker, totals in summary["workers"].items():
        entry = view["workers"][int(worker)]
        assert entry["mean"] == pytest.approx(summary["staleness"]["by_worker"][worker], rel=1e-5)
        assert entry["idle"] == pytest.approx(totals["idle_s"] / summary["clock_s"], abs=1e-5)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(min_value=0, max_value=10**6), max_size=30))
def test_wherever_a_file_is_torn_the_page_shows_the_same(asgd: Path, cuts: list[int]) -> None:
    """Reading while lines are half written ends with what reading at the end gives, and never fails."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run = FollowedRun(Path(folder) / "asgd")
        copy_in_pieces(asgd, run.path, cuts, lambda: read_all(run))
        seen, whole = run.view(), read_all(FollowedRun(asgd)).view()
    for name in ("wrote_s", "took_s"):  # of the files' times
        seen.pop(name)
        whole.pop(name)
    assert seen == whole


def test_a_running_run_is_shown_before_it_has_a_summary(asgd: Path, tmp_path: Path) -> None:
    """Nothing is shown before the workers are ready; then the state is `running` until the summary comes."""
    run, states = FollowedRun(tmp_path / "asgd"), []
    assert run.read() is False
    assert run.revision == 0
    copy_in_pieces(asgd, run.path, [5000], lambda: states.append((read_all(run), run.view()["state"])[1]))
    assert states == ["running"] * (len(states) - 1) + ["budget"]


@pytest.mark.parametrize("record", ["none", "every:3"])
def test_what_is_not_recorded_is_not_made_up(record: str, cli: CommandLine) -> None:
    """With fewer updates recorded the progress still comes from the evaluations, and the ends agree."""
    ran = cli(f"{SIM} --mode asgd --steps 60 --record {record}")
    (ran.record / "summary.json").unlink()  # as while it runs
    view = read_all(FollowedRun(ran.record)).view()
    assert view["record"] == record
    assert view["gradients"] == pytest.approx(240, rel=0.02)
    assert view["eval"]["gradients"][-1] == 240
    assert (view["staleness"] is None) == (record == "none")
    assert (view["train"]["value"] == []) == (record == "none")


def test_what_is_kept_of_a_long_run_is_bounded(cli: CommandLine) -> None:
    """Many updates of many workers give a curve of at most 256 points and a message of at most 200 kB."""
    ran = cli(f"{SIM} --mode asgd --num-workers 100 --steps 300 --workload none --quiet")
    run = read_all(FollowedRun(ran.record))
    view = run.view()
    assert view["updates"] == 30_000
    assert MOST_POINTS / 2 <= len(view["train"]["t_s"]) <= MOST_POINTS
    assert len(view["workers"]) == len(view["timeline"]["tasks"]) == MOST_WORKERS
    assert len(json.dumps(view)) < 200_000


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 511, 512, 513, 769, 1000, 5003])
def test_a_thinned_curve_keeps_its_end_and_its_mean(n: int) -> None:
    """However many points come: the last t and count stand, and the weighted mean is that of all values."""
    curve, values = Curve(), np.random.default_rng(n).random(n)
    for i, value in enumerate(values, 1):
        curve.add(0.5 * i, i, float(value))
    assert len(curve.points) <= MOST_POINTS
    assert curve.points[-1][:2] == (0.5 * len(values), len(values))
    ends = [0, *(gradients for _, gradients, _ in curve.points)]
    total = sum(
        (b - a) * p[2] for a, b, p in zip(ends, ends[1:], curve.points, strict=False) if p[2] is not None
    )
    assert total == pytest.approx(sum(values), abs=1e-6)


def test_a_folder_shows_its_records_and_skips_the_rest(asgd: Path, tmp_path: Path) -> None:
    """Records come and go; what is no record, or another version's, is left out silently."""
    folder = FollowedFolder(tmp_path / "runs", most_runs=2)
    assert list(folder.read()) == []
    (tmp_path / "runs" / "figures").mkdir(parents=True)
    (tmp_path / "runs" / "old").mkdir()
    (tmp_path / "runs" / "old" / "config.yaml").write_text("mode: ssgd")
    (tmp_path / "runs" / "old" / "meta.json").write_text("{}")
    os.utime(tmp_path / "runs" / "old" / "config.yaml", (1, 1))
    copy_in_pieces(asgd, tmp_path / "runs" / "one", [], lambda: None)
    while any(folder.read()):
        pass
    assert [run.path.name for run in folder.runs.values()] == ["one"]
    for path in (tmp_path / "runs" / "one").iterdir():
        path.unlink()
    while any(folder.read()):
        pass
    assert folder.runs == {}


def test_a_run_that_cannot_be_read_hides_no_other(asgd: Path, tmp_path: Path) -> None:
    """Whatever is wrong with one record, or with experiment.yaml, the others are shown."""
    one = tmp_path / "one"
    copy_in_pieces(asgd, one, [], lambda: None)

    def broken(name: str, file: str) -> Path:
        shutil.copytree(one, tmp_path / name)
        (tmp_path / name / file).unlink()
        return tmp_path / name / file

    config = (one / "config.yaml").read_text()
    (tmp_path / "experiment.yaml").write_text("variants: [")
    broken("malformed", "config.yaml").write_text("mode: [")
    broken("foreign", "config.yaml").write_text("text")
    broken("a number", "config.yaml").write_text(re.sub("record: .*", "record: 3", config))
    broken("fewer workers", "config.yaml").write_text(re.sub("num_workers: .*", "num_workers: 1", config))
    broken("a folder", "updates.jsonl").mkdir()  # as unreadable as a file without permission
    (tmp_path / "loop").symlink_to("loop")
    folder = FollowedFolder(tmp_path)
    while any(folder.read()):
        pass
    assert [run.path.name for run in folder.runs.values()] == ["one"]
    assert (folder.title, folder.planned) == (tmp_path.name, 0)
    assert (folder.unreadable, folder.older) == (5, 0)
    (tmp_path / "foreign" / "config.yaml").unlink()
    while any(folder.read()):
        pass
    assert folder.unreadable == 4
    narrow = FollowedFolder(tmp_path, most_runs=2)
    while any(narrow.read()):
        pass
    assert (len(narrow.runs) + narrow.unreadable, narrow.older) == (2, 3)


@pytest.mark.parametrize("longer", [False, True])
def test_a_run_that_goes_back_is_followed_again(asgd: Path, tmp_path: Path, longer: bool) -> None:
    """A rollback cuts the files, which may be longer by the next look: the page then shows what is there."""
    run = tmp_path / "asgd"
    copy_in_pieces(asgd, run, [], lambda: None)
    (run / "summary.json").rename(tmp_path / "summary.json")
    folder = FollowedFolder(run)
    while any(folder.read()):
        pass
    (before,) = folder.runs.values()
    revision = before.revision
    for name in ("updates.jsonl", "evals.jsonl"):
        first, *rest = (run / name).read_text().splitlines(keepends=True)
        half = rest[: len(rest) // 2]
        (run / name).write_text("".join([first, *half]))
        if longer:
            anew = [line.replace('"loss":0', '"loss":10') for line in rest[len(half) :]]
            (run / name).write_text("".join([first, *half, *anew]))
    while any(folder.read()):
        pass
    (after,) = folder.runs.values()
    assert after.revision > revision
    seen, fresh = after.view(), read_all(FollowedRun(run)).view()
    assert seen == fresh
    assert seen["train"] != before.view()["train"]


# ---- the page's process


def events(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the page's events, until the end."""
    with urllib.request.urlopen(f"{url}/events", timeout=PATIENCE_S) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        name = ""
        for raw in stream:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def answers(port: int | None) -> bool:
    """Return whether somebody listens at a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_the_page_tells_the_last_word_and_ends_with_the_run(cli: CommandLine) -> None:
    """A listener gets the finished run, then `end`; the process is gone when the run's is done."""
    port = free_port()
    told: list[tuple[str, dict[str, Any]]] = []

    def listen() -> None:
        wait_for(lambda: answers(port))
        told.extend(events(f"http://127.0.0.1:{port}"))

    thread = threading.Thread(target=listen)
    thread.start()
    ran = cli(f"{SIM} --mode asgd --steps 1500 --dashboard {port}")
    thread.join()
    assert ran.code == 0
    assert f"http://127.0.0.1:{port}" in ran.out
    assert [name for name, _ in told[:2]] == ["clock", "page"]
    assert told[-1][0] == "end"
    last = [data for name, data in told if name == "run"][-1]
    assert last["state"] == "budget"
    assert last["updates"] == ran.summary["updates"]
    assert not answers(port)


def test_a_browser_that_does_not_read_slows_nothing(cli: CommandLine) -> None:
    """A listener that reads nothing changes neither the run nor its end."""
    port = free_port()
    with ExitStack() as stack:

        def listen() -> None:
            wait_for(lambda: answers(port))
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            client.sendall(f"GET /events HTTP/1.1\r\n{HERE}\r\n".encode())

        thread = threading.Thread(target=listen)
        thread.start()
        ran = cli(f"{SIM} --mode asgd --steps 1500 --dashboard {port}")
        thread.join()
    assert ran.code == 0
    assert ran.err == ""
    assert ran.summary["gradients"] == 6000


def test_a_killed_driver_leaves_no_page_behind(tmp_path: Path) -> None:
    """After SIGKILL of the run the page's process ends by itself."""
    options = "--engine sim --mode asgd --steps 100000000 --workload none --record none --dashboard 0"
    driver = python("main.py", *options.split(), "--out", str(tmp_path))
    with driver:
        try:
            assert driver.stdout
            url = re.search(r"http://\S+", driver.stdout.readline())
            assert url
            port = urlsplit(url[0]).port
            next(events(url[0]))
        finally:
            driver.kill()
    wait_for(lambda: not answers(port), "the end of the page")


@pytest.mark.thorough
def test_a_folder_can_be_watched_from_elsewhere(asgd: Path, tmp_path: Path) -> None:
    """`main.py watch FOLDER` shows records that are there; a mistake is one line, exit 2."""
    with python("main.py", "watch", str(asgd.parent), "--port", "0") as process:
        assert process.stdout
        url = re.search(r"http://\S+", process.stdout.readline())
        assert url
        found = {}
        for name, data in events(url[0]):
            found[name] = data
            if name == "run":
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    assert found["run"]["name"] == "asgd"
    assert found["page"]["shades"]["asgd"][0][0] == "#D55E00"
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        for arguments, said in (
            ([str(tmp_path / "nowhere")], "nowhere"),
            ([str(tmp_path), "--port", port], f"--port {port}"),
        ):
            done = run_python("main.py", "watch", *arguments)
            assert done.returncode == 2
            assert said in done.stderr
            assert len(done.stderr.splitlines()) == 1


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """No address in page.html leads anywhere but to itself, and its policy forbids it too."""
    html = (ROOT / "dsgd/show/live/page.html").read_text()
    assert re.findall(r"https?://[^\"'\s)]+", html) == ["http://www.w3.org/2000/svg"]
    assert "innerHTML" not in html
    assert "default-src 'none'" in page._HEADERS[0]


# ---- in a browser


class Visit:
    """A page in the browser, and what went wrong there."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def progress(self) -> float:
        return float(self.page.evaluate("document.querySelector('progress')?.value ?? 0"))

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression holds (the page's policy forbids playwright's own way)."""
        until_s = time.monotonic() + PATIENCE_S
        while not self.page.evaluate(condition):
            assert time.monotonic() < until_s, condition
            self.page.wait_for_timeout(50)

    def grows(self) -> None:
        """Wait until the page shows more than it does now."""
        self.until(f"document.querySelector('progress')?.value > {self.progress()}")


@contextmanager
def driver(tmp_path: Path, options: str) -> Iterator[tuple[Any, str]]:
    """Start a run that goes on until it is interrupted; yield its process and the page's address."""
    with python("main.py", *options.split(), "--dashboard", "0", "--out", str(tmp_path)) as process:
        try:
            assert process.stdout
            url = re.search(r"http://\S+", process.stdout.readline())
            assert url
            yield process, url[0]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE_S)


CURVES = "[...document.querySelectorAll('#loss path.curve:not(.faint)')]"
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
    "color_scheme": "dark",
}


@pytest.mark.thorough
@in_a_browser
def test_a_run_is_seen_as_it_goes_on(browser: Any, tmp_path: Path) -> None:
    """Desktop and phone show a run growing and then its end, without an error or a foreign request."""
    options = (
        f"{SIM} --mode asgd --num-workers 6 --slowdown 0=4 --steps 1000000 --workload digits --run-name seen"
    )
    with (
        driver(tmp_path, options) as (process, url),
        Visit(browser, url, viewport={"width": 1280, "height": 900}) as desktop,
        Visit(browser, url, **PHONE) as phone,
    ):
        for visit in (desktop, phone):
            visit.grows()
            visit.grows()
            shown = visit.page
            assert shown.inner_text("h1") == "seen"
            assert shown.inner_text("#status") == "1 running"
            assert shown.locator("#loss path.curve").count() == 2
            assert shown.locator(".timeline path.compute").get_attribute("d")
            assert shown.locator("table.workers tbody tr").count() == 6
            assert "seen" in (shown.locator("#loss svg").get_attribute("aria-label") or "")
            wide = shown.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide == 0  # nothing sticks out sideways
        phone.page.get_by_role("radio", name="mini-batches").check()
        phone.until("document.querySelector('#loss svg').textContent.includes('mini-batches')")
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        for visit in (desktop, phone):
            visit.until("document.querySelector('#runs td').textContent === 'interrupted'")
            assert visit.page.inner_text("#status") == "finished"
            assert visit.complaints == []
            assert {urlsplit(request).netloc for request in visit.requests} == {urlsplit(url).netloc}


@pytest.mark.thorough
@in_a_browser
def test_runs_are_seen_side_by_side(browser: Any, asgd: Path, cli: CommandLine) -> None:
    """Runs of a folder share the charts in the hues of the reports, and workers are shown on demand."""
    for mode in ("ssgd", "localsgd --local-steps 4"):
        cli(f"{SIM} --mode {mode} --steps 60 --run-name {mode.split()[0]}")
    cli(f"{SIM} --mode asgd --steps 60 --record none --run-name sparse")
    with (
        page.serve(cli.out, 0) as url,
        Visit(browser, url, viewport={"width": 1280, "height": 900}) as visit,
    ):
        shown = visit.page
        visit.until("document.querySelectorAll('#runs tbody tr').length === 3")
        colours = shown.evaluate(
            "[...document.querySelectorAll('#runs line')].map((l) => l.style.getPropertyValue('--colour'))"
        )
        assert colours == ["#D55E00", "#CC79A7", "#0072B2"]  # the newest first
        assert shown.locator(".card[open]").count() == 2  # the last two, unasked
        note = shown.locator(".card .note:visible")
        assert "--record none" in note.inner_text()
        shown.locator(".card summary b", has_text="ssgd").click()
        shown.locator(".card", has_text="ssgd on sim").locator("path.compute").wait_for()
        shown.get_by_label("draw ssgd").uncheck()
        visit.until("document.querySelectorAll('.card').length === 2")
        assert shown.inner_text("#status") == "3 finished"
        assert visit.complaints == []


@pytest.mark.thorough
@in_a_browser
def test_curves_have_one_clock(browser: Any, cli: CommandLine) -> None:
    """Runs of both engines are drawn against mini-batches, and the page says why; of one against time."""
    for name in ("real", "late/one", "late/two", "late/real"):
        cli(f"{SIM} --mode asgd --steps 20 --out {(cli.out / name).parent} --run-name {Path(name).name}")
    for config in cli.out.rglob("real/config.yaml"):
        config.write_text(config.read_text().replace("engine: sim", "engine: ray"))
        meta = config.with_name("meta.json")
        meta.write_text(re.sub(r'"options_sha256": "\w+"', '"options_sha256": null', meta.read_text()))
    with page.serve(cli.out, 0) as url, Visit(browser, url) as visit:
        visit.until("document.querySelectorAll('#runs tbody tr').length === 4")
        visit.until(f"{CURVES}.length === 4")
        clocks = visit.page.locator("#clocks")
        axis = "[...document.querySelectorAll('#loss svg text')].at(-1).textContent"
        assert clocks.inner_text().startswith("seconds are real on Ray and virtual in the simulator")
        assert visit.page.get_by_label("time", exact=True).is_disabled()
        assert visit.page.evaluate(axis) == "mini-batches"
        for engine, seconds in (("sim", "virtual seconds"), ("ray", "seconds")):
            visit.page.get_by_role("searchbox").fill(f"engine={engine}")
            visit.until(f"{axis} === '{seconds}'")
            assert visit.page.evaluate(f"{CURVES}.length") == 2
            assert clocks.inner_text() == ""
        assert visit.complaints == []


@pytest.mark.thorough
@in_a_browser
def test_runs_that_go_on_and_the_latest_are_drawn(browser: Any, asgd: Path, tmp_path: Path) -> None:
    """A run that goes on stays drawn, in its colour, when an experiment begins elsewhere; of the others the
    latest seven are, and those ticked, or all. The curves come first, and each run has a colour.
    """
    copy_in_pieces(asgd, tmp_path / "goes", [], lambda: None)
    (tmp_path / "goes/summary.json").unlink()
    looks = (
        "[c.dataset.run.split('/').at(-2), getComputedStyle(c).stroke + c.getAttribute('stroke-dasharray')]"
    )
    colours = f"Object.fromEntries({CURVES}.map((c) => {looks}))"
    with page.serve(tmp_path, 0) as url, Visit(browser, url, **PHONE) as visit:
        visit.until(f"{CURVES}.length === 1")
        first, own = visit.page.evaluate(colours), bytes.fromhex(on_dark("#D55E00")[1:])
        assert first == {"goes": f"rgb({', '.join(map(str, own))})"}
        (tmp_path / "later").mkdir()
        for number in range(9):
            copy_in_pieces(asgd, tmp_path / f"later/{number}", [], lambda: None)
            for file in (tmp_path / f"later/{number}").iterdir():
                os.utime(file, (time.time() - 100 + number,) * 2)
        visit.until("document.querySelectorAll('#runs tbody tr').length === 10")
        drawn = visit.page.evaluate(colours)
        assert drawn.keys() == {"goes", *map(str, range(2, 9))}
        assert drawn.items() >= first.items()
        assert len(set(drawn.values())) == 8
        loss, runs = (visit.page.locator(part).bounding_box() for part in ("#loss", "#runs"))
        assert loss
        assert runs
        assert loss["y"] + loss["height"] < min(runs["y"], PHONE["viewport"]["height"])
        visit.page.get_by_label("draw later/0").check()
        visit.page.get_by_label("draw goes").uncheck()
        visit.until("document.querySelector('#drawn').textContent === '8 of 10 drawn: tick more'")
        assert visit.page.evaluate(colours).keys() == {"0", *map(str, range(2, 9))}
        visit.page.get_by_role("button", name="Draw all 10").click()
        visit.until(f"{CURVES}.length === 10")
        assert len(set(visit.page.evaluate(colours).values())) == 10
        visit.page.get_by_role("button", name="Draw the latest 8").click()
        visit.until(f"{CURVES}.length === 8")
        assert visit.page.evaluate(colours).keys() == drawn.keys()
        assert visit.complaints == []


@in_a_browser
def test_a_run_without_news_is_not_counted_as_running(browser: Any, asgd: Path, tmp_path: Path) -> None:
    """A killed run and a record that cannot be read are counted as such, by a later visitor too."""
    for name in ("done", "killed", "damaged"):
        copy_in_pieces(asgd, tmp_path / name, [], lambda: None)
    (tmp_path / "killed" / "summary.json").unlink()
    for file in (tmp_path / "killed").iterdir():
        os.utime(file, (time.time() - 600,) * 2)
    (tmp_path / "damaged" / "config.yaml").write_text("mode: [")
    with page.serve(tmp_path, 0) as url:
        for _ in range(2):
            with Visit(browser, url) as visit:
                visit.until("document.querySelectorAll('#runs tbody tr').length === 2")
                visit.until("document.querySelector('#status').textContent === '1 without news, 1 finished'")
                visit.until("document.querySelector('#planned').textContent === '1 cannot be read'")
                assert "no news for 10 min" in visit.page.inner_text("#runs")
                assert visit.complaints == []


@in_a_browser
def test_the_page_waits_for_a_run_that_has_not_begun(browser: Any, tmp_path: Path) -> None:
    """Before any record is there the page says so, and then shows it without being loaded again."""
    with page.serve(tmp_path / "later", 0) as url, Visit(browser, url) as visit:
        visit.page.locator("#nothing").wait_for(state="visible")
        record = tmp_path / "later" / "one"
        from main import main

        assert main([*f"{SIM} --steps 5 --quiet --run-name one --out".split(), str(record.parent)]) == 0
        visit.until("document.querySelectorAll('#runs tbody tr').length === 1")
        assert visit.page.locator("#nothing").is_hidden()
        assert visit.complaints == []
