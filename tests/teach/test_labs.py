"""The labs: their pages' commands run, right answers hold, and each wrong one fails its law."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import ROOT, CommandLine

from docs.tools.examples import EXAMPLE
from docs.tools.lab_figures import COMMAND, IMAGE
from dsgd.compare.experiment_file import load
from dsgd.process.outcomes import UsageError
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.show.report.figures import draw_sections
from dsgd.show.report.frames import read_folder
from dsgd.teach.labs import goals, lab_verdicts, quantities, strategy_laws
from dsgd.teach.labs.answers import read_answers
from dsgd.teach.labs.lab_file import read_lab
from dsgd.teach.labs.lab_run import Trial
from dsgd.teach.labs.student_strategy import Work
from dsgd.teach.labs.wording import Finding, function
from dsgd.theory import order_statistics
from dsgd.theory.exchanges import all_reduce_time, served_round_time
from main import main

LABS = ROOT / "docs" / "labs"
SAMPLES = Path(__file__).parents[1] / "labs"
NUMBERS = ("01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11")
each_lab = pytest.mark.parametrize("number", NUMBERS)


def page(number: str) -> str:
    (path,) = LABS.glob(f"{number}-*.md")
    return path.read_text()


def commands(text: str) -> list[str]:
    """Return the commands of a page, each on one line."""
    found = re.findall(r"^ *(uv run python main\.py (?:\\\n|[^`\n])*)", text, re.MULTILINE)
    return [" ".join(command.replace("\\\n", " ").split()) for command in found]


def checked(
    capsys: pytest.CaptureFixture[str], lab: Path, answers: Path, *options: str
) -> tuple[int, str, str]:
    """Return exit code, output and errors of a check."""
    capsys.readouterr()
    code = main(["lab", str(lab), str(answers), *options])
    out, err = capsys.readouterr()
    return code, out, err


def test_without_a_lab_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """By the numbers that the command takes, with their titles."""
    assert main(["lab"]) == 0
    numbers, titles = zip(
        *(line.split("  ", 1) for line in capsys.readouterr().out.splitlines()), strict=True
    )
    assert list(numbers) == sorted(path.stem for path in LABS.glob("[0-9]*.yaml"))
    assert titles[0] == read_lab(LABS / "01.yaml").title


def marks(out: str) -> dict[str, str]:
    """Return the mark of each sentence: holds, FAILS or open."""
    lines = re.findall(r"^  (holds|FAILS|open) +(.*)$", out, re.MULTILINE)
    return {sentence: mark for mark, sentence in lines}


def answered(tmp_path: Path, **parts: Any) -> Path:
    path = tmp_path / "answers.yaml"
    path.write_text(yaml.safe_dump(parts))
    return path


# --- The pages ----------------------------------------------------------------------------------------------


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """Yield a folder where nothing waits for a disk, if there is one: lab 7 writes 3,000 checkpoints."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.crossing(one_in=4)
@each_lab
def test_the_commands_of_a_page_run(number: str, cli: CommandLine, in_memory: Path) -> None:
    """Each single run of a page ends with 0, and that of the first lab prints what the page shows."""
    text = page(number)
    shown = {
        " ".join(match["command"].replace("\\\n", " ").split()): match[0].rpartition("```\n")[2]
        for match in EXAMPLE.finditer(text)
    }
    runs = [command for command in commands(text) if "--engine sim" in command]
    assert len(runs) > 2
    assert len(shown) == (number == "01")
    for command in runs:
        ran = cli(f"{command.removeprefix('uv run python main.py ')} --trace-last 0 --out {in_memory}")
        assert ran.code == 0, ran.err
        if command in shown:
            printed = ran.out[ran.out.index("run  ") :]  # after the progress and the model's size
            assert lines_of(printed.partition("\nrecord ")[0]) == alike(shown[command])


def lines_of(text: str) -> list[str | float]:
    """Return a printed run by lines, without how long its start took; what weights decide as numbers."""
    parts = list[str | float]()
    for line in map(str.rstrip, text.splitlines()):
        if line.startswith(("loss", "evaluation", "drift")):
            words = re.split(r"(\d+\.\d+)", line)
            parts += [float(word) if n % 2 else word for n, word in enumerate(words)]
        else:
            parts.append(re.sub(r" \(start .*\)", "", line))
    return parts


