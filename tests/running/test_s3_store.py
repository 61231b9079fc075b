"""Checkpoints in S3, over HTTP: whole or not there, whatever fails, hangs, breaks off or is killed."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from conftest import PATIENCE_S, ROOT, stored
from test_disk_store import content_of, put

from dsgd.records.stores import s3_store
from dsgd.records.stores.s3_store import S3Store
from dsgd.records.stores.store import keep_newest, name_of, newest_whole


class Unreliable:
    """A server in front of S3 that passes requests on, or fails as `fails` says."""

    def __init__(self, endpoint: str) -> None:
        self.asked: list[str] = []
        """Each request: method, path and query."""
        self.fails: Callable[[str, int], str] = lambda asked, times: ""
        """What happens to a request that came so many times: nothing, a status like 503, hang (no answer),
        lost (it is carried out, and its answer is lost), or cut (half of the answer comes).
        """
        self._ended = threading.Event()
        unreliable, host = self, endpoint.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = f"{self.command} {self.path}"
                unreliable.asked.append(asked)
                how = unreliable.fails(asked, unreliable.asked.count(asked))
                if how == "hang":
                    unreliable._ended.wait(20)
                    self.close_connection = True
                    return
                if how.isdigit():
                    self.send_response(int(how))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                there = http.client.HTTPConnection(host)
                there.request(self.command, self.path, body, dict(self.headers))
                answer = there.getresponse()
                content = answer.read()
                there.close()
                if how == "lost":
                    self.close_connection = True
                    return
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
                self.send_header("Content-Length", str(length or 0))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if how == "cut" else content)
                self.close_connection = how == "cut"

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def end(self) -> None:
        self._ended.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def unreliable(aws: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Unreliable]:
    """Put a server that may fail in front of S3."""
    there = Unreliable(endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", there.url)
    thread = threading.Thread(target=there.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield there
    there.end()
    thread.join()


def s3(read_timeout_s: float = 30.0) -> S3Store:
    """Return a store with its own client, as the environment says."""
    import boto3
    from botocore.config import Config

    config = Config(read_timeout=read_timeout_s, retries={"total_max_attempts": 3})
    client = boto3.Session().client("s3", config=config)
    return S3Store(client, "lab", "a/checkpoints/", "s3://lab/a/checkpoints")


def uploads_left(aws: Any) -> int:
    return len(aws.list_multipart_uploads(Bucket="lab").get("Uploads", []))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Upload in parts of the least size; return a size of three parts."""
    monkeypatch.setattr(s3_store, "_PART_BYTES", 5 << 20)
    return (10 << 20) + 12_345


def test_s3_has_what_was_written(aws: Any, small_parts: int) -> None:
    """Small and large, in parts: the same bytes come back, newest last, and retention removes them."""
    store = s3()
    names = [put(store, v, content_of(v, size)) for v, size in ((1, 0), (2, 100), (3, small_parts))]
    assert store.names() == names
    assert newest_whole(store).content == content_of(3, small_parts)
    keep_newest(store, 1)
    assert [*stored(aws)] == [f"a/checkpoints/{names[2]}"]
    assert uploads_left(aws) == 0


@pytest.mark.parametrize("size", [100, 6 << 20])
def test_an_object_that_is_there_is_never_overwritten(aws: Any, small_parts: int, size: int) -> None:
    """Whatever is under a checkpoint's name stays; a damaged one is passed over by the reader."""
    name = name_of(1, [content_of(1, size)])
    aws.put_object(Bucket="lab", Key=f"a/checkpoints/{name}", Body=b"damaged")
    put(s3(), 1, content_of(1, size))
    assert stored(aws) == {f"a/checkpoints/{name}": b"damaged"}
    assert newest_whole(s3()).name is None
    assert uploads_left(aws) == 0


