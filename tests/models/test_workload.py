"""A user's module and data: what every mode, both engines and the flat vector of weights owe it."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

from dsgd.compare.experiment_file import load
from dsgd.core.model import Workload
from dsgd.core.option_rules import options
from dsgd.core.problem import Problem, labels, length, take
from dsgd.data import make_workload
from dsgd.engines.task_values import LoneValues
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.models.workloads import names
from dsgd.process.outcomes import UsageError
from dsgd.records.listing import list_folder
from dsgd.records.schema import RecordError
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.quick_run import config, run, same_bytes
from dsgd.running.replaying import compared, recorded_run
from dsgd.show.report.comparable import groups
from dsgd.show.terminal.cli import parse
from dsgd.show.terminal.resume_option import going_on
from dsgd.strategies import modes

SIZED = str(ROOT / "tests/workloads/sized.py")
TINY = str(ROOT / "tests/workloads/tiny.py")


def workload(**options: Any) -> Workload:
    return make_workload(config("ssgd", workload=TINY, **options))


def gradient(made: Workload, worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and the gradient of one mini-batch at the initial weights."""
    w = torch.from_numpy(made.objective.initial_weights(0))[None]
    loss, g = made.objective.loss_and_gradient(w, [made.shards[worker]], [step])
    return loss[0], g[0]


SAMPLES = (torch.linspace(-1, 1, 120).view(20, 6), torch.arange(20) % 2)


def whole_gradient(problem: Problem) -> torch.Tensor:
    """Return the flat gradient of all training samples at the initial weights."""
    objective, n = ModuleObjective(problem), length(problem.train)
    shard = ProblemShard(0, problem.train, np.arange(n), batch_size=n, seed=0)
    w = torch.from_numpy(objective.initial_weights(0))[None]
    return objective.loss_and_gradient(w, [shard], [0])[1][0]


def test_the_page_shows_the_file() -> None:
    """docs/workloads.md has the code of the workload that it is about, with the import that users write."""
    page = (ROOT / "docs/workloads.md").read_text()
    file = (ROOT / "dsgd/models/workloads/digits_cnn.py").read_text()
    shown = page.partition("```python\n")[2].partition("```\n")[0]
    assert file.replace("from dsgd.core.problem import", "from dsgd import").endswith(shown)
    assert "def make()" in shown


def test_the_names_are_those_of_the_folder() -> None:
    """A workload of the laboratory is trained by its name."""
    assert names() == ("digits_cnn", "fashion", "gpt", "mnist", "moe", "router")
    ran = run("ssgd", workload="digits_cnn", num_workers=2, steps=2)
    assert ran.cfg.data.name == "digits_cnn"
    assert len(ran.w) == 10 * 128 + 10 + 8 * 9 + 8


@pytest.mark.parametrize("mode", modes())
def test_every_mode_trains_it(mode: str) -> None:
    """No strategy knows whose module it trains: each spends its budget, and the loss falls."""
    cfg = config(mode, workload=TINY, num_workers=3, steps=60, lr=0.05, compute_time="exponential:1")
    ended = execute(cfg)
    assert ended.stopped_by == "budget"
    first, last = ended.evaluations[0].found, ended.evaluations[-1].found
    assert last.loss < first.loss
    assert first.accuracy is not None


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_both_engines_give_the_same_bytes() -> None:
    """Dropout and the workers' states included; the file lies where Ray's workers cannot import it."""
    options: dict[str, Any] = {"workload": TINY, "num_workers": 2, "steps": 16}
    assert same_bytes(run("diloco", **options), run("diloco", **options, engine="ray"))


def test_dropout_is_a_function_of_seed_worker_and_step() -> None:
    """The same mini-batch gives the same gradient again; another one another."""
    made = workload(num_workers=2)
    torch.manual_seed(7)
    once = gradient(made, 0, 3)
    torch.manual_seed(8)
    again = gradient(made, 0, 3)
    assert torch.equal(once[1], again[1])
    assert not torch.equal(gradient(workload(num_workers=2, seed=1), 0, 3)[1], once[1])
    shard = made.shards[0]
    assert isinstance(shard, ProblemShard)
    assert len({shard.torch_seed(step) for step in range(50)}) == 50