def alike(text: str) -> list[Any]:
    """Return what equals such a run: the last digits of a loss depend on the processor's model."""
    return [pytest.approx(part, rel=0.02) if isinstance(part, float) else part for part in lines_of(text)]


@pytest.mark.crossing(one_in=4)
@each_lab
def test_the_figures_of_a_page_come_from_its_experiment(number: str, tmp_path: Path) -> None:
    """Its experiment, made smaller, runs, and makes each figure that the page shows; all are there."""
    text = page(number)
    (file,) = COMMAND.findall(text)
    experiment = load(ROOT / file, ["steps=16", "seeds=1", "trace_last=0"], tmp_path)
    for run in experiment.runs():
        assert not execute(run.cfg, record=RunRecord(run.cfg)).error
    images = IMAGE.findall(text)
    shown = [figure for _, _, figure in images]
    as_run = {
        "title": experiment.title,
        "variants": [
            {"name": v.name, "folder": v.folder, **v.parts, "options": {}} for v in experiment.variants
        ],
        "compare": experiment.asked.compare,
        "per": list(experiment.asked.per),
        "measure": list(experiment.asked.measures),
        "seeds": [0],
        "target_loss": experiment.target_loss,
        "show": [s for s in experiment.show or () if any(f.replace("-", "_").startswith(s) for f in shown)],
    }
    (experiment.folder / "experiment.yaml").write_text(yaml.safe_dump(as_run))
    made = {
        panel.name for section in draw_sections(read_folder(experiment.folder)) for panel in section.panels
    }
    assert len(images) >= 2
    for image, name, figure in images:
        assert name == Path(file).stem
        assert figure in made
        assert (LABS / image).stat().st_size < 100_000


@each_lab
def test_a_page_asks_for_what_its_lab_checks(number: str) -> None:
    """The lists to copy name the lab's predictions and options, no more and no less, and its own files."""
    text, lab = page(number), read_lab(LABS / f"{number}.yaml")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    asked = yaml.safe_load("\n".join(blocks))
    assert list(asked["predictions"]) == list(lab.predictions)
    assert lab.exercise
    assert list(asked["exercise"]) == list(lab.exercise.choose)
    assert ("strategy" in asked) == (lab.strategy is not None)
    assert f"uv run python main.py lab docs/labs/{number}.yaml my/{number}.yaml" in text
    assert f"`my/{number}.yaml`" in text


@each_lab
@pytest.mark.parametrize("mark", ["", " ?", ' "?"'])
def test_a_page_s_template_is_read_and_all_of_it_is_open(number: str, mark: str, tmp_path: Path) -> None:
    """The lists to copy, as they are or with question marks, are answers in which nothing is answered."""
    template = "\n".join(re.findall(r"```yaml\n(.*?)```", page(number), re.DOTALL))
    path = tmp_path / "answers.yaml"
    path.write_text(re.sub(r"^( +\w+:)", rf"\1{mark}", template, flags=re.MULTILINE))
    answers = read_answers(path, read_lab(LABS / f"{number}.yaml"))
    assert (answers.predictions, answers.exercise) == ({}, None)


