"""What runs trained, over HTTP: clients that others wrote get what the model alone gives."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openai
import pytest
import torch
import tritonclient.http as triton
import uvicorn
from conftest import PATIENCE_S, ROOT, needs, python, wait_for
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

import dsgd
from dsgd.running.trained_run import trained_run
from dsgd.serve.application import application
from dsgd.serve.loading import LoadedVersion, catalog_of, follow, load
from dsgd.serve.options import ServeOptions
from dsgd.serve.versions import Meters
from dsgd.show.live.server import listen, url_of
from main import main

WORDS = "left", "right", "straight"  # of that file
OWN = ROOT / "tests" / "workloads" / "answering.py"
SMALL: dict[str, Any] = {"engine": "sim", "num_workers": 2, "seed": 3}


class Served(NamedTuple):
    """A server, and the runs that it serves."""

    url: str
    runs: Path
    process: subprocess.Popen[str]


def with_checkpoints(record: Path, versions: Sequence[int], **how: Any) -> None:
    """Train a run that has a checkpoint of each of these versions: it ends there, and goes on."""
    options: Any = {"compute_time": "constant:1", "checkpoint_every": "100"} | how | SMALL
    dsgd.run("ssgd", steps=versions[0], out=record.parent, run_name=record.name, **options)
    for version in versions[1:]:
        dsgd.run(resume=record, steps=version)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train an image classifier, a language model and a module of a user's."""
    out = tmp_path_factory.mktemp("served")
    dsgd.run("ssgd", workload="digits_cnn", steps=5, out=out, run_name="images", **SMALL)
    with_checkpoints(out / "text", (2, 4, 5), workload="gpt", lr=0.05, eval_samples=64)
    dsgd.run("ssgd", workload=str(OWN), steps=5, out=out, run_name="own", **SMALL)
    return out


