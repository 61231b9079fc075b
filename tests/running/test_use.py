"""What was trained, used: loaded from its record, evaluated and exported."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import ROOT
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

import dsgd
from dsgd.data import DatasetShard
from dsgd.models.networks.sampling import Sampler, bytes_of, text_of
from dsgd.models.objectives.module_objective import ModuleObjective
from main import main

TIED_WITH_STATISTICS = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from dsgd import Problem

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.normal = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.full((8,), 2.0), requires_grad=False)

    def forward(self, x):
        return self.head(self.drop(self.normal(self.embed(x)) * self.scale))

def make():
    x = torch.arange(280) % 7
    return Problem(
        Tied(), lambda module, x, y: cross_entropy(module(x), y), (x, (x + 1) % 7), (x, (x + 1) % 7),
        lambda module, x, y: (module(x).argmax(1) == y).float().mean(),
    )
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dsgd.Result:
    """Train on a user's file with tied weights, a frozen one, dropout and batch normalization."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "mine.py").write_text(TIED_WITH_STATISTICS)
    return dsgd.run("asgd", workload=str(folder / "mine.py"), out=folder / "runs", run_name="a", **SMALL)


SMALL: dict[str, Any] = {"engine": "sim", "num_workers": 2, "steps": 40, "compute_time": "exponential:1"}


@pytest.fixture
def run(trained: dsgd.Result, tmp_path: Path) -> Path:
    """Return a copy of its record, which a test may damage."""
    assert trained.path
    return shutil.copytree(trained.path, tmp_path / "a")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit code of a command, and what it printed: its page, or its one line of an error."""
    capsys.readouterr()
    code = main(arguments)
    out, err = capsys.readouterr()
    assert not (out and err)
    return code, out or err


def test_a_loaded_module_has_the_loss_that_the_run_reported(trained: dsgd.Result) -> None:
    """Computed by hand on its module, too: weights and statistics are those of the last evaluation."""
    loaded = dsgd.load(trained)
    problem, module = loaded.problem(), loaded.module()
    assert not module.training
    found = loaded.evaluate()
    assert found.loss == trained.loss
    assert loaded.evaluate() == found
    with torch.no_grad():
        assert float(problem.loss(module, *problem.test)) == pytest.approx(found.loss, rel=1e-6)
        assert problem.score
        assert float(problem.score(module, *problem.test)) == pytest.approx(found.accuracy)


def test_loading_leaves_the_generator_alone(trained: dsgd.Result) -> None:
    """A notebook's own draws do not depend on whether it has loaded a run."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    dsgd.load(trained).module()
    assert torch.equal(torch.rand(3), expected)


def test_the_trained_weights_are_in_the_module_and_frozen_ones_stay(trained: dsgd.Result) -> None:
    """The flat vector is the module's trained parameters in their order; tied ones are still one."""
    loaded = dsgd.load(trained)
    module: Any = loaded.module()
    assert np.array_equal(ModuleObjective(loaded.problem()._replace(module=module)).initial_weights(0),
                          loaded.weights)  # fmt: skip
    assert module.head.weight is module.embed.weight
    assert torch.equal(module.scale, torch.full((8,), 2.0))
    assert not loaded.weights.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        loaded.weights[0] = 0
    first = loaded.problem().module.state_dict()["embed.weight"]
    assert not torch.equal(first, module.embed.weight)


@pytest.mark.parametrize("options", [{}, {"workload": "digits"}, {"workload": "digits", "hidden": "none"}])
def test_a_built_in_classifier_is_an_equal_module(options: dict[str, Any], tmp_path: Path) -> None:
    """Linear layers of torch with the run's weights have the hand-written loss and its gradient."""
    result = dsgd.run("ssgd", out=tmp_path, **SMALL | {"steps": 10}, **options)
    loaded = dsgd.load(result)
    module, problem = loaded.module(), loaded.problem()
    assert isinstance(module, nn.Sequential)
    assert problem.score
    test = [torch.as_tensor(array) for array in problem.test]
    found = loaded.evaluate()
    assert found.loss == result.loss
    assert problem.loss(module, *test).item() == pytest.approx(found.loss, rel=1e-5)
    assert problem.score(module, *test).item() == pytest.approx(found.accuracy)
    hand = loaded._built_in.objective
    (shard,) = DatasetShard.on_device(cast("list[DatasetShard]", loaded._built_in.shards[:1]), "cpu")
    w = torch.from_numpy(np.array(loaded.weights))[None]
    _, gradient = hand.loss_and_gradient(w, [shard], [0])
    x, y = shard.batches([shard], [0])
    problem.loss(module, x[0], y[0]).backward()
    matrices = [p.grad.T if p.dim() == 2 else p.grad for p in module.parameters() if p.grad is not None]
    torch.testing.assert_close(torch.cat([g.flatten() for g in matrices]), gradient[0])


