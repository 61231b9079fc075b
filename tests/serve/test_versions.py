"""Versions side by side: each request is answered once, by a version that it may get, whatever is changed."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import wait_for
from hypothesis import given
from hypothesis import strategies as st
from test_serve import asked, in_this_process, with_checkpoints

import dsgd
from dsgd.running.trained_run import trained_run
from dsgd.serve.loading import LoadedVersion
from dsgd.serve.options import ServeOptions
from dsgd.serve.versions import Catalog, Meters


class Named:
    """A version of which nothing is asked but its name."""

    def __init__(self, name: str, model: str = "m") -> None:
        self.name, self.model = name, model


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5).filter(any), st.integers(1, 300))
def test_each_version_gets_its_share_of_any_number_of_requests(shares: list[int], count: int) -> None:
    """To less than one request, from the first on."""
    versions: list[Any] = [Named(f"r@{i}") for i in range(len(shares))]
    catalog = Catalog(versions, {f"r@{i}": float(share) for i, share in enumerate(shares)}, 1.0)
    found = Counter(catalog.choose("m").name for _ in range(count))
    for i, share in enumerate(shares):
        assert abs(found[f"r@{i}"] - count * share / sum(shares)) < 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train one run with three versions, as two checkpoints and its end."""
    out = tmp_path_factory.mktemp("versions")
    with_checkpoints(out / "r", (2, 4, 5), workload="digits_cnn")
    return out


X = torch.rand(2, 1, 8, 8)
PATH = "/v2/models/digits_cnn/infer"
REQUEST = {"inputs": [{"name": "input", "shape": [*X.shape], "datatype": "FP32", "data": X.tolist()}]}


def expected(runs: Path, *names: str) -> dict[str, list[float]]:
    """Return what each version gives for X."""
    with torch.no_grad():
        return {
            name: dsgd.load(runs / "r" if name == "r@5" else f"{runs}/{name}").module()(X).flatten().tolist()
            for name in names
        }


def test_versions_are_promoted_and_rolled_back_without_a_lost_request(runs: Path) -> None:
    """By one POST, behind the token: each answer is whole and of a version that had a share."""
    by = expected(runs, "r@2", "r@4", "r@5")
    split, found, over = f"75:{runs}/r@2,25:r@4", list[str](), threading.Event()
    key = {"Authorization": "Bearer key"}

    def ask() -> None:
        while not over.is_set():
            status, text = asked(url, PATH, REQUEST, **key)
            answer = json.loads(text)
            assert status == 200
            assert answer["outputs"][0]["data"] == pytest.approx(by[answer["model_version"]], abs=1e-6)
            found.append(answer["model_version"])

    def post(path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        status, text = asked(url, f"/admin/models/{path}", {} if body is None else body, **headers)
        return status, json.loads(text)

    sources = f"{runs}/r@2", f"{runs}/r@4", f"{runs}/r"
    with in_this_process(*sources, split=split, token="key") as url:
        assert post("digits_cnn/promote", {"r@5": 1})[0] == 401
        assert post("digits_cnn/promote", {"r@9": 1}, **key) == (
            422, {"error": "r@9: is not served; digits_cnn has r@2, r@4, r@5"}
        )  # fmt: skip
        assert post("digits_cnn/promote", {"r@5": -1}, **key)[0] == 422
        assert post("none/promote", {"r@5": 1}, **key)[0] == 404
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(found) >= 40)
        first = Counter(found[:40])
        assert 28 <= first["r@2"] <= 32
        assert first["r@2"] + first["r@4"] == 40
        assert post("digits_cnn/promote", {"r@5": 100}, **key) == (
            200, {"shares": {"r@5": 100}, "before": {"r@2": 75, "r@4": 25}}
        )  # fmt: skip
        after = len(found) + len(threads)
        wait_for(lambda: len(found) >= after + 20)
        assert {*found[after:]} == {"r@5"}
        assert post("digits_cnn/rollback", **key)[1]["shares"] == {"r@2": 75, "r@4": 25}
        after = len(found) + len(threads)
        wait_for(lambda: len(found) >= after + 20)
        assert {*found[after:]} == {"r@2", "r@4"}
        over.set()
        for thread in threads:
            thread.join()


def test_without_a_token_nothing_is_promoted(runs: Path) -> None:
    with in_this_process(runs / "r") as url:
        assert asked(url, "/admin/models/digits_cnn/promote", {"r@5": 1})[0] == 403