def test_one_prediction_of_a_template_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one that has a number is held to the run, and all others are counted as open."""
    path = tmp_path / "answers.yaml"
    path.write_text("predictions:\n  seconds_with_one_slow: 4\n  busy: ?  # 0 to 1\n  seconds:\n")
    code, out, err = checked(capsys, LABS / "01.yaml", path)
    assert (code, err) == (1, "")
    assert "\n1 of 7 hold, 6 open\n" in out


def test_links_of_the_pages_lead_somewhere() -> None:
    """Each link to a file of this repository finds it."""
    for path in LABS.glob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name}: {link}"


def test_the_numbers_in_the_text_are_right() -> None:
    """Values that a page gives away agree with theory."""
    assert order_statistics.harmonic(1024) == pytest.approx(0.58 + 6.93, abs=0.01)
    assert "`0.58 + ln P`" in page("01")


def test_the_answers_on_topologies_and_bytes_follow_from_formulas() -> None:
    """Each can be derived from the formulas of the page, without a run; only the bytes to a loss cannot."""
    nine, ten = (yaml.safe_load((SAMPLES / f"{number}.yaml").read_text()) for number in ("09", "10"))
    alpha, rate, size, compute_s = 0.001, 12.5e6, 4e6, 0.1
    derived = {
        "one_server": compute_s + served_round_time(16, size, alpha, rate, rate),
        "more_servers": compute_s + served_round_time(16, size, alpha, rate, rate, servers=4),
        "all_reduce": compute_s + all_reduce_time("direct", 16, size, alpha, rate),
        "a_worker_s_link": 2 * 15 / 16 * size / 1e6,
        "slow_link": compute_s + 2 * alpha + 2 * 15 / 16 * size / (rate / 10),
        "ring": compute_s + all_reduce_time("ring", 64, size / 100, alpha, rate),
        "halving": compute_s + all_reduce_time("halving", 64, size / 100, alpha, rate),
        "gossip": compute_s + alpha + size / rate,
    }
    assert nine["predictions"] == pytest.approx(derived, rel=1e-3)
    d = 64 * 64 + 64 + 64 * 10 + 10
    k, bits = -(-d // 100), -(-d // 8)
    whole, top, signs = 4 * d, 4 * k + min(4 * k, bits), 4 + bits
    derived = {
        "top_k": 4 * (whole + top) / 1000,
        "sign": 4 * (whole + signs) / 1000,
        "one_way": 0.05 + (4 * whole + top) / 1e5,
        "both_ways": 0.05 + 5 * top / 1e5,
        "stuck": (1.5 + 0.5) / 2,  # and at most 2 lr more, as a - b goes to and fro
    }
    found = {name: ten["predictions"][name] for name in derived}
    assert found == pytest.approx(derived, rel=0.04)


@pytest.mark.parametrize(("times", "stable"), [(1.0, True), (1.3, False)])
def test_the_step_of_lab_10_is_stable_but_only_just(times: float, stable: bool) -> None:
    """Top-k with error feedback in four lines of numpy says the same as the lab's runs."""
    lr = times * yaml.safe_load((SAMPLES / "10.yaml").read_text())["exercise"]["lr"]
    x, e = np.ones(20), np.zeros(20)
    for _ in range(600):
        e += lr * x
        largest = np.argmax(np.abs(e))
        x[largest] -= e[largest]
        e[largest] = 0
    assert (np.abs(x).max() < 1) == stable


# --- Answers ------------------------------------------------------------------------------------------------