def test_gradients_computed_together_are_those_computed_alone() -> None:
    """Bit for bit: the simulator computes as many at once as are in flight."""
    made = workload(num_workers=4)
    w = torch.from_numpy(made.objective.initial_weights(0)).expand(4, -1)
    _, together = made.objective.loss_and_gradient(w, made.shards, [0, 1, 2, 3])
    for worker in range(4):
        assert torch.equal(together[worker], gradient(made, worker, worker)[1])


def test_it_is_the_gradient_that_torch_computes() -> None:
    """The flat gradient is that of a plain loop over the module's own parameters."""
    module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    problem = Problem(module, lambda module, x, y: cross_entropy(module(x), y), SAMPLES, SAMPLES)
    plain = torch.autograd.grad(problem.loss(module, *SAMPLES), list(module.parameters()))
    torch.testing.assert_close(whole_gradient(problem), torch.cat([g.flatten() for g in plain]))


def test_an_evaluation_is_a_function_of_the_weights() -> None:
    """Also with batch normalization, whose running statistics follow the mini-batches that were computed."""
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    problem = Problem(module, lambda module, x, y: cross_entropy(module(x), y), SAMPLES, SAMPLES)
    objective = ModuleObjective(problem)
    shard = ProblemShard(0, problem.train, np.arange(20), batch_size=5, seed=0)
    w = objective.initial_weights(0)
    before = objective.evaluate(w)
    for step in range(10):
        objective.loss_and_gradient(torch.from_numpy(w)[None] * 3, [shard], [step])
    assert objective.evaluate(w) == before
    assert before != objective.evaluate(w * np.float32(1.01))
    momentum = objective._replica("cpu").module[1].momentum  # type: ignore[index]
    assert momentum == 0.1


def in_record(folder: Path, **options: Any) -> Path:
    """Return the record of a run on a copy of the file in that folder."""
    file = folder / "mine.py"
    if not file.exists():
        file.write_text(Path(TINY).read_text())
    output = {"out": str(folder / "runs"), "run_name": "r"}
    cfg = config("asgd", workload=str(file), num_workers=2, compute_time="exponential:1", **options, **output)
    ended = execute(cfg, record=RunRecord(cfg))
    assert ended.path
    return ended.path


def test_a_report_names_the_file(tmp_path: Path) -> None:
    """What was learned is in the title of a report and in the name of its folder."""
    path = in_record(tmp_path, steps=2)
    (group,) = groups(list_folder(path.parent).runs)
    assert group.title.startswith("mine · simulator, 2 workers")
    assert group.slug.startswith("mine-sim-w2-")


def test_a_recorded_path_holds_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is named on the command line by a relative path is recorded by its whole path."""
    (tmp_path / "mine.py").write_text(Path(TINY).read_text())
    monkeypatch.chdir(tmp_path)
    cfg = parse(["--workload", "mine.py", "--mode", "ssgd"])
    assert cfg.data.workload == str(tmp_path / "mine.py")


def test_a_record_keeps_the_file_and_is_replayed_with_it(tmp_path: Path) -> None:
    """The record has the file and its digest, and a replay computes with it, also without the user's."""
    path = in_record(tmp_path, steps=8)
    assert (path / "workload.py").read_text() == Path(TINY).read_text()
    file = tmp_path / "mine.py"
    assert recorded_run(path).cfg.data.workload == str(file)  # so that it finds what lies beside it
    assert compared(recorded_run(path)).same_weights
    file.write_text(file.read_text().replace("0.2", "0.3"))
    assert compared(recorded_run(path)).same_weights
    file.unlink()
    assert compared(recorded_run(path)).same_weights
    (path / "workload.py").write_text("def make(): ...\n")
    with pytest.raises(RecordError, match="is not the file that was trained"):
        recorded_run(path)


def test_a_replay_names_what_its_workload_lacks(tmp_path: Path) -> None:
    """Data that are gone are one line, with the record and the line of the file."""
    there = tmp_path / "there"
    there.touch()
    head = "def make() -> Problem:"
    text = Path(TINY).read_text().replace(head, f"{head}\n    open({str(there)!r}).close()")
    (tmp_path / "mine.py").write_text(text)
    path = in_record(tmp_path, steps=2)
    there.unlink()
    with pytest.raises(RecordError, match=r"r: --workload .*mine\.py: line 11: FileNotFoundError"):
        compared(recorded_run(path))