def test_a_run_that_goes_on_is_served_at_its_newest_checkpoint(runs: Path, tmp_path: Path) -> None:
    """And, if it is followed, at each newer one, up to its end; the version before is gone."""
    by, growing = expected(runs, "r@2", "r@4", "r@5"), tmp_path / "r"
    later = "summary.json", "weights.npy"
    shutil.copytree(runs / "r", growing, ignore=shutil.ignore_patterns(*later, "*0004-*", "*0005-*"))

    def version() -> str:
        status, text = asked(url, PATH, REQUEST)
        assert status == 200
        answer = json.loads(text)
        assert answer["outputs"][0]["data"] == pytest.approx(by[answer["model_version"]], abs=1e-6)
        return str(answer["model_version"])

    with in_this_process(growing, follow=True) as url:
        assert version() == "r@2"
        for file in (runs / "r" / "checkpoints").glob("*0004-*"):
            shutil.copy(file, growing / "checkpoints")
        wait_for(lambda: version() == "r@4")
        for name in reversed(later):
            shutil.copy(runs / "r" / name, growing)
        wait_for(lambda: version() == "r@5")
        assert asked(url, "/v2/models/digits_cnn/versions/r@2")[0] == 404


def test_int8_says_what_it_costs(runs: Path) -> None:
    """Before is the loss of an evaluation, and the answers are near those in float32, and not the same."""
    run = trained_run(f"{runs}/r")
    version = LoadedVersion(run, ServeOptions(runs=(), int8=True), Meters())
    said = re.fullmatch(
        r"linear layers with weights of 8 bits: 1; loss (\S+) on 397 test samples, (\S+) before",
        version.notes[0],
    )
    assert said
    after, before = map(float, said.groups())
    assert before == pytest.approx(run.evaluate().loss, rel=1e-5)
    assert after == pytest.approx(before, rel=0.01)
    with torch.no_grad():
        exact = run.module()(X)
    found = version._call({"input": X})["output"]
    torch.testing.assert_close(found, exact, atol=0.02, rtol=0)
    assert not torch.equal(found, exact)


class Connection:
    """An HTTP connection that is kept, with as little of a client as can be."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])

    async def __aenter__(self) -> Connection:
        self._reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def post(self, path: str, body: bytes, more: str = "") -> tuple[int, dict[str, Any]]:
        self.writer.write(head(path, body, more) + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        assert length
        return int(answer.split()[1]), json.loads(await self._reader.readexactly(int(length[1])))


def head(path: str, body: bytes, more: str = "") -> bytes:
    lines = f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *[more] * bool(more)
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


async def slow(url: str, path: str, body: bytes, begun: list[int]) -> None:
    """Send a request a few bytes at a time, and never its end."""
    async with Connection(url) as connection:
        begun.append(1)
        for byte in itertools.cycle(head(path, body)[:-1] + body[:-1]):
            connection.writer.write(bytes([byte]))
            await asyncio.sleep(0.2)


@pytest.mark.thorough
def test_of_ten_thousand_requests_none_is_lost_or_mixed_up_among_slow_clients(runs: Path) -> None:
    """Each of 64 clients gets the answer to its own input, by a version that it may get, while 200 others
    never come to an end and shares are changed a hundred times.
    """
    clients, slow_ones, each = 64, 200, 160
    x = torch.rand(clients, 1, 1, 8, 8)
    names = "r@2", "r@4", "r@5"
    with torch.no_grad():
        modules = [dsgd.load(runs / "r" if name == "r@5" else f"{runs}/{name}").module() for name in names]
        by = {
            name: [module(row)[0].tolist() for row in x] for name, module in zip(names, modules, strict=True)
        }

    def body(i: int, number: int) -> bytes:
        given = {"name": "input", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": x[i].tolist()}
        return json.dumps({"id": f"{i}-{number}", "inputs": [given]}).encode()

    async def ask(url: str, i: int) -> int:
        key = "Authorization: Bearer key"
        async with Connection(url) as connection:
            for number in range(each):
                named = names[number % 3] if number % 2 else None
                path = f"/v2/models/digits_cnn/versions/{named}/infer" if named else PATH
                status, answer = await connection.post(path, body(i, number), key)
                assert status == 200, answer
                assert answer["id"] == f"{i}-{number}"
                assert named in (None, answer["model_version"])
                expected = by[answer["model_version"]][i]
                assert answer["outputs"][0]["data"] == pytest.approx(expected, abs=1e-5)
        return each

    async def play(url: str) -> int:
        begun = list[int]()
        others = [asyncio.create_task(slow(url, PATH, body(0, 0), begun)) for _ in range(slow_ones)]
        while len(begun) < slow_ones:
            await asyncio.sleep(0.01)
        asking = [asyncio.create_task(ask(url, i)) for i in range(clients)]
        async with Connection(url) as connection:
            for i in range(100):
                shares = json.dumps({names[i % 3]: 50, names[(i + 1) % 3]: 50}).encode()
                more = "Authorization: Bearer key\r\nContent-Type: application/json"
                status, _ = await connection.post("/admin/models/digits_cnn/promote", shares, more)
                assert status == 200
        answered = sum(await asyncio.gather(*asking))
        assert not any(task.done() for task in others)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return answered

    with in_this_process(
        *(f"{runs}/{n}" for n in names[:2]), runs / "r", token="key", timeout_s=600.0
    ) as url:
        assert asyncio.run(play(url)) == clients * each > 10_000
