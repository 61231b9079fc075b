"""What serving costs beside the model: requests a second, and how long one takes.

    uv run --with litserve==0.2.19 python benchmarks/serving.py

`main.py serve` answers with a model's record; FastAPI computes each request alone, and LitServe, if it is
installed, in batches of as many rows. Each server has one core, which LitServe's three processes share, and
this process, which asks, another. `serve` gets bytes, as Triton's clients send them, the others base64 in
JSON; all answer with bytes.
Saturation: 64 connections, each of which asks again at once, against the bare module, which computes batches
of 32 on that core. A lone request: one connection, the median. Half load: half as many requests a second as
at saturation; 99 of 100 are answered within the time shown, from when they were due: evenly, and at random
(Poisson). There, with no batches and no other work, theory has 4.3 times the module's time (M/D/1).
Then how long a server takes to its first answer, against its imports, and what a token of 32 texts costs with
the keys and values of the others kept, against their windows. Needs Linux and two cores.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import torch

import dsgd
from dsgd.models.networks.token_cache import TokenCache

ROOT = Path(__file__).parents[1]
TURNS, TURN_S, BATCH, CONNECTIONS = 3, 3.0, 32, 64
URL = "http://127.0.0.1:8100"
MODELS: dict[str, tuple[dict[str, Any], torch.Tensor, str]] = {
    "CNN of 206,922 weights": ({"workload": "fashion"}, torch.zeros(28, 28, dtype=torch.uint8), "UINT8"),
    "transformer of 1,015,808": ({"workload": "gpt", "size": "1m"}, torch.arange(128) % 60, "INT64"),
}

BEGINNING = """
import base64, sys
import torch, fastapi
import dsgd
module = dsgd.load(sys.argv[1]).module().eval()
kind, shape = getattr(torch, sys.argv[2]), eval(sys.argv[3])
def read(body):
    return torch.frombuffer(bytearray(base64.b64decode(body["data"])), dtype=kind).reshape(shape)
def answer(row):
    return fastapi.Response(row.numpy().tobytes())
"""
SCRIPTS = {
    "FastAPI": """
import uvicorn
app = fastapi.FastAPI()
@app.post("/predict")
async def predict(body: dict):
    with torch.inference_mode():
        return answer(module(read(body)[None])[0])
uvicorn.run(app, port=8100, log_level="error")
""",
    "LitServe": """
import litserve
class Api(litserve.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request: dict): return read(request)
    def batch(self, rows): return torch.stack(rows)
    def predict(self, rows):
        with torch.inference_mode():
            return module(rows)
    def unbatch(self, rows): return list(rows)
    def encode_response(self, row): return answer(row)
if __name__ == "__main__":
    server = litserve.LitServer(Api(max_batch_size=32, batch_timeout=0.002), accelerator="cpu")
    server.run(port=8100, log_level="error", generate_client_file=False)
""",
}
CORES = sorted(os.sched_getaffinity(0))[:2]
Ask = Callable[[aiohttp.ClientSession], Any]


@contextmanager
def on_the_other_core() -> Iterator[None]:
    os.sched_setaffinity(0, {CORES[0]})
    yield
    os.sched_setaffinity(0, {CORES[1]})


@contextmanager
def server(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends."""
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    to: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    with on_the_other_core():
        process = subprocess.Popen([sys.executable, *map(str, command)], env=environment, **to)
    try:
        yield process
    finally:
        for which in (signal.SIGTERM, signal.SIGKILL):  # LitServe's own processes outlive their parent
            with suppress(ProcessLookupError):
                os.killpg(process.pid, which)
            process.wait()