def test_a_record_does_not_go_on_with_another_file(tmp_path: Path) -> None:
    """A file that was changed or moved since is named, for --resume, with the remedy."""
    path = in_record(tmp_path, steps=8)
    file = tmp_path / "mine.py"
    file.write_text(file.read_text().replace("0.2", "0.3"))
    changed = f"its workload {file} has changed since; put {path / 'workload.py'} in its place"
    with pytest.raises(UsageError) as refused:
        going_on(str(path), ["--steps=9"])
    assert changed in str(refused.value)
    file.unlink()
    with pytest.raises(UsageError, match="is not there any more; put "):
        going_on(str(path), ["--steps=9"])
    file.write_text((path / "workload.py").read_text())
    assert going_on(str(path), ["--steps=9"]).cfg.steps == 9


def test_a_files_own_options_are_options_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Config's fields are on the command line, in --help, in config.yaml and in what makes the module."""
    cfg = parse(["--workload", SIZED, "--width", "3", "--engine", "sim", "--out", str(tmp_path)])
    assert make_workload(cfg).objective.num_weights == 3 + 3 + 3 + 1
    again = pickle.loads(pickle.dumps(cfg))
    assert (again, type(again)) == (cfg, type(cfg))
    ended = execute(replace(cfg, steps=2), record=RunRecord(replace(cfg, steps=2)))
    assert ended.path
    assert {"width: 3", "curve: relu"} <= set((ended.path / "config.yaml").read_text().splitlines())
    assert compared(recorded_run(ended.path)).same_weights
    assert going_on(str(ended.path), ["--steps=3"]).cfg.data == cfg.data
    with pytest.raises(SystemExit):
        parse(["--workload", SIZED, "--help"])
    _, _, own = capsys.readouterr().out.partition("Options of the workload:\n")
    assert own.startswith(
        "  --width INT             Units of the hidden layer. (default: 4)\n  --curve relu|tanh"
    )


def test_runs_of_another_width_are_not_compared(tmp_path: Path) -> None:
    """A workload's options say what is learned: runs that differ in one are of two groups."""
    for width in (2, 3):
        cfg = config("ssgd", workload=SIZED, width=width, steps=2, out=str(tmp_path), run_name=f"w{width}")
        execute(cfg, record=RunRecord(cfg))
    two = groups(list_folder(tmp_path).runs)
    titles = sorted(group.title.partition(" · ")[0] for group in two)
    assert titles == ["sized, width=2, curve=relu", "sized, width=3, curve=relu"]


def test_an_experiment_varies_a_files_options(tmp_path: Path) -> None:
    """Its file names them like any other option, and so does --set."""
    file = tmp_path / "widths.yaml"
    base = f"base: {{engine: sim, workload: {SIZED}, steps: 2}}"
    file.write_text(f"title: Widths\nquestion: Which?\n{base}\ngrid: {{width: [2, 3]}}\nseeds: 1\n")
    experiment = load(file, ["curve=tanh"], tmp_path)
    assert [options(v.cfg)["width"] for v in experiment.variants] == [2, 3]
    assert [options(v.cfg)["curve"] for v in experiment.variants] == ["tanh", "tanh"]
    with pytest.raises(UsageError, match="--set curv=tanh: there is no option curv; did you mean curve"):
        load(file, ["curv=tanh"], tmp_path)


OWN = "@dataclass(frozen=True, kw_only=True)\nclass Config(DataConfig):\n"
WRONG_CONFIGS = {
    "class Config: pass": "its Config is no option class; derive it from dsgd.DataConfig",
    f"{OWN}    steps: int = 3": "its Config has an option steps, as every run of --mode ssgd; ",
    f"{OWN}    mix: str = 'none'": "its Config has an option mix, as every run of --mode ssgd; ",
    f"{OWN}    width: int = 'wide'": "cannot be used: ValueError: --width wide: must be a whole number",
    f"{OWN}    width: list = None": "cannot be used: TypeError: Config.width: an option is an int",
}


