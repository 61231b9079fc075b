"""A comparison of modes by their names: what it runs, and the file that it prints."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from dsgd.compare.experiment_command import experiment_of
from dsgd.compare.experiment_file import load
from dsgd.process.outcomes import UsageError
from main import main

ASKED = [
    "ssgd asgd ssp --slowdown 0=4 --target-loss .3",
    "ssgd localsgd --local-steps 4 --compute-time exponential:1 --lr 0.2 --seeds 3",
    "--num-workers 8 ssgd --faults kill:2@update=30+5 ksync --k 6 --steps 50",
    "asgd ssp --slack 2 --lr-scaling workers --momentum 0.0 --note 'no: 010, 1e3, 0=4'",
    "dpsgd adpsgd --workload moe --experts 4 --target-loss 2.5",
    "ssgd asgd --workload none --compute-time pareto:1.5,1",
    "ssgd tests/own/train_pairs.py --samples 64",
    "ssgd asgd --set eval_every=2 --set target_loss=.2 --set seeds=2",
]


@pytest.mark.parametrize("line", ASKED)
def test_the_file_that_is_printed_asks_for_the_same_runs(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept under the experiment's name it is that experiment: the same runs, tuned the same way."""
    monkeypatch.chdir(ROOT)
    _, asked, file = experiment_of([*shlex.split(line), "--out", str(tmp_path)])
    path = tmp_path / f"{asked.name}.yaml"
    path.write_text(file)
    assert load(path, (), tmp_path) == asked


def test_an_option_goes_to_the_modes_that_have_it() -> None:
    """Those of all go to base:. By default runs are simulated, with five seeds and tuned step sizes."""
    _, _, file = experiment_of(shlex.split("ssgd asgd ssp --slack 2 --slowdown 0=4 --target-loss .3"))
    content = yaml.safe_load(file)
    assert content["base"] == {"engine": "sim", "slowdown": "0=4"}
    assert content["variants"]["ssp"] == {"mode": "ssp", "slack": 2.0}
    assert content["variants"]["asgd"] == {"mode": "asgd"}
    assert (content["tune"], content["seeds"], content["target_loss"]) == ("auto", 5, 0.3)
    assert content["question"] == "Which reaches loss 0.3 first, with slack 2 and slowdown 0=4?"
    none = experiment_of(["ssgd", "asgd", "--workload", "none"])[1]
    assert none.question.startswith("Which does the same work first")
    other = experiment_of(shlex.split("ssgd asgd --engine ray --lr .2 --seeds 2"))[1]
    assert (other.tuning, list(other.seeds), other.base["engine"]) == (None, [0, 1], "ray")


def test_other_options_are_another_experiment() -> None:
    """Its name, and so its folder, has the modes and a digest of the rest."""
    lines = ("ssgd asgd --lr 1 --steps 9", "--steps 9 ssgd --lr 1 asgd", "ssgd asgd --lr 1 --steps 8")
    assert [len({experiment_of(shlex.split(line))[1].name for line in lines[:n]}) for n in (2, 3)] == [1, 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ssgd", "compare ssgd: a comparison needs two modes; name another"),
        ("ssgd asg", "compare asg: is no mode; did you mean asgd?"),
        ("a.yaml b.yaml", "compare: takes one file, or modes, not a.yaml and b.yaml"),
        ("ssgd asgd --slack 2", "--slack: is not an option of compare; see compare --help"),
        ("ssgd asgd --slowdwn 0=4", "--slowdwn: is not an option of compare; did you mean --slowdown?"),
        (
            "ssgd asgd --workload none --target-loss 1",
            "--target-loss 1: --workload none has no loss",
        ),
        ("ssgd asgd --seed 3", "--seed: is not an option of compare; did you mean --seeds?"),
        ("ssgd asgd --steps 0", "compare ssgd asgd: variant ssgd: --steps 0: must be at least 1"),
        ("ssgd asgd --engine both", "compare ssgd asgd: variant ssgd: --engine both is for a single run"),
        ("ssgd asgd --workload nowhere.py", "--workload nowhere.py"),
        ("ssgd train_nowhere.py", "--mode train_nowhere.py"),
        (
            "experiments/compare-ssp.yaml --steps 3 --out ssgd",
            "--steps: is not an option of compare; an option of",
        ),
    ],
)
def test_a_mistake_is_one_line(line: str, message: str) -> None:
    """It names the word or option, the rule and the remedy."""
    with pytest.raises(UsageError) as refused:
        experiment_of(shlex.split(line))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.thorough
def test_it_runs_and_the_printed_file_finds_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison ends with an answer and a page; with what it printed as a file, nothing is run again."""
    monkeypatch.chdir(tmp_path)
    asked = "compare ssgd asgd --steps 8 --lr .1 --seeds 2 --target-loss .6 --processes 1"
    assert main(asked.split()) == 0
    printed = capsys.readouterr().out
    (folder,) = Path("runs").iterdir()
    assert (folder / "report.html").exists()
    lines = printed.splitlines()
    file = lines[1 : lines.index("target_loss: 0.6") + 1]
    Path(f"{folder.name}.yaml").write_text("\n".join(file))
    assert main(["compare", f"{folder.name}.yaml"]) == 0
    again = capsys.readouterr().out
    assert "4 finished runs are kept" in again
    assert printed.partition("variant  ")[2] == again.partition("variant  ")[2]
