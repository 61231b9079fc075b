"""The workloads that ship: they learn, and say how well in the units of their field."""

from __future__ import annotations

import gzip
import json
import lzma
import math
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from dsgd.core.model import Workload
from dsgd.data import make_workload
from dsgd.models.datasets.byte_pairs import BytePairs
from dsgd.models.networks.transformer_sizes import SIZES
from dsgd.models.workloads import make_problem
from dsgd.models.workloads.gpt import Config as GptConfig
from dsgd.records.reader import read_record
from dsgd.records.writer import RunRecord
from dsgd.running.execute import Ended, execute
from dsgd.running.quick_run import config
from dsgd.show.report.build import build_report
from dsgd.strategies import modes
from main import main

TEXT = b"".join(
    b"%s %s %s the %s. " % tuple(words)
    for words in np.random.default_rng(0).choice(
        [b"king", b"queen", b"fool", b"sees", b"hears", b"crown", b"sword", b"night"], (400, 4)
    )
)
SMALL: dict[str, Any] = {"workload": "gpt", "context": 16, "eval_samples": 512, "batch_size": 2}


@pytest.fixture
def text(tmp_path: Path) -> str:
    """Return a file with a text of 12 kilobytes and a vocabulary of nine words."""
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT)
    return str(file)


def gpt(mode: str, text: str, **options: Any) -> Workload:
    return make_workload(config(mode, **SMALL, data=text, **options))


def recorded(text: str, out: Path, name: str, mode: str = "ssgd", **options: Any) -> Ended:
    where = {"out": str(out), "run_name": name}
    cfg = config(mode, **SMALL, data=text, num_workers=2, steps=4, lr=0.1, **where, **options)
    return execute(cfg, record=RunRecord(cfg))


@pytest.mark.crossing(one_in=6)
@pytest.mark.parametrize("mode", modes())
def test_every_mode_trains_the_language_model(mode: str, text: str) -> None:
    """Synchronous and local modes and those with AdamW on the server: held-out text takes fewer bits."""
    adamw = {"optimizer": "adamw", "lr": 3e-3} if hasattr(config(mode), "optimizer") else {"lr": 0.05}
    own = {"diloco": {"lr": 3e-3}, "easgd": {"lr": 0.1}}.get(mode, adamw)
    cfg = config(mode, **SMALL, data=text, num_workers=3, steps=16, compute_time="exponential:1", **own)
    ended = execute(cfg)
    first, last = ended.evaluations[0].found, ended.evaluations[-1].found
    assert first.bits_per_byte == pytest.approx(8, rel=0.05)
    assert last.bits_per_byte is not None
    assert last.bits_per_byte < 7


def test_the_windows_are_the_text_in_order(text: str) -> None:
    """Nine tenths are windows to train on; of the held-out end, evaluations read some from all over it."""
    made = gpt("ssgd", text, num_workers=2)
    cut = len(TEXT) - round(len(TEXT) / 10)
    assert made.about["train"]["samples"] == (cut - 1) // 16
    assert made.about["test"]["samples"] == 512 // 16
    problem = make_problem_of(text)
    x, y = problem.train[2]
    assert bytes(x.astype(np.uint8)) == TEXT[32:48]
    assert bytes(y.astype(np.uint8)) == TEXT[33:49]
    assert bytes(problem.test[0][0].astype(np.uint8)) == TEXT[cut : cut + 16]
    last = cut + 16 * ((len(TEXT) - cut - 1) // 16 - 1)
    assert bytes(problem.test[31][0].astype(np.uint8)) == TEXT[last : last + 16]
    before = make_problem(config("ssgd", **SMALL, data=text, edition=1).data, 0).test
    assert bytes(before[31][1].astype(np.uint8)) == TEXT[cut + 497 : cut + 513]


def make_problem_of(text: str) -> Any:
    return make_problem(config("ssgd", **SMALL, data=text).data, 0)


def test_the_record_has_bits_a_byte_beside_what_compresses_the_text(text: str, tmp_path: Path) -> None:
    """Bits a byte are the loss to base 2, the perplexity e to it; gzip and xz are of the held-out text."""
    ended = recorded(text, tmp_path / "runs", "a")
    record = read_record(tmp_path / "runs/a")
    found = record.summary.eval
    assert found.loss is not None
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2))
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert [e.bits_per_byte for e in record.evals] == [e.found.bits_per_byte for e in ended.evaluations]
    held_out = TEXT[len(TEXT) - round(len(TEXT) / 10) :]
    about = record.meta.workload
    assert about["weights"] == len(ended.weights.vector)
    assert about["gzip_bits_per_byte"] == round(8 * len(gzip.compress(held_out)) / len(held_out), 4)
    assert about["xz_bits_per_byte"] == round(8 * len(lzma.compress(held_out, preset=9)) / len(held_out), 4)