@pytest.mark.parametrize("text", WRONG_CONFIGS)
def test_a_config_that_cannot_be_used_is_one_line(tmp_path: Path, text: str) -> None:
    """The message names the file, and the remedy where there is one."""
    file = tmp_path / "mine.py"
    start = "from dataclasses import dataclass\nfrom dsgd import DataConfig"
    file.write_text(f"{start}\n{text}\ndef make(cfg): ...")
    with pytest.raises(UsageError) as caught:
        parse(["--workload", str(file)])
    assert str(caught.value).startswith(f"--workload {file}: ")
    assert WRONG_CONFIGS[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tied_weight_is_one_and_a_frozen_one_none() -> None:
    """The vector has each trained parameter once; frozen ones stay as the file made them."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight
            self.scale = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.embed(x) * self.scale)
            return logits

    x = torch.arange(20) % 5
    tied = Tied()
    problem = Problem(tied, lambda module, x: cross_entropy(module(x), x), (x,), (x,))
    assert ModuleObjective(problem).num_weights == 15
    (plain,) = torch.autograd.grad(problem.loss(tied, x), [tied.embed.weight])
    torch.testing.assert_close(whole_gradient(problem), plain.flatten())


class Squares(Dataset[tuple[int, float]]):
    """A map-style dataset of numbers and their squares."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[int, float]:
        return i, float(i * i)


def test_samples_come_from_arrays_and_from_datasets_alike() -> None:
    """A tuple, a TensorDataset and a map-style dataset of the same samples give the same mini-batch."""
    i = torch.arange(12)
    sources = [(i, (i * i).double()), TensorDataset(i, (i * i).double()), Squares()]
    rows = np.array([3, 0, 11])
    batches = [take(source, rows) for source in sources]
    for batch in batches:
        assert [column.tolist() for column in batch] == [[3, 0, 11], [9.0, 0.0, 121.0]]
    assert [labels(source) is None for source in sources] == [True, True, True]


@pytest.mark.parametrize(
    ("second", "instead"),
    [
        (", torch.arange(40).view(-1, 1) % 2", None),
        (", torch.ones(40)", "float32 [40] in their place"),
        (", torch.ones(40, 3, dtype=torch.int64)", "int64 [40, 3] in their place"),
        (",", "none"),
    ],
)
def test_classes_may_be_a_column_and_what_is_none_is_said(
    second: str, instead: str | None, tmp_path: Path
) -> None:
    """(N, 1) is split like (N,); what cannot be classes is refused with its type and shape."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom dsgd import Problem\n"
        "loss = lambda module, x, *y: module(x).square().mean()\n"
        "x = torch.ones(40, 2)\n"
        f"make = lambda: Problem(torch.nn.Linear(2, 1), loss, (x{second}), (x,))\n"
    )
    cfg = config("ssgd", workload=str(file), partition="label", num_workers=2, batch_size=4)
    if instead is None:
        shards: Any = make_workload(cfg).shards
        assert [len({row % 2 for row in shard.rows}) for shard in shards] == [1, 1]
        return
    with pytest.raises(ValueError, match=re.escape(f"the training data of {file} have {instead}; give them")):
        make_workload(cfg)


@pytest.mark.parametrize("source", [tuple, lambda arrays: TensorDataset(*arrays)])
def test_a_worker_gets_no_samples_of_others(source: Callable[[Any], Any]) -> None:
    """What is sent to it has its own rows, and gives the same mini-batches."""
    x = torch.arange(12.0)
    shard = ProblemShard(1, source((x, x.long())), np.array([1, 5, 8, 9]), batch_size=2, seed=3)
    alone = shard.alone()
    assert [len(array) for array in alone.data] == [4, 4]
    for step in range(5):
        assert [a.tolist() for a in shard.batch(step)] == [a.tolist() for a in alone.batch(step)]


def test_a_lone_value_is_that_of_the_simulator() -> None:
    """A replay of a run on Ray computes each value alone: bit for bit what the workers computed."""
    made = workload(num_workers=1)
    values = LoneValues(made, "cpu")
    from dsgd.core.tasks import gradient as task

    values.add(0, task, 2, made.objective.initial_weights(0))
    assert np.array_equal(values.take(0)[1], gradient(made, 0, 2)[1].numpy())