def test_the_code_is_that_of_the_record(trained: dsgd.Result, run: Path) -> None:
    """With the user's file changed or gone, a run loads from its own copy, and says the same."""
    mine = Path(trained.options["workload"])
    expected = dsgd.load(run).evaluate()
    text = mine.read_text()
    try:
        assert dsgd.load(run).cfg.data.workload == str(mine)
        mine.write_text("raise RuntimeError")
        assert dsgd.load(run).evaluate() == expected
        mine.unlink()
        assert dsgd.load(run).cfg.data.workload == str(run / "workload.py")
        assert dsgd.load(run).evaluate() == expected
    finally:
        mine.write_text(text)


def test_a_run_that_has_not_ended_has_the_weights_of_its_newest_checkpoint(
    tmp_path: Path, trained: dsgd.Result
) -> None:
    """Any checkpoint is there by its version; one that is damaged is passed over."""
    options = SMALL | {"workload": trained.options["workload"], "checkpoint_every": "1"}
    path = tmp_path / "b"
    dsgd.run("ssgd", out=tmp_path, run_name="b", **options)
    no_summary(path)  # as after a kill
    loaded = dsgd.load(path)
    *_, older, newest = sorted(int(file.name[:8]) for file in (path / "checkpoints").iterdir())
    assert (loaded.version, loaded.ended) == (newest, False)
    assert dsgd.load(f"{path}@{older}").version == older
    assert not np.array_equal(dsgd.load(f"{path}@{older}").weights, loaded.weights)
    (file,) = (path / "checkpoints").glob(f"{newest:08d}-*")
    file.write_bytes(file.read_bytes()[:-1])
    assert dsgd.load(path).version == older
    passed_over = f"version {older}, of a checkpoint; 1 newer checkpoint is damaged"
    assert passed_over in dsgd.load(path).in_words
    assert passed_over in dsgd.load(f"{path}@newest").in_words
    for file in (path / "checkpoints").iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"has no whole checkpoint \(\d damaged\)"):
        dsgd.load(f"{path}@newest")
    last = trained.path
    assert last
    (last / "checkpoints").mkdir()
    (last / "checkpoints" / file.name).write_bytes(b"")
    assert "the last of the run; 1 checkpoint is damaged" in dsgd.load(f"{last}@newest").in_words
    shutil.rmtree(last / "checkpoints")