@contextmanager
def serving(*arguments: str | Path, **options: Any) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `main.py serve`; yield its address and its process. It is ended at the end, if it runs still."""
    with python("main.py", "serve", *map(str, arguments), "--port", "0", **options) as process:
        try:
            assert process.stdout
            printed = next(line for line in process.stdout if line.startswith("serving"))
            yield printed.split()[1], process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0


@pytest.mark.ray
def test_a_run_on_ray_is_served_as_one_of_the_simulator(tmp_path: Path, ray_cluster: str) -> None:
    """Its record is read in the same way."""
    how: Any = SMALL | {"engine": "ray"}
    run = dsgd.run("asgd", workload="digits_cnn", steps=5, out=tmp_path, run_name="real", **how)
    x = torch.rand(3, 1, 8, 8)
    with in_this_process(tmp_path / "real") as url, torch.no_grad():
        given = {"name": "input", "shape": [*x.shape], "datatype": "FP32", "data": x.tolist()}
        found = json.loads(asked(url, "/v2/models/digits_cnn/infer", {"inputs": [given]})[1])
        assert found["model_version"] == f"real@{run.summary['updates']}"
        assert run.path
        expected = dsgd.load(run.path).module()(x).flatten().tolist()
        assert found["outputs"][0]["data"] == pytest.approx(expected, abs=1e-6)


@contextmanager
def in_this_process(*runs: Path | str, **options: Any) -> Iterator[str]:
    """Serve runs from a thread; yield the address."""
    given, meters = ServeOptions(runs=tuple(map(str, runs)), **options), Meters()
    versions = load(given, meters)
    catalog = catalog_of(given, versions)
    if given.follow:
        catalog.beside = [partial(follow, catalog, str(runs[0]), versions[0], given, meters)]
    listener = listen("--port", "127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application(catalog, given, meters), log_config=None))
    thread = threading.Thread(target=server.run, args=[[listener]])
    thread.start()
    yield url_of(listener)
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Served]:
    models = runs / "images", f"{runs}/text@4", runs / "text", runs / "own"
    with serving(*models, "--max-batch", "8") as (url, process):
        yield Served(url, runs, process)


def asked(url: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Return the status and the body of an answer. body: None: GET; bytes, or what JSON has."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    names = {"Content-Type": "application/json"} | {n.replace("_", "-"): v for n, v in headers.items()}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url + path, data, names), timeout=PATIENCE_S
        ) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def tensor(name: str, value: np.ndarray[Any, Any], kind: str, in_bytes: bool) -> Any:
    given = triton.InferInput(name, [*value.shape], kind)
    given.set_data_from_numpy(value, binary_data=in_bytes)
    return given


@pytest.mark.parametrize("in_bytes", [True, False])
def test_tritons_client_gets_what_the_module_gives(served: Served, in_bytes: bool) -> None:
    """The outputs are those of the module, in bytes and in JSON, for more rows than a batch has."""
    run = dsgd.load(served.runs / "images")
    x = torch.rand(21, 1, 8, 8)
    with torch.no_grad():
        expected = run.module()(x)
    client = triton.InferenceServerClient(served.url.removeprefix("http://"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits_cnn", "images@5")
    about = client.get_model_metadata("digits_cnn")
    assert about["versions"] == ["images@5"]
    assert about["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert about["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 10]}]
    given = [tensor("input", x.numpy(), "FP32", in_bytes)]
    wanted = [triton.InferRequestedOutput("output", binary_data=in_bytes)]
    found = client.infer("digits_cnn", given, outputs=wanted, request_id="seven")
    assert found.get_response()["id"] == "seven"
    assert found.get_response()["model_version"] == "images@5"
    np.testing.assert_allclose(found.as_numpy("output"), expected, atol=1e-6)
    client.close()


def test_a_users_module_is_asked_by_the_names_of_its_arguments(served: Served) -> None:
    """Words and numbers go in, labels may be left out, and of the outputs the loss, which has no rows, is."""
    client = triton.InferenceServerClient(served.url.removeprefix("http://"))
    about = client.get_model_metadata("answering")
    assert [(x["name"], x["datatype"], x["shape"]) for x in about["inputs"]] == [
        ("words", "BYTES", [-1]), ("numbers", "FP32", [-1, 2]), ("labels", "INT64", [-1]),
    ]  # fmt: skip
    assert [x["name"] for x in about["outputs"]] == ["scores", "decoded"]
    words, numbers = ["left", "straight"], np.array([[0.5, 1], [0, 0]], np.float32)
    with torch.no_grad():
        expected = dsgd.load(served.runs / "own").module()(words, torch.from_numpy(numbers))["scores"]
    for in_bytes in (True, False):
        given = [
            tensor("words", np.array(words, object), "BYTES", in_bytes),
            tensor("numbers", numbers, "FP32", in_bytes),
        ]
        wanted = [triton.InferRequestedOutput(name, binary_data=in_bytes) for name in ("decoded", "scores")]
        found = client.infer("answering", given, outputs=wanted)
        says = [WORDS[i] for i in expected.argmax(1)]
        said = found.as_numpy("decoded")
        assert [word.decode() if isinstance(word, bytes) else word for word in said] == says
        np.testing.assert_allclose(found.as_numpy("scores"), expected, atol=1e-6)
    with pytest.raises(InferenceServerException, match="inputs: answering cannot compute them"):
        client.infer("answering", [tensor("words", np.array(["up", "up"], object), "BYTES", True), given[1]])
    client.close()


def writer(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


def test_openais_client_gets_the_text_that_sample_prints(served: Served) -> None:
    """For each version, seed and temperature, longer than the context too, streamed or not."""
    client, context = writer(served), 64
    assert [model.id for model in client.models.list()] == ["gpt", "text@4", "text@5"]
    assert client.models.retrieve("text@4").id == "text@4"
    for name, temperature, tokens in (
        ("text@4", 1.0, context + 20),
        ("text@5", 0.0, 10),
        ("text@5", 0.7, 30),
    ):
        run = dsgd.load(f"{served.runs}/{name}" if name == "text@4" else served.runs / "text")
        expected = run.sample("To be", tokens=tokens, temperature=temperature, seed=7)
        how: Any = {"prompt": "To be", "max_tokens": tokens, "temperature": temperature, "seed": 7}
        whole = client.completions.create(model=name, **how)
        assert whole.model == name
        assert whole.choices[0].text == expected
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, tokens)
        parts = [*client.completions.create(model=name, stream=True, **how)]
        assert "".join(part.choices[0].text for part in parts) == expected
        assert [part.choices[0].finish_reason for part in parts if part.choices[0].finish_reason] == [
            "length"
        ]


def test_many_texts_are_written_together_as_each_alone(served: Served) -> None:
    """Three prompts, two texts of each, more than one connection: each is what its seed gives alone."""
    client, prompts = writer(served), ["To be", "O", "Now is the winter of our discontent, "]
    run = dsgd.load(served.runs / "text")
    expected = [run.sample(prompts[i // 2], tokens=40, temperature=1, seed=50 + i) for i in range(6)]

    def ask(found: list[Any]) -> None:
        how: Any = {"prompt": prompts, "n": 2, "max_tokens": 40, "seed": 50}
        found.append([choice.text for choice in client.completions.create(model="gpt", **how).choices])

    answers: list[Any] = []
    threads = [threading.Thread(target=ask, args=[answers]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 4


def test_a_text_ends_before_a_stop_and_is_never_sent_beyond_it(served: Served) -> None:
    """Also where the stop comes in parts; without a stop in it, the text is whole."""
    client = writer(served)
    how: Any = {"model": "gpt", "prompt": "To be", "max_tokens": 60, "seed": 5}
    text = client.completions.create(**how).choices[0].text
    at = next(i for i in range(20, 50) if "\ufffd" not in text[i : i + 2] and text.find(text[i : i + 2]) == i)
    stop = text[at : at + 2]
    for stream in (False, True):
        found: Any = client.completions.create(stop=[stop, "never"], stream=stream, **how)
        choices = [part.choices[0] for part in (found if stream else [found])]
        assert "".join(choice.text for choice in choices) == text[:at]
        assert choices[-1].finish_reason == "stop"
    assert client.completions.create(stop="never", **how).choices[0].text == text


def test_logprobs_are_those_of_the_model(served: Served) -> None:
    """Before the temperature, of the token that was drawn and of the most probable ones."""
    how: Any = {"model": "gpt", "prompt": "To be", "max_tokens": 3, "temperature": 0, "logprobs": 2}
    found = writer(served).completions.create(**how).choices[0]
    ids = list(b"To be")
    module = dsgd.load(served.runs / "text").module()
    assert found.logprobs
    for i in range(3):
        with torch.no_grad():
            logprobs = module(torch.tensor([ids]))[0, -1].log_softmax(0)
        values, most = logprobs.topk(2)
        ids.append(int(most[0]))
        assert found.logprobs.token_logprobs[i] == pytest.approx(float(values[0]), abs=1e-5)
        top = found.logprobs.top_logprobs[i]
        assert sorted(top.values()) == pytest.approx(sorted(values.tolist()), abs=1e-5)
    assert found.logprobs.text_offset == [0, 1, 2]


def test_a_nucleus_leaves_out_what_is_improbable(served: Served) -> None:
    """With a top_p that the most probable token alone reaches, the text is that of temperature 0."""
    how: Any = {"model": "gpt", "prompt": "To be", "max_tokens": 20, "seed": 3}
    client = writer(served)
    greedy = client.completions.create(temperature=0, **how).choices[0].text
    assert client.completions.create(top_p=1e-6, **how).choices[0].text == greedy
    assert client.completions.create(top_p=1.0, **how).choices[0].text != greedy


ONE = {
    "inputs": [
        {"name": "words", "shape": [1], "datatype": "BYTES", "data": ["left"]},
        {"name": "numbers", "shape": [1, 2], "datatype": "FP32", "data": [0, 1]},
    ]
}


def test_requests_that_share_a_batch_get_the_rows_of_their_own(runs: Path) -> None:
    """One, two and three rows are computed in one batch, and each request gets what the module gives it."""
    meters = Meters()
    version = LoadedVersion(trained_run(f"{runs}/images"), ServeOptions(runs=()), meters)
    parts = [torch.rand(rows, 1, 8, 8) for rows in (1, 3, 2, 1)]
    module = dsgd.load(runs / "images").module()

    async def play() -> list[dict[str, Any]]:
        running = asyncio.create_task(version.run())
        found = await asyncio.gather(*(version.answer({"input": part}) for part in parts))
        running.cancel()
        return found

    answers = asyncio.run(play())
    for part, answer in zip(parts, answers, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(answer["output"], module(part), atol=1e-6, rtol=0)
    labels = {"model": version.model, "version": version.name}
    assert meters.registry.get_sample_value("dsgd_serve_batch_rows_count", labels) == 1


def test_parameters_are_pages_of_the_records_file(runs: Path) -> None:
    """This holds for a run that has ended and for a checkpoint: replicas share the memory of the weights."""
    for source in (runs / "text", f"{runs}/text@4", runs / "own"):
        run = trained_run(str(source), mapped=True)
        module = run.call().module
        assert all(np.shares_memory(p.detach().numpy(), run.weights) for p in module.parameters())
        base: Any = run.weights
        while not isinstance(base, mmap.mmap):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        alone = dsgd.load(source).module().state_dict()
        assert all(torch.equal(tensor, alone[name]) for name, tensor in module.state_dict().items())


GOOD = {"name": "input", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0] * 64}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 422, "the body: Input data was truncated"),
        (b'{"inputs": [{"name": "input", "data": ' + b"[" * 100_000, 422, "the body: .*recursion"),
        ({}, 422, "the body: .*`inputs`"),
        ({"inputs": []}, 422, "inputs: input must be there"),
        ({"inputs": [GOOD, GOOD]}, 422, r"inputs\[1\].name: must be one of input, each once"),
        ({"inputs": [GOOD | {"name": "x"}]}, 422, r"inputs\[0\].name: must be one of input"),
        ({"inputs": [GOOD | {"datatype": "FP64"}]}, 422, r"inputs\[0\].datatype: input is FP32, not FP64"),
        ({"inputs": [GOOD | {"shape": [1, 64]}]}, 422, r"inputs\[0\].shape: input is \[-1, 1, 8, 8\], not"),
        ({"inputs": [GOOD | {"shape": [0, 1, 8, 8], "data": []}]}, 422, r"inputs\[0\].shape: input is"),
        ({"inputs": [GOOD | {"shape": ["1"]}]}, 422, r"the body: Expected `int`.*shape"),
        ({"inputs": [GOOD | {"data": [0] * 63}]}, 422, r"inputs\[0\].data: has 63 values"),
        ({"inputs": [GOOD | {"data": ["0"] * 64}]}, 422, r"inputs\[0\].data: must be numbers, for FP32"),
        ({"inputs": [GOOD | {"data": [[0], [0, 0]]}]}, 422, r"inputs\[0\].data: must be a flat list"),
        ({"inputs": [GOOD | {"data": [None] * 64}]}, 422, r"inputs\[0\].data: must be numbers"),
        ({"inputs": [GOOD | {"data": None}]}, 422, r"inputs\[0\].data: "),
        (
            {"inputs": [GOOD | {"parameters": {"binary_data_size": 256}}]},
            422,
            r"inputs\[0\].parameters.binary_data_size: must be bytes behind the JSON, not 256",
        ),
        ({"inputs": [GOOD], "outputs": [{"name": "x"}]}, 422, "outputs: must be among output, not x"),
    ],
)
def test_what_is_wrong_with_a_request_is_one_line(
    served: Served, body: Any, status: int, message: str
) -> None:
    """It names the field and the rule, and the next request is answered."""
    found = asked(served.url, "/v2/models/digits_cnn/infer", body)
    assert found[0] == status
    error = json.loads(found[1])["error"]
    assert re.match(message, error), error
    assert "\n" not in error
    assert asked(served.url, "/v2/models/digits_cnn/infer", {"inputs": [GOOD]})[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v2/models/none", None, 404, "model none: is not served; there are digits_cnn, gpt, answering"),
        ("/v2/models/gpt/versions/text@3", None, 404, "version text@3: .*; gpt has text@4, text@5"),
        ("/v2/models/gpt/versions/text@3/infer", {"inputs": []}, 404, "version text@3: is not served"),
        ("/v1/completions", {"model": "images@5"}, 404, "model: must be one of gpt, text@4, text@5"),
        ("/v1/completions", {"model": "gpt", "n": "two"}, 422, "n: .*integer"),
        ("/v1/completions", {"model": "gpt", "prompt": ""}, 422, "prompt.*at least 1 character"),
        ("/v1/completions", {"model": "gpt", "top_p": 0}, 422, "top_p: .*greater than 0"),
        ("/v1/completions", {"model": "gpt", "echo": True}, 422, "echo: .*False"),
        ("/v1/completions", {"model": "gpt", "tools": []}, 422, "tools: .*not permitted"),
        ("/v1/completions", b"{", 422, "the body: JSON decode error"),
        ("/v1/nothing", None, 404, "Not Found"),
        ("/v2/models/gpt/infer", None, 405, "Method Not Allowed"),
    ],
)
def test_what_is_not_there_is_one_line_in_the_form_of_the_interface(
    served: Served, path: str, body: Any, status: int, message: str
) -> None:
    """/v1 answers as OpenAI does, all else as the Open Inference Protocol says."""
    found = asked(served.url, path, body)
    assert found[0] == status
    error = json.loads(found[1])["error"]
    assert re.match(message, error["message"] if path.startswith("/v1") else error), error


def test_only_this_machines_names_are_answered(served: Served) -> None:
    """A page from elsewhere, whose name was made to resolve to this machine, reads nothing."""
    assert asked(served.url, "/v2", Host="evil.example")[0] == 400


def test_metrics_count_what_was_answered(served: Served) -> None:
    """By model, version and status: what a client has asked, and its rows and tokens."""
    labels = {"model": "gpt", "version": "text@4"}

    def value(name: str, **more: str) -> float:
        families = text_string_to_metric_families(asked(served.url, "/metrics")[1])
        samples = [s for f in families for s in f.samples if s.name == name and s.labels == labels | more]
        return samples[0].value if samples else 0.0

    def values() -> list[float]:
        names = "request_seconds_count", "first_token_seconds_count", "tokens_total", "batch_rows_sum"
        counted = [value(f"dsgd_serve_{name}") for name in names]
        return [*counted, value("dsgd_serve_requests_total", status="200")]

    before = values()
    writer(served).completions.create(model="text@4", prompt="O", max_tokens=6)
    assert [b - a for a, b in zip(before, values(), strict=True)] == [1, 1, 6, 6, 1]
    assert value("dsgd_serve_queue_length") == 0


def test_the_page_describes_every_path(served: Served) -> None:
    """OpenAPI has both interfaces, with the form of a request."""
    described = json.loads(asked(served.url, "/openapi.json")[1])
    assert {"/v2/models/{model}/infer", "/v1/completions", "/metrics"} <= described["paths"].keys()
    schemas = described["components"]["schemas"]
    assert schemas["InferRequest"]["required"] == ["inputs"]
    assert "temperature" in schemas["CompletionRequest"]["properties"]


@needs("chromium")
def test_the_page_needs_no_other_site_and_sends_the_token(runs: Path, browser: Any) -> None:
    """In a browser it shows the interfaces, loads nothing from elsewhere, and asks with the token."""
    with in_this_process(runs / "images", token="secret") as url:
        page, loaded = browser.new_page(), list[str]()
        page.on("request", lambda request: loaded.append(request.url))
        page.goto(f"{url}/docs")
        page.get_by_role("button", name="Authorize").click()
        page.get_by_label("Value:").or_(page.locator("section input")).first.fill("secret")
        page.locator(".auth-btn-wrapper .authorize").click()
        page.locator(".btn-done").click()
        page.locator("#operations-OpenAI-list_models_v1_models_get").click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        page.locator(".live-responses-table").get_by_text('"object": "list"').wait_for()
        page.close()
    assert loaded
    assert all(address.startswith((url, "data:")) for address in loaded)


def test_a_server_lives_while_a_batch_computes_and_answers_it_before_it_ends(
    runs: Path, tmp_path: Path
) -> None:
    """Health is answered while a module hangs; after SIGTERM what was accepted still is; the code is 0."""
    hold = tmp_path / "hold"
    found: list[Any] = []
    with serving(runs / "own", env={**os.environ, "HOLD": str(hold)}) as (url, process):
        hold.touch()
        path = "/v2/models/answering/infer"
        thread = threading.Thread(target=lambda: found.append(asked(url, path, ONE)))
        thread.start()
        wait_for(
            lambda: 'batch_rows_count{model="answering",version="own@5"} 1.0' in asked(url, "/metrics")[1]
        )
        assert asked(url, "/v2/health/live")[0] == 200
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # it has stopped to listen by now, or will: either way the answer comes
        assert process.poll() is None
        hold.unlink()
        assert process.wait(PATIENCE_S) == 0
        thread.join()
    assert found[0][0] == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{runs}/none", "serve {runs}/none: there is no such folder"),
        ("{runs}", "serve {runs}: is not a run record"),
        ("{runs}/text@3", "serve {runs}/text@3: has no checkpoint of that version; it has 2, 4, 5"),
        ("{runs}/none --host 0.0.0.0", "--host 0.0.0.0: others reach it there; give --token"),
        ("{runs}/none --port {taken}", "--port {taken}: cannot listen at 127.0.0.1 .*choose another port"),
        ("", "serve: RUN... is missing"),
        ("{runs}/images {runs}/images", "images@5: is there twice, as a version of digits_cnn"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    runs: Path, served: Served, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    """Before a module is loaded, and with exit code 2."""
    taken = served.url.rpartition(":")[2]
    assert main(["serve", "--port", "0", *arguments.format(runs=runs, taken=taken).split()]) == 2
    error = capsys.readouterr().err
    assert re.match(f"main.py: {message.format(runs=runs, taken=taken)}", error), error
    assert error.count("\n") == 1


@pytest.mark.parametrize("workload", ["quadratic", "none"])
def test_a_run_that_trains_no_module_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workload: str
) -> None:
    run = dsgd.run("ssgd", workload=workload, steps=2, out=tmp_path, compute_time="constant:1", **SMALL)
    assert main(["serve", "--port", "0", str(run.path)]) == 2
    assert re.search(f"{run.path}: --workload {workload} has no module\n$", capsys.readouterr().err)


def test_a_token_is_needed_for_all_but_health_metrics_and_the_page(runs: Path) -> None:
    """Without it, a server answers what probes and Prometheus ask, and the page that asks for it."""
    with in_this_process(runs / "images", token="secret") as url:
        for path in ("/v2", "/v1/models", "/v2/models/digits_cnn"):
            assert asked(url, path)[0] == 401
            assert asked(url, path, Authorization="Bearer other")[0] == 401
            assert asked(url, path, Authorization="Bearer secret")[0] == 200
        for path in ("/v2/health/live", "/v2/health/ready", "/metrics", "/docs", "/openapi.json"):
            assert asked(url, path)[0] == 200


def test_a_request_is_held_to_its_limits(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too long, too late, or too many, is answered as that, and what was there before is not lost."""
    hold = tmp_path / "hold"
    monkeypatch.setenv("HOLD", str(hold))
    path, found = "/v2/models/answering/infer", list[tuple[int, str]]()
    limits: dict[str, Any] = {"max_body_mb": 0.001, "max_queue": 2, "max_batch": 1, "timeout_s": 2.0}
    with in_this_process(runs / "own", **limits) as url:
        assert asked(url, path, b" " * 1100)[0] == 413
        hold.touch()
        threads = [threading.Thread(target=lambda: found.append(asked(url, path, ONE))) for _ in range(6)]
        for thread in threads:
            thread.start()
        wait_for(lambda: [status for status, _ in found].count(503) == 3)  # one computes, and two wait
        for thread in threads:
            thread.join()
        hold.unlink()
        assert sorted(status for status, _ in found) == [503] * 3 + [504] * 3
        assert {json.loads(text)["error"] for _, text in found} == {
            "too many requests wait", "there was no answer within 2 s"
        }  # fmt: skip
        assert wait_for(lambda: asked(url, path, ONE)[0] == 200)


def test_a_workload_that_has_changed_is_served_as_it_was_trained(tmp_path: Path) -> None:
    """With a note of which lines are others now."""
    file = tmp_path / "mine.py"
    file.write_text(OWN.read_text())
    run = dsgd.run("ssgd", workload=str(file), steps=2, out=tmp_path / "runs", **SMALL)
    assert run.path
    lines = file.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "self.scores = " in line)
    file.write_text("\n".join(["# mine", *lines[:at], lines[at].replace("8", "9"), *lines[at + 1 :]]))
    version = LoadedVersion(trained_run(str(run.path)), ServeOptions(runs=()), Meters())
    assert version.notes == [
        f"mine.py has changed since (lines 1, {at + 2}); the file that was trained is served"
    ]
    assert version._call.module.get_submodule("scores").weight.shape == (3, 8)