async def ask(session: aiohttp.ClientSession, path: str, body: bytes, headers: dict[str, str]) -> None:
    async with session.post(URL + path, data=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert await answer.read()


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def first_answer(process: subprocess.Popen[bytes], ask: Ask) -> object:
    async with session() as to:
        while process.poll() is None:
            with suppress(aiohttp.ClientConnectionError):
                return await ask(to)
            await asyncio.sleep(0.01)
    raise RuntimeError(f"the server ended: {process.args!r}")


async def at_saturation(ask: Ask) -> float:
    """Return how many requests a second are answered."""
    answered, until_s = 0, 0.0

    async def go_on() -> None:
        nonlocal answered
        while time.monotonic() < until_s:
            await ask(to)
            answered += 1

    async with session() as to:
        for seconds in (1, TURN_S):  # what is slow at first does not count
            answered, began_s = 0, time.monotonic()
            until_s = began_s + seconds
            await asyncio.gather(*(go_on() for _ in range(CONNECTIONS)))
    return answered / (time.monotonic() - began_s)


async def alone(ask: Ask) -> float:
    """Return the median time of a lone request."""
    times, until_s = list[float](), time.monotonic() + TURN_S
    async with session() as to:
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            await ask(to)
            times.append(time.monotonic() - began_s)
    return statistics.median(times)


async def late_at(ask: Ask, seconds: float, between_s: Callable[[], float]) -> float:
    """Return the time within which 99 of 100 requests are answered that come at these intervals."""
    times = list[float]()

    async def one(due_s: float) -> None:
        await ask(to)
        times.append(time.monotonic() - due_s)

    async with session() as to, asyncio.TaskGroup() as group:
        due_s = began_s = time.monotonic()
        while due_s < began_s + seconds:
            due_s += between_s()
            await asyncio.sleep(due_s - time.monotonic())
            group.create_task(one(due_s))
    return statistics.quantiles(times, n=100)[98]


def bare(module: torch.nn.Module, row: torch.Tensor) -> float:
    """Return how many rows a second the module computes in batches."""
    rows = row.repeat(BATCH, *[1] * row.dim())
    with on_the_other_core(), torch.inference_mode():
        module(rows)
        return BATCH / statistics.median(timed(lambda: module(rows)) for _ in range(10))


def timed(compute: Callable[[], Any]) -> float:
    began_s = time.monotonic()
    compute()
    return time.monotonic() - began_s


def requests(run: Path, row: torch.Tensor, datatype: str) -> tuple[Ask, Ask]:
    """Return what asks `serve`, in the Open Inference Protocol, and what asks the scripts: both for bytes."""
    loaded, raw = dsgd.load(run), row.numpy().tobytes()
    tensor: dict[str, Any] = {
        "name": next(iter(loaded.call().form.inputs)),
        "shape": [1, *row.shape],
        "datatype": datatype,
    }
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    json_type = {"Content-Type": "application/json"}
    with_bytes = json_type | {"Inference-Header-Content-Length": str(len(head))}
    body = json.dumps({"data": base64.b64encode(raw).decode()}).encode()
    ours = partial(ask, path=f"/v2/models/{loaded.name}/infer", body=head + raw, headers=with_bytes)
    return ours, partial(ask, path="/predict", body=body, headers=json_type)


def measure(name: str, run: Path, row: torch.Tensor, ours: Ask, of_scripts: Ask) -> None:
    """Print the medians of turns, in each of which each server comes once."""
    module, draw = dsgd.load(run).module().eval(), random.Random(1)  # noqa: S311 - arrivals
    servers: dict[str, tuple[list[Any], Ask]] = {}
    for title, script in SCRIPTS.items():
        if importlib.util.find_spec(title.lower()):
            path = run.parent / f"{title}.py"
            path.write_text(BEGINNING + script)
            of_row = [str(row.dtype).removeprefix("torch."), [*row.shape]]
            servers[title] = [path, run, *of_row], of_scripts
    servers["serve"] = [ROOT / "main.py", "serve", run, "--port", 8100], ours
    found: dict[str, list[tuple[float, ...]]] = {title: [] for title in servers}
    for _ in range(TURNS):
        for title, (command, ask) in servers.items():
            with server(*command) as process:
                asyncio.run(first_answer(process, ask))
                before, rate, after = bare(module, row), asyncio.run(at_saturation(ask)), bare(module, row)
                of_bare = (before + after) / 2  # a machine's speed drifts
                lone_s = asyncio.run(alone(ask))
                evenly_s = asyncio.run(late_at(ask, TURN_S, partial(float, 2 / rate)))
                randomly_s = asyncio.run(late_at(ask, 3 * TURN_S, partial(draw.expovariate, rate / 2)))
            late = evenly_s / lone_s, randomly_s / lone_s
            found[title].append((rate, rate / of_bare, lone_s * 1000, *late, randomly_s * of_bare))
    for title, turns in found.items():
        rate, part, lone_ms, evenly, randomly, rows = map(statistics.median, zip(*turns, strict=True))
        print(
            f"{name}, {title}: {rate:,.0f} requests/s, {part:.2f} of the bare module; a lone request "
            f"{lone_ms:.1f} ms; p99 at half load {evenly:.1f} x evenly, {randomly:.1f} x at random, which is "
            f"{rows:.1f} x the module's time for a row",
            flush=True,
        )


def measure_start(run: Path, ours: Ask) -> None:
    """Print how long after the start of its process a server answers."""
    turns = list[tuple[float, float]]()
    for _ in range(TURNS):
        with server("-c", "import dsgd.serve.application, dsgd.serve.loading") as process:
            imported_s = timed(process.wait)
        with server(ROOT / "main.py", "serve", run, "--port", "8100") as process:
            answered_s = timed(partial(asyncio.run, first_answer(process, ours)))
        turns.append((answered_s, imported_s))
    answered_s, imported_s = map(statistics.median, zip(*turns, strict=True))
    print(f"first answer {answered_s:.2f} s after the start; its imports alone take {imported_s:.2f} s")


def measure_cache(run: Path) -> None:
    """Print what the next token of each of 32 texts costs in the middle of the context."""
    loaded = dsgd.load(run)
    module: Any = loaded.module().eval()
    sampler: Any = loaded.problem().sample
    before = sampler.context // 2
    texts, places = torch.randint(60, (BATCH, before)), range(BATCH)
    cache = TokenCache(module, BATCH, 2 * before)
    with torch.inference_mode():
        cache.logits(texts, places, [0] * BATCH)
        next_ones: tuple[Callable[[], Any], ...] = (
            lambda: cache.logits(texts[:, -1:], places, [before - 1] * BATCH),
            lambda: module(texts),
        )
        kept_s, anew_s = (statistics.median(timed(one) for _ in range(50)) for one in next_ones)
    print(f"a token of 32 texts {kept_s * 1000:.1f} ms, {kept_s / anew_s:.3f} of their windows")


if __name__ == "__main__":
    if len(CORES) < 2:
        sys.exit("serving.py: needs two cores, one for the server and one for who asks; this machine has one")
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {CORES[1]})
    with tempfile.TemporaryDirectory() as out:
        for name, (options, row, datatype) in MODELS.items():
            run = Path(out) / options["workload"]
            how: Any = {
                "engine": "sim",
                "num_workers": 2,
                "steps": 2,
                "eval_samples": 64,
                "seed": 1,
            } | options
            dsgd.run("ssgd", out=out, run_name=run.name, **how)
            both = requests(run, row, datatype)
            measure(name, run, row, *both)
        measure_start(run, both[0])
        measure_cache(run)