def test_an_export_is_the_state_dict(
    trained: dsgd.Result, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other programs load it by name: tied weights once, statistics included, the run in the metadata."""
    file, loaded = tmp_path / "x.safetensors", dsgd.load(trained)
    code, page = said(capsys, "export", str(run), str(file))
    assert code == 0
    assert f"{file}: 7 tensors" in page
    module = loaded.module()
    with safe_open(file, "pt") as opened:
        assert set(opened.keys()) == module.state_dict().keys() - {"head.weight"}
        assert opened.metadata() == {
            "run": "a", "mode": "asgd", "trained_on": "mine", "version": "80",
            "weights_sha256": trained.summary["weights_sha256"], "head.weight": "embed.weight",
        }  # fmt: skip
    fresh = loaded.problem().module
    load_model(fresh, file)
    for name, tensor in module.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor), name


def test_an_export_without_tied_weights_loads_strictly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """load_state_dict(load_file(FILE)) needs nothing else; a file that is there stays unless asked."""
    result = dsgd.run("ssgd", out=tmp_path, workload="digits_cnn", **SMALL | {"steps": 2})
    file, loaded = tmp_path / "x.safetensors", dsgd.load(result)
    assert said(capsys, "export", str(result.path), str(file))[0] == 0
    fresh = loaded.problem().module
    fresh.load_state_dict(load_file(file), strict=True)
    x = loaded.problem().test[0][:5]
    assert torch.equal(fresh.eval()(x), loaded.module()(x))
    file.write_bytes(b"mine")
    code, line = said(capsys, "export", str(result.path), str(file))
    assert code == 2
    assert line.endswith(f"export {file}: is there already; name another file, or give --overwrite\n")
    assert file.read_bytes() == b"mine"
    assert said(capsys, "export", str(result.path), str(file), "--overwrite")[0] == 0
    assert load_file(file).keys() == fresh.state_dict().keys()


def test_an_evaluation_is_printed(
    run: Path, trained: dsgd.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints the run, its weights, the loss and the score."""
    code, page = said(capsys, "evaluate", str(run))
    assert code == 0
    assert "asgd on sim, 2 workers, mine" in page
    assert "of version 80, the last of the run" in page
    assert f"loss      {trained.loss:.6g}\n" in page
    assert re.search(r"accuracy  \d+\.\d\d%", page)
    found = json.loads(said(capsys, "evaluate", str(run), "--json")[1])
    assert (found["loss"], f"{found['accuracy']:.2%}") == (trained.loss, page.split()[-1])
    assert (found["run"], found["on"], found["bits_per_byte"]) == (str(run), None, None)


def test_a_score_goes_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the end of a run, in lists, evaluations and reports: R² is not called accuracy, and is no share."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "from dsgd import Problem\n"
        "def r2(m, x, y): return y.square().sum() - (m(x) - y).square().sum(), y.square().sum()\n"
        "def loss(m, x, y): return (m(x) - y).square().mean()\n"
        "def make():\n"
        "    x = torch.randn(200, 3)\n"
        "    data = (x, x.sum(1, keepdim=True))\n"
        "    return Problem(torch.nn.Linear(3, 1), loss, data, data, score=r2, score_name='R²')\n"
    )
    command = f"--engine sim --workload {file} --num-workers 2 --steps 50 --out {tmp_path} --run-name r"
    page = said(capsys, *command.split())[1]
    score = dsgd.load(tmp_path / "r").evaluate().accuracy
    assert f"R² {score:.4g}" in page
    assert f"R² {score:.4g}" in said(capsys, "list", str(tmp_path))[1]
    assert re.search(rf"^R²\s+{score:.4g}$", said(capsys, "evaluate", str(tmp_path / "r"))[1], re.MULTILINE)
    said(capsys, "report", str(tmp_path / "r"))
    assert "R²" in (tmp_path / "r/report.html").read_text()


