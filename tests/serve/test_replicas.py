"""Replicas on Ray: what dies is not heard of, and an answer is given once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
import torch
from conftest import PATIENCE_S, wait_for
from test_serve import asked, with_checkpoints

import dsgd
from dsgd.models.networks.writing import Piece, TextRequest
from dsgd.models.objectives.module_call import CallForm
from dsgd.serve.options import ServeOptions
from dsgd.serve.replicas import RemoteVersion, served

REQUEST = TextRequest("a", 3, 1.0, 1.0, 0)
ANY = CallForm({}, {}, frozenset(), True)


class Dying:
    """Calls replicas that die: each after a number of pieces, or before an answer; the last one lives."""

    def __init__(self, *after: int) -> None:
        self._after = iter(after)
        self.calls = 0
        self.pieces = self.answer = self

    def options(self, **_: Any) -> Dying:
        return self

    def remote(self, *given: Any) -> Any:
        self.calls += 1
        return self._pieces() if REQUEST in given else self._answer()

    async def _answer(self) -> dict[str, int]:
        self._die(0)
        return {"output": 7}

    async def _pieces(self) -> AsyncGenerator[Piece, None]:
        dies = next(self._after, None)
        for i in range(5):
            if i == dies:
                raise_death()
            yield Piece(str(i), 1)

    def _die(self, _: int) -> None:
        if next(self._after, None) is not None:
            raise_death()


def raise_death() -> None:
    from ray.exceptions import ActorDiedError

    raise ActorDiedError


def test_what_was_with_replicas_that_die_goes_to_another() -> None:
    """Each piece of a text comes once, in order, wherever they die; an answer comes from one that lives."""

    async def play() -> None:
        for deaths in [(), (0,), (3,), (3, 1), (2, 4, 4), (5 - 1, 0, 0)]:
            handle = Dying(*deaths)
            version = RemoteVersion(handle, "m", "r@1", ANY, True)
            assert [piece.text async for piece in version.pieces(REQUEST)] == ["0", "1", "2", "3", "4"]
            assert handle.calls == len(deaths) + 1
            handle = Dying(*deaths)
            assert await RemoteVersion(handle, "m", "r@1", ANY, True).answer({}) == {"output": 7}
            assert handle.calls == len(deaths) + 1

    asyncio.run(play())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("replicas")
    with_checkpoints(out / "images", (2, 4), workload="digits_cnn")
    with_checkpoints(out / "text", (4,), workload="gpt", lr=0.05, eval_samples=64)
    return out


@contextmanager
def on_ray(*runs: Path | str, **options: Any) -> Iterator[str]:
    """Serve runs on the cluster of this process; yield the address."""
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with served(ServeOptions(runs=tuple(map(str, runs)), port=port, **options)):
        yield f"http://127.0.0.1:{port}"
    shut_down: Any = serve.shutdown
    shut_down()


def processes(name: str) -> list[psutil.Process]:
    """Return the processes of a deployment's replicas."""
    found = f"ray::ServeReplica:dsgd:{name}"
    return [p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [""])[0].startswith(found)]


@pytest.mark.ray
@pytest.mark.thorough
def test_replicas_and_the_ingress_die_while_clients_ask(runs: Path, ray_cluster: str) -> None:
    """10,000 requests by 32 clients, 20 texts: both replicas are killed twice, shares are changed, and each
    client gets the answers to its own inputs, by a version that it may get. Shares outlive the ingress.
    """
    x = torch.rand(32, 1, 1, 8, 8)
    names, key = ("images@2", "images@4"), {"Authorization": "Bearer key"}
    with torch.no_grad():
        modules = {name: dsgd.load(f"{runs}/{name}").module() for name in names}
        by = {name: [module(row)[0].tolist() for row in x] for name, module in modules.items()}
    text = dsgd.load(runs / "text").sample("To be", tokens=100, seed=3)
    wrong, answered, texts = list[Any](), list[int](), list[str]()

    def ask(i: int) -> None:
        given = {"name": "input", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": x[i].tolist()}
        while len(answered) < 10_000:
            status, body = asked(url, "/v2/models/digits_cnn/infer", {"inputs": [given], "id": str(i)}, **key)
            answer = json.loads(body)
            if status != 200 or answer["id"] != str(i):
                wrong.append((status, body))
                continue
            expected = by[answer["model_version"]][i]
            if answer["outputs"][0]["data"] != pytest.approx(expected, abs=1e-5):
                wrong.append(answer)
            answered.append(i)

    def write() -> None:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0, timeout=PATIENCE_S)
        how: Any = {"model": "gpt", "prompt": "To be", "max_tokens": 100, "seed": 3, "stream": True}
        while len(texts) < 20:
            texts.append("".join(part.choices[0].text for part in client.completions.create(**how)))

    sources = f"{runs}/images@2", f"{runs}/images@4", runs / "text"
    with on_ray(*sources, replicas="2", token="key", timeout_s=PATIENCE_S) as url:
        threads = [threading.Thread(target=ask, args=[i]) for i in range(len(x))]
        threads += [threading.Thread(target=write)]
        for thread in threads:
            thread.start()
        for at in (2_000, 5_000):
            wait_for(partial(lambda at: len(answered) > at or wrong, at))
            for process in processes("ModelReplica"):
                os.kill(process.pid, signal.SIGKILL)
            shares = {names[at % 3 % 2]: 100}
            assert asked(url, "/admin/models/digits_cnn/promote", shares, **key)[0] == 200
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(answered) >= 10_000
        assert {*texts} == {text}
        (ingress,) = processes("Ingress")
        ingress.kill()
        given = {"name": "input", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": x[0].tolist()}

        def through_the_next_ingress() -> Any:
            status, body = asked(url, "/v2/models/digits_cnn/infer", {"inputs": [given]}, **key)
            return status == 200 and json.loads(body)

        assert wait_for(through_the_next_ingress)["model_version"] == next(iter(shares))