@pytest.mark.crossing(one_in=4)
@pytest.mark.parametrize("how", ["500", "503", "lost", "hang"])
@pytest.mark.parametrize("what", ["PUT", "POST", "GET"])
def test_what_fails_for_a_moment_is_repeated(
    unreliable: Unreliable, aws: Any, small_parts: int, what: str, how: str
) -> None:
    """5xx, a lost answer or none at all, once for each request of a kind: the checkpoint is there whole."""
    unreliable.fails = lambda asked, times: how if asked.startswith(what) and times == 1 else ""
    store = s3(read_timeout_s=0.5)
    name = put(store, 1, content_of(1, small_parts))
    assert newest_whole(store) == (name, content_of(1, small_parts), [])
    assert uploads_left(aws) == 0 or (what, how) in {("POST", "lost"), ("POST", "hang")}


def test_an_answer_that_breaks_off_is_asked_for_again(unreliable: Unreliable, small_parts: int) -> None:
    """A download cut in the middle is repeated; the bytes are those that were written."""
    store = s3()
    name = put(store, 1, content_of(1, small_parts))
    unreliable.fails = lambda asked, times: "cut" if name in asked and times == 1 else ""
    assert newest_whole(store) == (name, content_of(1, small_parts), [])


@pytest.mark.parametrize("failing", ["?uploads", "partNumber=1", "partNumber=3", "uploadId="])
def test_a_failed_upload_leaves_nothing_to_be_seen(
    unreliable: Unreliable, aws: Any, small_parts: int, failing: str
) -> None:
    """S3 fails for good at any step: OSError in one line, no object, no parts; the one before is loaded."""
    store = s3()
    before = put(store, 1, content_of(1))
    unreliable.fails = lambda asked, times: (
        "503" if failing in asked and not asked.startswith("DELETE") else ""
    )
    with pytest.raises(OSError, match="S3 fails") as raised:
        put(store, 2, content_of(2, small_parts))
    assert "\n" not in str(raised.value)
    assert newest_whole(store).name == before
    assert [*stored(aws)] == [f"a/checkpoints/{before}"]
    assert uploads_left(aws) == 0


def test_a_refusal_is_a_failure_of_the_store(unreliable: Unreliable) -> None:
    """403, which a user could correct, is for a run that goes on an OSError like any other."""
    unreliable.fails = lambda asked, times: "403"
    for use in (s3().names, lambda: put(s3(), 1, b"x"), lambda: s3().read("x"), lambda: s3().remove("x")):
        with pytest.raises(OSError, match="S3 refuses"):
            use()


KILLED_UPLOADING = """
import boto3
from dsgd.records.stores import s3_store
from dsgd.records.stores.store import name_of

s3_store._PART_BYTES = 5 << 20
store = s3_store.S3Store(boto3.client("s3"), "lab", "a/checkpoints/", "s3://lab/a/checkpoints")
content = bytes(12 << 20)
store.write(name_of(2, [content]), [content])
"""


@pytest.mark.crossing(one_in=5)
@pytest.mark.parametrize("at", ["GET /lab?uploads", "POST", "partNumber=1", "partNumber=3", "uploadId="])
def test_an_upload_that_is_killed_leaves_no_object(unreliable: Unreliable, aws: Any, at: str) -> None:
    """SIGKILL at any request: the checkpoint before is the newest, and the next write removes the parts."""
    store = s3()
    before = put(store, 1, content_of(1))
    reached = threading.Event()

    def stop(asked: str, times: int) -> str:
        if reached.is_set() or not (at in asked if at != "uploadId=" else _completes(asked)):
            return ""
        reached.set()
        return "hang"

    unreliable.fails = stop
    writer = subprocess.Popen([sys.executable, "-c", KILLED_UPLOADING], cwd=ROOT)
    assert reached.wait(PATIENCE_S)
    writer.kill()
    assert writer.wait() == -signal.SIGKILL
    assert newest_whole(store).name == before
    assert [*stored(aws)] == [f"a/checkpoints/{before}"]
    put(s3(), 3, content_of(3))
    assert uploads_left(aws) == 0
    assert newest_whole(store).content == content_of(3)


def _completes(asked: str) -> bool:
    return asked.startswith("POST") and "uploadId=" in asked
