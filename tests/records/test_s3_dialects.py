"""Storages that speak S3, but not today's: each works, or one line says what to set."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.awsrequest import AWSResponse, HeadersDict
from conftest import stored

from dsgd.process import s3_access
from dsgd.records import growing_object, lease
from dsgd.records.growing_object import GrowingObject
from dsgd.records.lease import Lease, LostError, TakenError
from dsgd.records.stores import s3_store
from dsgd.records.stores.store import name_of
from main import main

URL = "s3://lab/runs/may"
CONDITIONS = ("if-none-match", "if-match", "x-amz-copy-source-if-match")
LAG_S = 30.0


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    n: int  # how many came before


Refused = tuple[int, str]  # the status, and S3's code


class Storage:
    """A proxy before a server that speaks today's dialect."""

    def __init__(self, endpoint: str) -> None:
        self.refuses: Callable[[Request], Refused | None] = lambda _: None
        self.drops: tuple[str, ...] = ()
        """Headers of requests that it ignores."""
        self.rewrites: Callable[[Request, dict[str, str], bytes], bytes] = lambda *answer: answer[2]
        """Returns another body; may change the headers."""
        self.written_s: dict[str, float] = {}
        self.asked: list[Request] = []
        storage, there = self, endpoint.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def act(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers.get("content-length", "0")))
                request = Request(self.command, self.path, headers, len(storage.asked))
                storage.asked.append(request)
                if refused := storage.refuses(request):
                    said = f"<Error><Code>{refused[1]}</Code><Message>no</Message></Error>".encode()
                    return self.answer(refused[0], {"Content-Type": "application/xml"}, said)
                if self.command in ("PUT", "POST"):
                    storage.written_s.setdefault(self.path.partition("?")[0], time.monotonic())
                kept = {
                    name: value for name, value in self.headers.items() if name.lower() not in storage.drops
                }
                link = http.client.HTTPConnection(there)
                link.request(self.command, self.path, body, kept)
                came = link.getresponse()
                found = dict(came.getheaders())
                content = storage.rewrites(request, found, came.read())
                link.close()
                self.answer(came.status, found, content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = act

            def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                length = {name.lower(): value for name, value in headers.items()}.get("content-length", "0")
                self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def without_conditions(status: int, code: str) -> Callable[[Storage], None]:
    def speak(storage: Storage) -> None:
        def refuse(request: Request) -> Refused | None:
            asked = request.method != "GET" and {*CONDITIONS} & {*request.headers}
            return (status, code) if asked else None

        storage.refuses = refuse

    return speak


def ignores_conditions(storage: Storage) -> None:
    storage.drops = CONDITIONS


def lists_late(storage: Storage) -> None:
    def without_the_newest(request: Request, _: dict[str, str], body: bytes) -> bytes:
        if request.method != "GET" or "list-type" not in request.path:
            return body
        late = {path.partition("/lab/")[2] for path, at_s in storage.written_s.items()
                if time.monotonic() - at_s < LAG_S}  # fmt: skip

        def is_late(entry: re.Match[bytes]) -> bytes:
            (key,) = re.findall(rb"<Key>(.*?)</Key>", entry[0])
            return b"" if key.decode() in late else entry[0]

        return re.sub(rb"<Contents>.*?</Contents>", is_late, body, flags=re.DOTALL)

    storage.rewrites = without_the_newest


def is_slow(status: int, code: str) -> Callable[[Storage], None]:
    def speak(storage: Storage) -> None:
        storage.refuses = lambda r: (status, code) if r.n % 5 == 4 else None

    return speak


def has_capitals_and_no_date(storage: Storage) -> None:
    def other_headers(_: Request, headers: dict[str, str], body: bytes) -> bytes:
        for name in list(headers):
            if name.lower() == "date":
                del headers[name]
            elif name.lower().startswith("x-amz-meta-"):
                headers[f"x-amz-meta-{name[11:].title()}"] = headers.pop(name)
        return re.sub(rb"<KeyCount>\d+</KeyCount>", b"", body)

    storage.rewrites = other_headers


def knows_no_uploads(storage: Storage) -> None:
    storage.refuses = lambda r: (
        (501, "NotImplemented") if r.method == "GET" and r.path.endswith("?uploads") else None
    )


DIALECTS: Mapping[str, Callable[[Storage], None]] = {
    "today's": lambda _: None,
    "conditions: not implemented": without_conditions(501, "NotImplemented"),
    "conditions: invalid argument": without_conditions(400, "InvalidArgument"),
    "conditions: ignored": ignores_conditions,
    "lists late": lists_late,
    "503 SlowDown": is_slow(503, "SlowDown"),
    "429 TooManyRequests": is_slow(429, "TooManyRequests"),
    "capitals, no date, no count": has_capitals_and_no_date,
    "no list of uploads": knows_no_uploads,
}


@pytest.fixture
def storage(endpoint: str, aws: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    there = Storage(endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{there.server.server_port}")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    # It pauses between tries, up to seconds.
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    s3_access._say_unconditional.cache_clear()
    thread = Thread(target=there.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield there
    there.server.shutdown()
    there.server.server_close()
    thread.join()


def ran(options: str, out: str = URL) -> int:
    common = "--engine sim --mode asgd --num-workers 2 --compute-time exponential:1 --run-name a --quiet"
    return main([*common.split(), *options.split(), "--out", out])


FEW = ("conditions: not implemented", "lists late")


@pytest.mark.parametrize(
    "dialect", [pytest.param(name, marks=[] if name in FEW else pytest.mark.thorough) for name in DIALECTS]
)
def test_a_run_is_kept_and_goes_on_elsewhere(
    dialect: str,
    aws: Any,
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The bucket has what is here; another machine goes on from it to the record of a run that was not cut;
    a taken name stays taken.
    """
    assert ran("--steps 8 --checkpoint-every 4", "alone") == 0
    assert ran("--steps 16 --resume auto", "alone") == 0
    DIALECTS[dialect](storage)
    assert ran("--steps 8 --checkpoint-every s3=4") == 0, capsys.readouterr().err
    shutil.rmtree("runs")
    before = stored(aws)
    assert ran("--steps 8") == 2
    assert "is taken and is never overwritten" in capsys.readouterr().err
    assert stored(aws) == before
    assert ran("--steps 16 --checkpoint-every s3=4 --resume auto") == 0, capsys.readouterr().err
    for name in ("weights.npy", "updates.jsonl", "evals.jsonl"):
        assert stored(aws)[f"runs/may/a/{name}"] == Path("alone/a", name).read_bytes()
    said = [line for line in capsys.readouterr().err.splitlines() if "conditional" in line]
    assert len(said) <= 1


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name.startswith(("cond", "today", "cap"))])
def test_a_second_writer_is_found(
    dialect: str, aws: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes later is refused. Of two that come in the same instant one has the lease: at once or,
    where the storage knows no conditions, as soon as they renew it.
    """
    DIALECTS[dialect](storage)
    client = s3_access.s3_client()
    one, two, three = (Lease(client, "lab", "runs/a/lease", f"{URL}/a") for _ in range(3))
    one.take()
    with pytest.raises(TakenError):
        two.take()
    one._renewed_s -= lease.LASTS_S  # it is time to renew it
    one.require()
    one.release()
    looks = s3_access.exists
    # Both look, and see nothing.
    monkeypatch.setattr(lease, "exists", lambda *where: looks(*where) and False)
    found, writers = 0, []
    for one_of_them in (two, three):
        try:
            one_of_them.take()
            writers.append(one_of_them)
        except TakenError:
            found += 1
    for writer in writers:
        writer._renewed_s -= lease.LASTS_S
        try:
            writer.require()
        except LostError:
            found += 1
    assert found == 1
    for writer in writers:
        writer.release()


@pytest.mark.parametrize("dialect", [*DIALECTS])
def test_large_checkpoints_and_files_come_in_parts(
    dialect: str, aws: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Parts of 5 MiB, their copies and their sums too: what comes back is what was sent."""
    DIALECTS[dialect](storage)
    monkeypatch.setattr(s3_store, "_PART_BYTES", 5 << 20)
    monkeypatch.setattr(growing_object, "_PART_BYTES", 5 << 20)
    client = s3_access.s3_client()
    store = s3_store.S3Store(client, "lab", "a/checkpoints/", URL)
    content = os.urandom(11 << 20)
    store.write(name_of(1, [content]), [content])
    store.write(name_of(1, [content]), [content])  # again, after an answer that was lost
    assert store.read(name_of(1, [content])) == content
    growing, file = GrowingObject(client, "lab", "a/updates.jsonl"), tmp_path / "updates.jsonl"
    for n in (6, 12):
        file.write_bytes(content[: n << 20])
        growing.send(file, whole_lines=False)
        assert client.get_object(Bucket="lab", Key="a/updates.jsonl")["Body"].read() == file.read_bytes()


def test_no_request_has_a_checksum_after_its_content(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS boto3 would send them as trailers, which older storages refuse; a user's own setting holds."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://storage.example")
    sent: list[Mapping[str, Any]] = []

    def answer(request: Any, **_: Any) -> Any:
        sent.append({name.lower(): value for name, value in request.headers.items()})
        body = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
        headers: Any = HeadersDict({"ETag": '"1"'})
        raw = type("Raw", (), {"stream": lambda *_: iter([body]), "read": lambda *_: body})()
        return AWSResponse(request.url, 200, headers, raw)

    def asked() -> None:
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        client = s3_access.s3_client()
        client.meta.events.register("before-send.s3", answer)
        store = s3_store.S3Store(client, "lab", "a/", URL)
        store._is_tidy = True
        store.write("1", [b"x"])
        with suppress(Exception):  # it reads no parts back from such an answer
            store.write("2", [bytes(17 << 20)])
        client.put_object(Bucket="lab", Key="k", Body=b"x")

    asked()
    assert len(sent) >= 4
    assert not any("x-amz-trailer" in headers or "aws-chunked" in str(headers) for headers in sent)
    assert "x-amz-checksum-sha256" in sent[0]
    sent.clear()
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    asked()
    assert any("x-amz-trailer" in headers for headers in sent)


def test_a_storage_that_wants_the_buckets_name_as_a_host_is_explained(
    aws: Any, storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names the setting; nothing has run."""
    storage.refuses = lambda _: (403, "SecondLevelDomainForbidden")
    assert ran("--steps 5") == 2
    assert capsys.readouterr().err == (
        f"main.py: --out {URL}: the storage wants the bucket in its host's name; "
        "set addressing_style = virtual below s3 = in AWS_CONFIG_FILE\n"
    )


def test_a_storage_that_stays_slow_is_no_mistake_of_the_user(
    aws: Any, storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and one line in the storage's words."""
    storage.refuses = lambda _: (429, "TooManyRequests")
    assert ran("--steps 5") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"main.py: --out {URL}: S3 fails (")