def test_a_run_in_s3_is_used_from_there(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its weights and its workload's file are fetched; no other copy is needed."""
    Path("mine.py").write_text((ROOT / "tests/workloads/tiny.py").read_text())
    options = SMALL | {"steps": 2}
    result = dsgd.run("ssgd", workload="mine.py", out="s3://lab/may", run_name="c", **options)
    assert result.path
    shutil.rmtree(result.path)
    Path("mine.py").unlink()
    assert dsgd.load("s3://lab/may/c").evaluate().loss == result.loss
    assert f"loss      {result.loss:.6g}" in said(capsys, "evaluate", "s3://lab/may/c")[1]
    with_last = json.loads(said(capsys, "evaluate", "s3://lab/may/c@newest", "--json")[1])
    assert (with_last["version"], with_last["ended"]) == (2, True)  # there is no checkpoint
    kept = dsgd.run(
        "ssgd", workload=ROOT / "tests/workloads/tiny.py", out="s3://lab/may", run_name="e",
        checkpoint_every="s3=1000", **options,
    )  # fmt: skip
    assert kept.path
    shutil.rmtree(kept.path)
    for version in ("newest", "2"):
        found = json.loads(said(capsys, "evaluate", f"s3://lab/may/e@{version}", "--json")[1])
        assert (found["version"], found["ended"]) == (2, False)
        assert found["loss"] == pytest.approx(kept.loss)
    code, line = said(capsys, "evaluate", "s3://lab/may/d")
    assert code == 2
    assert "evaluate s3://lab/may/d: holds no records" in line


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a language model of letters on a text that is abcd again and again."""
    folder = tmp_path_factory.mktemp("language")
    options = SMALL | {"workload": str(ROOT / "tests/workloads/words.py"), "lr": 100.0, "batch_size": 8}
    path = dsgd.run("ssgd", out=folder, run_name="words", **options).path
    assert path
    return path


def test_a_language_model_continues_a_text(language: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has learned the text; the same seed draws the same, another seed something else."""
    code, text = said(capsys, "sample", str(language), "--prompt", "cd", "--tokens", "10")
    assert (code, text) == (0, "cdabcdabcdab\n")
    hot = ["sample", str(language), "--prompt", "a", "--temperature", "20", "--tokens", "40"]
    drawn = [said(capsys, *hot, "--seed", seed)[1] for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    run = dsgd.load(language)
    assert run.sample("a", tokens=6, temperature=0) == "bcdabc"


def test_a_model_sees_no_more_than_its_context() -> None:
    """What lies further back than the context has no influence, and what is within has."""

    class First(nn.Module):
        """Predicts the oldest byte that it sees."""

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(ids[:, :1].expand_as(ids), 256) * 99.0

    sampler = Sampler(context=3, encode=bytes_of, decode=text_of)
    made = sampler(First(), "abcde", tokens=7, temperature=1, seed=0)
    assert made == "cdecdec"
    assert (
        Sampler(context=9, encode=bytes_of, decode=text_of)(First(), "abc", tokens=3, temperature=0, seed=0)
        == "aaa"
    )


def test_bytes_that_are_no_letter_become_a_mark() -> None:
    """A text that ends in half a letter is still a text."""
    assert text_of(bytes_of("naïve")) == "naïve"
    assert text_of(bytes_of("naï")[:-1]) == "na\ufffd"


def test_a_run_is_evaluated_on_another_file(
    language: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The workload reads it in place of its --data; its own test data are found again without."""
    same, other = tmp_path / "same.txt", tmp_path / "other.txt"
    same.write_text("abcd" * 400)
    other.write_text("dcba" * 400)
    run = dsgd.load(language)
    assert run.evaluate(on=same) == run.evaluate()
    assert run.evaluate(on=other).loss > 2 * run.evaluate().loss
    for text, why in (("wxyz", "learns other tokens from"), ("abc", "makes another module for")):
        (tmp_path / "no.txt").write_text(text * 400)
        with pytest.raises(ValueError, match=f"words {why} {tmp_path}/no.txt"):
            run.evaluate(on=tmp_path / "no.txt")
    code, page = said(capsys, "evaluate", str(language), "--on", str(other))
    assert code == 0
    found = run.evaluate(on=other)
    assert f"data      {other}\nloss      {found.loss:.6g}\n" in page
    assert f"text      {found.loss / np.log(2):.4g} bits a byte, perplexity {np.exp(found.loss):.4g}" in page


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate RUN --on none.txt", "FileNotFoundError: [Errno 2] No such file or directory"),
        ("evaluate RUN --on short.txt", "words.py: 7 tokens: a window of 16 needs one more than that"),
        ("sample RUN --tokens 0", "--tokens 0: must be at least 1"),
        ("sample RUN --temperature -1", "--temperature -1.0: must be finite and at least 0"),
        ("sample RUN --temperature nan", "--temperature nan: must be finite and at least 0"),
        ("sample RUN --seed -1", "--seed -1: must lie in [0, 2^63)"),
        ("sample RUN --seed x", "--seed x: must be a whole number"),
        ("sample RUN --prompt=", "--prompt: is empty; begin the text with a letter"),
        ("sample RUN --prompt ???", "the prompt is empty; begin the text with a letter, or with a"),
        ("sample RUN --promt x", "--promt: is not an option of sample; did you mean --prompt?"),
    ],
)
def test_a_mistake_with_a_language_model_is_one_line(
    command: str, message: str, language: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The message names the option, or the line of the workload's file."""
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("abcdefgh")
    code, line = said(capsys, *command.replace("RUN", str(language)).split())
    assert (code, line.count("\n")) == (2, 1)
    assert message in line


def test_a_function_of_the_workload_that_fails_is_one_line(language: Path) -> None:
    """The message names the run, and the line of its file."""
    run = dsgd.load(language)

    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("no")

    vars(run)["_problem"] = run.problem()._replace(sample=broken, score=broken)
    for use in (lambda: run.sample("a"), run.evaluate):
        with pytest.raises(ValueError, match=f"{language}: its .*KeyError: 'no'"):
            use()


def test_weights_that_are_not_finite_sample_nothing(language: Path) -> None:
    """A run that diverged says so, where it would draw from what is no distribution."""
    run = dsgd.load(language)
    broken = replace(run, weights=np.full_like(run.weights, np.nan))
    with pytest.raises(ValueError, match="predictions are not finite; its run has diverged"):
        broken.sample("a")


def no_summary(run: Path) -> None:
    for name in ("summary.json", "weights.npy"):
        (run / name).unlink()


def other_weights(run: Path) -> None:
    np.save(run / "weights.npy", np.load(run / "weights.npy") + 1)


def half_of_the_weights(run: Path) -> None:
    (run / "weights.npy").write_bytes((run / "weights.npy").read_bytes()[:100])


def another_file(run: Path) -> None:
    (run / "workload.py").write_text("def make(): raise RuntimeError")


def no_file(run: Path) -> None:
    (run / "workload.py").unlink()


def no_options(run: Path) -> None:
    (run / "config.yaml").write_text("mode: asgd\nstepz: 3\n")


DAMAGE: dict[Callable[[Path], None], str] = {
    shutil.rmtree: "{run}: there is no such folder; give the folder of a run",
    no_summary: "{run}: its run has not ended and has no whole checkpoint; wait for its end, or run with "
    "--checkpoint-every",
    other_weights: "{run}/weights.npy: its weights do not have the digest in summary.json; the record is",
    half_of_the_weights: "{run}/weights.npy: cannot be read (",
    another_file: "{run}/workload.py: is not the file that was trained (its digest differs)",
    no_file: "{run}/workload.py: cannot be read (No such file or directory); the record is damaged",
    no_options: "{run}/config.yaml: has no engine; the record is from an older version, run it again",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("command", ["evaluate", "export", "sample"])
def test_what_cannot_be_used_is_one_line(
    damage: Callable[[Path], None], command: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is not there, not whole or not what it was is named, with what is wrong; nothing is made."""
    damage(run)
    file = run.parent / "x.safetensors"
    code, line = said(capsys, command, str(run), *([str(file)] if command == "export" else []))
    assert (code, line.count("\n")) == (2, 1)
    assert f": {command} {DAMAGE[damage].format(run=run)}" in line
    assert not file.exists()
    with pytest.raises(ValueError, match=re.escape(DAMAGE[damage].format(run=run))):
        dsgd.load(run)


@pytest.mark.parametrize(
    ("options", "command", "message"),
    [
        ({"workload": "none"}, "evaluate RUN", "--workload none has no weights"),
        ({"workload": "xor"}, "sample RUN", "xor is no language model: its Problem has no `sample`"),
        ({"workload": "digits_cnn"}, "sample RUN", "digits_cnn is no language model: its Problem has no"),
        (
            {"workload": "digits_cnn"},
            "evaluate RUN --on x.npz",
            "digits_cnn has no option --data, so it reads",
        ),
        ({"workload": "quadratic"}, "export RUN FILE", "--workload quadratic has no module"),
        (
            {"workload": "xor"},
            "evaluate RUN --on x.npz",
            "was trained on --workload xor, which reads no files",
        ),
        (
            {"workload": "xor"},
            "export RUN x.pt",
            "export x.pt: is a safetensors file; name it x.safetensors",
        ),
        (
            {"workload": "xor"},
            "export RUN no/x.safetensors",
            "no/x.safetensors: there is no folder no; make",
        ),
        ({"workload": "xor"}, "evaluate RUN --steps 3", "--steps: is not an option of evaluate; see"),
    ],
)
def test_what_a_run_has_not_is_one_line(
    options: dict[str, Any], command: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the run or the option, and why."""
    result = dsgd.run("ssgd", out=tmp_path, **SMALL | {"steps": 2} | options)
    places = {"RUN": str(result.path), "FILE": str(tmp_path / "x.safetensors")}
    code, line = said(capsys, *(places.get(word, word) for word in command.split()))
    assert (code, line.count("\n")) == (2, 1)
    assert message in line
    assert not (tmp_path / "x.safetensors").exists()


def test_another_module_than_the_run_s_is_refused(trained: dsgd.Result, tmp_path: Path) -> None:
    """Where another module is made than was then, of a workload or built in, the message has both sizes."""
    for result, size in ((trained, 72), (dsgd.run("ssgd", out=tmp_path, **SMALL), 65)):
        loaded = dsgd.load(result)
        shorter = replace(loaded, weights=loaded.weights[:-1])
        with pytest.raises(ValueError, match=rf"has {size - 1} weights, and .* makes here {size};"):
            shorter.evaluate()