@pytest.mark.crossing(one_in=3)
@each_lab
def test_a_right_answer_holds(number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sample answers keep every law, and the check ends with 0."""
    shutil.copytree(SAMPLES, tmp_path / "my")  # first guesses are written beside them
    code, out, err = checked(capsys, LABS / f"{number}.yaml", tmp_path / "my" / f"{number}.yaml")
    assert (code, err) == (0, "")
    assert set(marks(out).values()) == {"holds"}
    assert re.search(r"^(\d+) of \1 hold$", out, re.MULTILINE)


@pytest.mark.crossing(one_in=3)
@each_lab
def test_wrong_predictions_fail_and_missing_ones_are_open(
    number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number that is a quarter too high fails, without the right one; the exercise stays open."""
    right = yaml.safe_load((SAMPLES / f"{number}.yaml").read_text())["predictions"]
    wrong = {name: 1.25 * value for name, value in right.items()}
    code, out, _ = checked(capsys, LABS / f"{number}.yaml", answered(tmp_path, predictions=wrong))
    lab = read_lab(LABS / f"{number}.yaml")
    texts = {prediction.text for prediction in lab.predictions.values()}
    assert code == 1
    assert {text for text, mark in marks(out).items() if mark == "FAILS"} == texts
    assert {mark for text, mark in marks(out).items() if text not in texts} == {"open"}
    assert out.count("too high by about a quarter") + out.count("too high by about a fifth") == len(texts)
    assert "measured 2" not in out


@pytest.mark.parametrize("said", [2.54, 2.83])  # measured 2.667, theory 2.718, 5 % around each
def test_a_prediction_is_held_to_both_measurement_and_theory(
    said: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prediction near only theory or only the measurement is not enough."""
    path = answered(tmp_path, predictions={"seconds": said})
    _, out, _ = checked(capsys, LABS / "01.yaml", path)
    assert next(iter(marks(out).values())) == "FAILS"
    assert "2.667" not in out
    _, out, _ = checked(capsys, LABS / "01.yaml", path, "--reveal")
    assert "measured 2.667, theory 2.718" in out


WRONG_OPTIONS = [
    # lab, exercise, the one law that fails
    ("01", {"num_workers": 15}, "At least 4.6"),
    ("01", {"num_workers": 17}, "One worker fewer"),
    ("01", {"num_workers": 1}, "At least 4.6"),
    ("02", {"lr": 0.22}, "With your step size"),
    ("02", {"lr": 0.15}, "1.1 times"),
    ("03", {"slack": 1}, "Loss 0.3"),
    ("03", {"slack": 3}, "mean staleness"),
    ("04", {"local_steps": 4, "lr": 0.005}, "900"),
    ("04", {"local_steps": 8, "lr": 0.05}, "0.02"),
    ("04", {"local_steps": 8, "lr": 0.0005}, "0.02"),  # too small a step does not get there
    ("05", {"k": 16}, "of the gradients a second that the best k"),
    ("05", {"k": 8}, "of the gradients a second that the best k"),
    ("05", {"k": 11}, "of the gradients a second that the best k"),
    ("06", {"local_steps": 5}, "at least 217.6"),
    ("06", {"local_steps": 7}, "One local step fewer"),
    ("07", {"checkpoint_every": 60}, "at most 74,100"),
    ("07", {"checkpoint_every": 300}, "at most 74,100"),
    ("08", {"local_steps": 11, "lr": 0.75}, "At least 2.8"),
    ("08", {"local_steps": 13, "lr": 0.75}, "One local step fewer"),
    ("08", {"local_steps": 12, "lr": 0.4}, "The loss"),
    ("08", {"local_steps": 12, "lr": 1.2}, "The loss"),
    ("09", {"padding_mb": 3.2}, "1.2 times as long"),
    ("09", {"padding_mb": 3.7}, "at most 0.8 s"),
    ("10", {"lr": 0.14}, "With your step size"),
    ("10", {"lr": 0.08}, "1.3 times as large"),
    ("11", {"balance_rate": 3.8}, "With your rate"),
    ("11", {"balance_rate": 2.5}, "1.25 times"),
]


@pytest.mark.parametrize(("lr", "stable"), [(0.19, True), (0.21, False)])
def test_the_largest_step_of_an_exercise_with_momentum_is_smaller(lr: float, stable: bool) -> None:
    """Where a lecturer adds momentum, the limit is that with momentum, and runs agree: 0.199, not 0.445."""
    options = {"mode": "asgd", "workload": "quadratic", "num_workers": 4, "steps": 300, "momentum": 0.5}
    found = goals.is_stable(Trial(options | {"compute_time": "constant:1", "lr": lr}), start=1.0)
    assert found.holds == stable
    assert "below 0.1993" in found.theory


@pytest.mark.crossing(one_in=4)
@pytest.mark.parametrize(("number", "exercise", "law"), WRONG_OPTIONS)
def test_wrong_options_fail_by_their_law(
    number: str, exercise: dict[str, Any], law: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options that miss one goal fail that law alone, and the line has what was needed."""
    code, out, _ = checked(capsys, LABS / f"{number}.yaml", answered(tmp_path, exercise=exercise))
    (failed,) = (sentence for sentence, mark in marks(out).items() if mark == "FAILS")
    assert code == 1
    assert law in failed
    assert "need" in out.partition(failed)[2].splitlines()[1]


UNREADABLE = [
    # lab, answers, what the message must name
    ("01", "", ["is empty", "the lab's page"]),
    ("01", "# nothing yet\n", ["is empty", "the lab's page"]),
    ("01", "- 3", ["mapping", "the lab's page"]),
    ("01", "predictions: {busy: 1, busy: 2}", ["line 1", "'busy' appears twice"]),
    ("01", "predictions:\n  busy: 2001-13-45", ["busy", "must be a number"]),
    ("01", "prediction: {}", ["prediction", "did you mean predictions"]),
    ("01", "strategy: train_mine.py", ["no place for strategy", "predictions, exercise"]),
    ("01", "predictions: {secnds: 3}", ["secnds", "did you mean seconds"]),
    ("01", "predictions: {seconds: many}", ["seconds", "a number", "many"]),
    ("01", "predictions: {seconds: .nan}", ["seconds", "a number"]),
    ("01", "predictions: {seconds: yes}", ["seconds", "a number"]),
    ("01", "predictions: 3", ["predictions", "names and values"]),
    ("01", "exercise: {}", ["num_workers", "is missing"]),
    ("01", "exercise: {num_workers: 1.5}", ["num_workers", "whole number", "1 to 64"]),
    ("01", "exercise: {num_workers: 65}", ["num_workers", "1 to 64", "65"]),
    ("01", "exercise: {num_workers: 16, steps: 10}", ["steps", "fixed by the lab (2000)", "num_workers"]),
    ("01", "exercise: {num_workers: 16, compute_time: 'constant:1'}", ["compute_time", "fixed by the lab"]),
    ("01", "exercise: {num_workers: 16, seed: 3}", ["no place for seed", "num_workers"]),
    ("02", "exercise: {lr: 0.2, num_workers: 4}", ["num_workers", "fixed by the lab (8)", "choose only lr"]),
    ("02", "exercise: {lr: 0.2, workload: none}", ["workload", "fixed by the lab (quadratic)"]),
    ("03", "exercise: {slack: .inf}", ["slack", "a number"]),
    ("03", "exercise: {slack: 2, mode: asgd}", ["mode", "fixed by the lab (ssp)"]),
    ("05", "exercise: {k: 17}", ["k:", "1 to 16"]),
    ("03", "strategy: 3", ["strategy", "path of a file"]),
    ("03", "strategy: nowhere.py", ["nowhere.py", "is no file", "relative to the answers"]),
]


@pytest.mark.parametrize(("number", "text", "parts"), UNREADABLE)
def test_answers_that_cannot_be_read_get_one_line(
    number: str, text: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They end with 2 and one line that names the place and the remedy; what the lab fixed is refused."""
    path = tmp_path / "answers.yaml"
    path.write_text(text)
    code, _, err = checked(capsys, LABS / f"{number}.yaml", path)
    assert code == 2
    assert err.count("\n") == 1
    assert all(part in err for part in parts), err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["lab", "docs/labs/99.yaml", "x.yaml"], ["docs/labs/99.yaml", "cannot be read", "a lab's file"]),
        (["lab", "docs/labs/experiments/lab1.yaml", "x.yaml"], ["not a lab's file", "docs/labs/01.yaml"]),
        (["lab", "docs/labs/01.yaml", "nowhere.yaml"], ["nowhere.yaml", "cannot be read"]),
        (["lab", "docs/labs/01.yaml", "x.yaml", "--steps", "3"], ["--steps", "--help"]),
    ],
)
def test_a_check_that_names_no_files_gets_one_line(
    arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong command ends with 2 and one line."""
    assert main([a if a.startswith("--") or "/" not in a else str(ROOT / a) for a in arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert all(part in err for part in parts), err


# --- Strategies ---------------------------------------------------------------------------------------------

RIGHT = (SAMPLES / "train_bounded.py").read_text()
GATE = "clocks[worker] - clocks.slowest <= cfg.slack"
LOOP = """        for worker in cluster.workers:
            idle = worker not in cluster.in_flight
            if idle and clocks[worker] - clocks.slowest <= cfg.slack:
                cluster.start(worker, gradient, w)
"""
STEP = "        w = cluster.combine(rule, w, [done])\n"
OWN_RESULT = (
    "        from dsgd.core.rules import Arrived\n"
    "        w = cluster.combine(rule, w, [Arrived(done.value, {})])\n"
)
YIELD = "        yield Update(w, [done])\n"

MISTAKES = {
    # what a student did: text of the right answer, text instead, the first law that fails, what its line says
    "the bound is one too small": (GATE, GATE.replace("<=", "<"), "ends", "nothing can finish"),
    "the bound is one too large": (GATE, f"{GATE} + 1", "nobody_starts_too_far_ahead", "1 ahead"),
    "the clock is that of the task's start": (
        GATE,
        "done.step - clocks.slowest <= cfg.slack",
        "nobody_starts_too_far_ahead",
        "needed: at most",
    ),
    "who waits is never started again": (
        LOOP,
        "        if clocks[done.worker] - clocks.slowest <= cfg.slack:\n"
        "            cluster.start(done.worker, gradient, w)\n",
        "ends",
        "nothing can finish",
    ),
    "a worker is started after the yield": (
        LOOP + YIELD,
        YIELD + LOOP,
        "nobody_waits_in_vain",
        "before the yield",
    ),
    "a worker is started twice": ("idle and", "", "ends", "already has a task"),
    "a task gets the weights that were there before": (
        STEP,
        "        older = w\n" + STEP,
        "reads_the_newest",
        "was started with version",
    ),
    "gradients are summed, not averaged": (
        "gradients=1",
        "gradients=cfg.num_workers",
        "moves_by_its_share",
        "0.1 g; needed: 0.025 g",
    ),
    "its own update is counted": (
        STEP,
        OWN_RESULT.format("Weights(w.vector, done.read - 1)"),
        "leaves_out_the_own_update",
        "staleness 3, moved the weights by 0.00625 g; needed: 0.008333 g",
    ),
    "staleness counts for nothing": (
        STEP,
        OWN_RESULT.format("w"),
        "leaves_out_the_own_update",
        "moved the weights by 0.025 g; needed: 0.008333 g",
    ),
    "a gradient is applied twice": (
        YIELD,
        YIELD + YIELD,
        "each_task_is_in_one_update",
        "were finished, 96 are in updates",
    ),
    "a version is skipped": (
        YIELD,
        "        w = Weights(w.vector, w.version + 1)\n" + YIELD,
        "versions_count_updates",
        "update 1 has version 2, needed 1",
    ),
    "training ends early": (
        "    while True:",
        "    for _ in range(cfg.steps):",
        "spends_the_budget",
        "17 of 51 mini-batches are in updates when train ends",
    ),
    "an update is of no task": ("Update(w, [done])", "Update(w, [])", "ends", "without a task"),
    "it yields the weights alone": ("yield Update(w, [done])", "yield w", "ends", "yielded a Weights"),
    "weights are changed in place": (
        STEP,
        "        w.vector[:] -= cfg.lr * done.value\n",
        "ends",
        "line 33: ValueError",
    ),
    "it fails": (STEP, STEP + "        1 / 0\n", "ends", "ZeroDivisionError"),
    "it leaves": (STEP, STEP + "        raise SystemExit(0)\n", "ends", "SystemExit"),
    "it waits for ever": (
        STEP,
        STEP + "        while True:\n            pass\n",
        "ends",
        "did not come back",
    ),
    "it looks at the clock": (
        "from dsgd.strategy",
        "import math, time\nfrom dsgd.strategy",
        "is_only_its_algorithm",
        "imports time",
    ),
    "it takes the suite's own": (
        "from dsgd.strategy",
        "from dsgd.strategies.train_ssp import train as theirs\nfrom dsgd.strategy",
        "is_only_its_algorithm",
        "imports dsgd.strategies.train_ssp",
    ),
    "it takes the suite's own by another way": (
        "    rule, clocks =",
        "    __import__('train_ssp')\n    rule, clocks =",
        "is_only_its_algorithm",
        "uses __import__",
    ),
    "it reaches behind the cluster": (
        "    rule, clocks =",
        "    print(cluster._cluster)\n    rule, clocks =",
        "is_only_its_algorithm",
        "uses _cluster",
    ),
    "something is kept outside train": (
        STEP,
        "        kept.append(0)\n"
        + STEP
        + "        w = w if len(kept) < 1100 else Weights(w.vector + 1, w.version)\n",
        "the_same_seed_gives_the_same_run",
        "repeated: ",
    ),
    "the arithmetic is its own": (
        "cluster.combine(rule, w, [done])",
        "w.replaced(w.vector - cfg.lr * done.value / cfg.num_workers"
        " / max(1, (w.version - done.read) / cfg.full_weight_until))",
        "equals",
        "",
    ),
}


def worked(tmp_path: Path, text: str, **limits: float) -> dict[str, Finding]:
    """Return what the laws of lab 3 find of a strategy, by name; of two of a name, the first that fails."""
    path = tmp_path / "train_mine.py"
    path.write_text(text)
    task = read_lab(LABS / "03.yaml").strategy
    assert task
    work = Work(path, task.options, task.scenarios, **limits)
    found: dict[str, Finding] = {}
    for verdict in lab_verdicts._strategy(task, work):
        found.setdefault(verdict.name, verdict.finding)
    return found


@pytest.mark.crossing(one_in=4)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_by_its_law(mistake: str, tmp_path: Path) -> None:
    """A mistake that students make breaks the law that is about it first, and the line says what it saw."""
    old, new, law, says = MISTAKES[mistake]
    assert RIGHT.count(old) == 1
    text = RIGHT.replace(old, new)
    if mistake == "a task gets the weights that were there before":
        text = text.replace(
            "                cluster.start(worker, gradient, w)",
            "                cluster.start(worker, gradient, older)",
        )
    if mistake == "something is kept outside train":
        text = text.replace("\n\n@dataclass", "\n\nkept: list[int] = []\n\n\n@dataclass", 1)
    found = worked(tmp_path, text, time_limit_s=1.0 if "for ever" in mistake else 60.0)
    first = next(name for name, finding in found.items() if finding.holds is False)
    assert first == law, found[first].seen
    assert says in found[law].seen


UNSEEN = {
    # what a student did: text of the right answer, text instead, the laws that hold all the same
    "it fails on its first task": (STEP, "        1 / 0\n", set[str]()),
    "it fails before it starts one": ("    rule, clocks =", "    1 / 0\n    rule, clocks =", set[str]()),
    "it ends after its first task": (STEP, "        return\n", set[str]()),
    "it fails after its first update": (
        YIELD,
        YIELD + "        1 / 0\n",
        set[str](),
    ),
}


@pytest.mark.parametrize("mistake", UNSEEN)
def test_a_law_that_was_not_seen_at_work_is_open(mistake: str, tmp_path: Path) -> None:
    """Without an update, and after a break, no law holds except those tested in every run."""
    old, new, holds = UNSEEN[mistake]
    found = worked(tmp_path, RIGHT.replace(old, new))
    assert {name for name, f in found.items() if f.holds} <= {"is_only_its_algorithm", *holds}
    assert all("not tested" in f.seen for f in found.values() if f.holds is None)
    assert found["every_worker_takes_part"].holds is not True
    assert not found["spends_the_budget"].holds


def test_the_tally_gives_no_credit_for_what_was_not_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a strategy that fails on its first task, only the law about its text holds."""
    (tmp_path / "train_mine.py").write_text(RIGHT.replace(STEP, "        1 / 0\n"))
    code, out, _ = checked(capsys, LABS / "03.yaml", answered(tmp_path, strategy="train_mine.py"))
    assert code == 1
    assert out.rpartition("\n\n")[2].startswith("1 of 20 hold, ")
    assert "versions 1 to 0" not in out


@pytest.mark.parametrize(
    "endless",
    [
        """
        while True:
            try:
                pass
            except Exception:
                pass
""",
        """
        try:
            while True:
                pass
        except BaseException:
            pass
        while True:
            pass
""",
    ],
    ids=["Exception", "BaseException, once"],
)
def test_a_strategy_that_catches_errors_is_broken_off_too(endless: str, tmp_path: Path) -> None:
    """A strategy cannot swallow its time limit with `except`."""
    found = worked(tmp_path, RIGHT.replace(STEP, STEP + endless), time_limit_s=1.0, again_s=0.1)
    assert "train did not come back within 1 s" in found["ends"].seen


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("\n\n@dataclass", "\n\nwhile True:\n    pass\n\n\n@dataclass", "the import"),
        (
            "require(self.slack",
            "while True:\n            pass\n        require(self.slack",
            "its Config",
        ),
    ],
    ids=["import", "Config"],
)
def test_a_file_that_never_ends_is_no_strategy(old: str, new: str, what: str, tmp_path: Path) -> None:
    """A loop without end at import or in the Config is reported in one line within the limit."""
    assert RIGHT.count(old) >= 1
    with pytest.raises(UsageError, match=rf"train_mine\.py: .*{what} did not come back within 1 s"):
        worked(tmp_path, RIGHT.replace(old, new, 1), time_limit_s=1.0)


def test_another_right_strategy_holds(tmp_path: Path) -> None:
    """SSP as this suite has it, its gate written out, keeps all laws too."""
    gate = """for i in list(cluster.idle):
                if cluster.clocks[i] - cluster.clocks.slowest <= cfg.slack:
                    cluster.start(i, gradient, w)"""
    text = (ROOT / "train_ssp.py").read_text()
    found = worked(tmp_path, text.replace("start_idle(cluster, gradient, w, ahead=cfg.slack)", gate))
    assert all(finding.holds for finding in found.values())
    assert "uses ahead" in worked(tmp_path, text)["is_only_its_algorithm"].seen


def test_asgd_fails_as_an_answer(tmp_path: Path) -> None:
    """The file that students begin with, with nothing but the option added, starts workers too far ahead."""
    text = (ROOT / "train_asgd.py").read_text()
    text = text.replace('    mode: str = "asgd"', '    mode: str = "asgd"\n    slack: float = 3.0')
    found = worked(tmp_path, text)
    assert [name for name, finding in found.items() if not finding.holds] == [
        "nobody_starts_too_far_ahead",
        "equals",
    ]


NO_STRATEGY = {
    # text of the right answer, text instead, what the message must name
    "no Python": ("while True:", "while True", ["line 30: syntax error (expected ':')"]),
    "a missing name": (
        "require, server_rule",
        "require, server_rules",
        ["line 11", "server_rules"],
    ),
    "no train": ("def train", "def trains", ["needs a Config and a function train"]),
    "no option": ("    slack: float", "    gap: float", ["Config"]),
    "other workers": (
        "require(self.slack",
        'object.__setattr__(self, "num_workers", 1)\n        require(self.slack',
        ["Config changes num_workers"],
    ),
    "a smaller budget": (
        "    def __post",
        "    @property\n    def budget(self) -> int:\n        return 1\n\n    def __post",
        ["Config changes budget"],
    ),
    "real workers": (
        "require(self.slack",
        'object.__setattr__(self, "engine", "ray")\n        require(self.slack',
        ["Config changes engine"],
    ),
    "a refusal": ("self.slack >= 0", "self.slack > 0", ["refuses the lab's options", "slack"]),
    "no default": ("slack: float = 3.0", "slack: float", ["each option needs one", "'slack'"]),
}


@pytest.mark.parametrize("mistake", NO_STRATEGY)
def test_a_file_that_is_no_strategy_gets_one_line(
    mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be loaded, or that changes what the lab has set, ends with 2 and that line alone."""
    old, new, parts = NO_STRATEGY[mistake]
    assert RIGHT.count(old) == 1
    (tmp_path / "train_mine.py").write_text(RIGHT.replace(old, new))
    code, out, err = checked(capsys, LABS / "03.yaml", answered(tmp_path, strategy="train_mine.py"))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert all(part in err for part in ["train_mine.py", *parts]), err
    assert sorted(os.listdir(tmp_path)) == ["answers.yaml", "train_mine.py"]


# --- The files ----------------------------------------------------------------------------------------------


@each_lab
def test_what_a_lab_names_is_there(number: str) -> None:
    """Its laws and quantities are functions, no option is both fixed and chosen, and its answers fit it."""
    lab = read_lab(LABS / f"{number}.yaml")
    for prediction in lab.predictions.values():
        function(quantities, prediction.quantity)
    assert lab.exercise
    for law in lab.exercise.laws:
        function(goals, law.name)
        if "quantity" in law.parameters:
            function(quantities, law.parameters["quantity"])
    assert not set(lab.exercise.choose) & set(lab.exercise.options)
    for law in lab.strategy.laws if lab.strategy else ():
        function(strategy_laws, law.name)
    assert read_answers(SAMPLES / f"{number}.yaml", lab).exercise


def test_a_name_that_is_no_law_is_refused() -> None:
    """A lab's file cannot name what its modules only import, nor what is private."""
    for name in ("Mapping", "_broken", "run", "nothing"):
        with pytest.raises(ValueError, match=name):
            function(strategy_laws, name)