def test_other_records_have_neither(tmp_path: Path) -> None:
    """The loss of a classifier is not of text: its evaluations have no bits a byte."""
    cfg = config("ssgd", steps=2, out=str(tmp_path), run_name="a")
    execute(cfg, record=RunRecord(cfg))
    assert set(json.loads((tmp_path / "a/summary.json").read_text())["eval"]) == {"loss", "accuracy"}
    assert "bits_per_byte" not in (tmp_path / "a/evals.jsonl").read_text()


def test_a_report_and_a_list_are_in_bits_a_byte(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The axis, the answer and the table of a report, and a line of `list`; gzip and xz are in the figure."""
    for name, lr in (("a", 0.1), ("b", 0.2)):
        recorded(text, tmp_path / "runs", name, seed=0 if name == "a" else 1, momentum=lr)
    page = build_report(tmp_path / "runs").read_text()
    about = read_record(tmp_path / "runs/a").meta.workload
    assert "Bits a byte against time" in page
    assert f"gzip {about['gzip_bits_per_byte']:.3g}" in page
    assert f"xz {about['xz_bits_per_byte']:.3g}" in page
    assert "fewest bits a byte" in page
    assert main(["list", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().out.count(" bits a byte after ") == 2


def test_the_option_has_the_sizes_that_there_are() -> None:
    """`--size` takes the names of the table, and no others."""
    (choices,) = [get_args(hint) for name, hint in get_type_hints(GptConfig).items() if name == "size"]
    assert choices == tuple(SIZES)


def test_byte_pairs_are_fewer_tokens_of_the_same_text(text: str) -> None:
    """Tokens are longer than a byte; at the same loss of a uniform guess, text takes fewer bits a byte."""
    made = gpt("ssgd", text, num_workers=1, tokenizer="bpe:270")
    per_token = made.about["bytes_per_token"]
    assert per_token > 1.5
    assert made.about["train"]["samples"] < gpt("ssgd", text, num_workers=1).about["train"]["samples"] / 1.5
    found = made.evaluate(made.objective.initial_weights(0))
    assert found is not None
    assert found.bits_per_byte == pytest.approx(math.log2(270) / per_token, rel=0.05)


def test_byte_pairs_give_the_text_back() -> None:
    """Encoding and decoding are inverse, over the ends of pieces; lengths are those of what ids stand for."""
    whole = ("Füße & naïve 🎭\n" * 9000).encode()
    pairs = BytePairs(whole, 300)
    ids = pairs.encode(whole)
    assert pairs.text_of(ids.tolist()).encode() == whole
    assert pairs.ids_of("naïve 🎭") == pairs.encode("naïve 🎭".encode()).tolist()
    assert pairs.lengths[ids].sum() == len(whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tokenizer": "bpe:256"},
            "--tokenizer bpe:256: must be bytes or bpe:V with a vocabulary V above 256",
        ),
        ({"context": 2000}, "tokens: a window of 2000 needs one more than that"),
        ({"data": "nowhere.txt"}, "--workload gpt: nowhere.txt: there is no such file"),
    ],
)
def test_options_of_the_language_model_that_do_not_fit(
    text: str, options: dict[str, Any], message: str
) -> None:
    """The message names the option or the number."""
    with pytest.raises(ValueError, match="-") as caught:
        make_workload(config("ssgd", **SMALL | {"data": text} | options))
    assert message in str(caught.value)


IMAGES = np.random.default_rng(0).integers(0, 256, (40, 28, 28)).astype(np.uint8)
CLASSES = np.arange(40) % 10


@pytest.mark.parametrize("network", ["cnn", "resnet"])
def test_images_of_a_user_are_trained_and_reported_as_accuracy(network: str, tmp_path: Path) -> None:
    """Files of the same form take the place of those that ship; the record knows their classes."""
    file = str(tmp_path / "images.npz")
    np.savez(file, x=IMAGES, y=CLASSES)
    options: dict[str, Any] = {"workload": "fashion", "data": file, "network": network, "batch_size": 4}
    options |= {"eval_samples": 3}
    where = {"out": str(tmp_path), "run_name": "a"}
    cfg = config("ssgd", **options, num_workers=2, steps=2, **where)
    ended = execute(cfg, record=RunRecord(cfg))
    record = read_record(tmp_path / "a")
    assert 0 <= (ended.evaluations[-1].found.accuracy or 0) <= 1
    assert record.summary.eval.accuracy is not None
    assert record.summary.eval.bits_per_byte is None
    assert record.meta.workload["train"]["samples"] == 36
    assert record.meta.workload["test"]["samples"] == 3
    assert sum(record.meta.workload["train"]["classes"]) == record.meta.workload["train"]["samples"]


def test_the_images_of_evaluations_are_not_the_first_ones(tmp_path: Path) -> None:
    """A file may have them class after class; those of the first edition's runs were."""
    file = str(tmp_path / "images.npz")
    np.savez(file, x=np.repeat(IMAGES, 50, 0), y=np.repeat(CLASSES, 50))
    classes = []
    for edition in (1, 2):
        cfg = config("ssgd", workload="fashion", data=file, eval_samples=100, edition=edition)
        whole = config("ssgd", workload="fashion", data=file, edition=edition)
        first = make_problem(whole.data, 0).test[1][:100]
        found = make_problem(cfg.data, 0).test[1]
        assert len(found) == 100
        classes.append(np.array_equal(found, first))
    assert classes == [True, False]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (IMAGES[:, :8], CLASSES, "has samples of 8 x 28, uint8; give images of 28 x 28 bytes (uint8)"),
        (IMAGES / 255, CLASSES, "has samples of 28 x 28, float64"),
        (IMAGES, CLASSES + 5, "has other labels than 0 to 9; give whole numbers of that range"),
    ],
)
def test_images_of_another_form_are_one_line(x: Any, y: Any, message: str, tmp_path: Path) -> None:
    """The message names the file, what it holds and what is needed."""
    file = str(tmp_path / "images.npz")
    np.savez(file, x=x, y=y)
    with pytest.raises(ValueError, match="workload fashion: ") as caught:
        make_workload(config("ssgd", workload="fashion", data=file, num_workers=2, batch_size=4))
    assert f"--workload fashion: {file}: {message}" in str(caught.value)


def test_ssgd_with_adamw_is_the_model_trained_alone(text: str) -> None:
    """Two workers and the server's AdamW take the steps of torch's own, on mini-batches twice as large."""
    steps, warmup, lr = 12, 3, 3e-3
    options: dict[str, Any] = {**SMALL, "data": text, "num_workers": 2, "steps": steps, "lr": lr}
    cfg = config("ssgd", **options, optimizer="adamw", schedule=f"cosine,warmup={warmup}")
    ended = execute(cfg)

    problem, shards = make_problem(cfg.data, cfg.seed), make_workload(cfg).shards
    parameters = list(problem.module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)
    for step in range(steps):
        done = (step - warmup) / (steps - warmup)
        factor = (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * done))
        optimizer.param_groups[0]["lr"] = lr * factor
        batches: list[Any] = [shard.batch(step) for shard in shards]  # type: ignore[attr-defined]
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        problem.loss(problem.module, x, y).backward()
        optimizer.step()
    alone = torch.cat([parameter.detach().flatten() for parameter in parameters])
    begun = torch.tensor(make_workload(cfg).objective.initial_weights(cfg.seed))
    apart = (torch.tensor(ended.weights.vector) - alone).norm() / (alone - begun).norm()
    assert apart < 1e-4  # of the way
