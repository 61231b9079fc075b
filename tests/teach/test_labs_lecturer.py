"""The labs as lecturers use them: changed, refused where they are wrong, and checked for a whole class."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

from docs.tools import lab_figures, lab_pages
from dsgd.compare.experiment_file import load
from dsgd.teach.labs import lab_verdicts as judge
from dsgd.teach.labs import printed_verdicts as printed
from dsgd.teach.labs.answers import read_first_guesses
from dsgd.teach.labs.lab_file import StrategyTask, path_of, read_lab
from dsgd.teach.labs.lab_verdicts import Verdict, solvable
from dsgd.teach.labs.student_strategy import Work
from dsgd.teach.labs.wording import Finding, words
from main import main

LABS = ROOT / "docs" / "labs"
SAMPLES = Path(__file__).parents[1] / "labs"
PAGES = sorted(LABS.glob("0*.md"))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def check(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return exit code, output and errors of a check."""
    capsys.readouterr()
    code = main(["lab", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


# --- Pages --------------------------------------------------------------------------------------------------


@each_page
def test_a_page_and_its_experiment_are_as_made_from_the_lab(page: Path) -> None:
    """`make labs` would change neither the parts of a page that come from its lab, nor its experiment."""
    assert lab_pages.refreshed(page) == page.read_text()
    assert lab_pages.experiment_of(page).read_text() == lab_pages.experiment_text(page)
    assert {m["kind"] for m in lab_pages._PART.finditer(page.read_text())} == set(lab_pages.PARTS)


def sentences(content: Any) -> Iterator[str]:
    """Yield the sentences of a lab's file, as they are written there."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key in ("text", "question"):
                yield value
            else:
                yield from sentences(value)
    elif isinstance(content, list):
        for value in content:
            yield from sentences(value)


@each_page
def test_no_sentence_of_a_lab_repeats_an_option_by_hand(page: Path) -> None:
    """Outside placeholders, sentences have no number but ends of a scale, a start, and the ends of a grid."""
    found = list(sentences(yaml.safe_load(lab_pages.lab_of(page).read_text())))
    assert len(found) > 5
    for sentence in found:
        rest = re.sub(r"\{\w+\}|0 to 1|staleness 0|starts at 1|2 to 1,024", "", sentence)
        assert not re.search(rf"\d|\b{NUMBERS} workers", rest), sentence


NUMBERS = r"(?:\d[\d,.]*|two|three|four|six|seven|eight|twelve|sixteen)"


@each_page
def test_the_prose_of_a_page_says_no_number_of_workers(page: Path) -> None:
    """Outside the made parts and the page's own example, only thousands of workers are spoken of."""
    text = re.sub(r"## How to read a run.*?(?=\n## )", "", page.read_text(), flags=re.S)
    text = re.sub(r"1,0\d\d workers", "", lab_pages._PART.sub("", text))
    assert not re.findall(rf"(?i)\b{NUMBERS} (?:\w+ )?workers\b", text)


COURSE = {
    "least: 1, most: 64": "least: 5, most: 9",
    "&workers 8": "&workers 12",
    '"exponential:1"': '"uniform:0.5,1.5"',
    "within: 0.1": "within: 0.02",
}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lecturer's copy of lab 1: 12 workers, another law of times, another tolerance; made anew."""
    folder = tmp_path_factory.mktemp("course")
    text = (LABS / "01.yaml").read_text()
    for old, new in COURSE.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "01.yaml").write_text(text.replace("seeds: 3", "seeds: 1").replace("steps: 200,", "steps: 20,"))
    shutil.copy(LABS / "01-synchronous.md", folder)
    lab_pages.refresh(folder / "01-synchronous.md")
    return folder


def test_a_changed_lab_s_page_and_experiment_follow_its_options(course: Path) -> None:
    """Questions, commands, exercise and experiment have the new options, and nothing has the old ones."""
    page = (course / "01-synchronous.md").read_text()
    for part in ("predictions", "exercise"):
        made = re.search(rf"<!-- {part} of the lab -->(.*?)<!-- end -->", page, re.S)
        assert made
        assert "uniform times from 0.5 to 1.5 s" in " ".join(made[1].replace("#", "").split())
    assert "each of the 12 workers" in page
    assert page.count("--num-workers 12") == 3
    assert "--compute-time uniform:0.5,1.5" in page
    after = page.partition("## Predict first")[2].replace(str(course).lstrip("/"), "")  # may have an 8
    assert not re.search(r"\b8\b|\beight\b|exponential:1", after)
    experiment = load(lab_pages.experiment_of(course / "01-synchronous.md"))
    assert experiment.base["num_workers"] == 12
    assert experiment.question.startswith("12 workers need")


def test_the_links_of_a_copy_lead_somewhere(tmp_path: Path) -> None:
    """Pages that were copied and made again link to the files of this repository, wherever the copy lies."""
    for depth in ("course", "a/b/course"):
        copy = tmp_path / depth
        shutil.copytree(LABS, copy)
        for page in sorted(copy.glob("*.md")):
            page.write_text(lab_pages.linked(page.read_text(), page))
            links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
            assert links
            assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.thorough
def test_a_changed_lab_s_figures_follow_its_options(course: Path, tmp_path: Path) -> None:
    """The figures are drawn from the changed experiment: its timelines have twelve workers."""
    written = lab_figures.refresh(course / "01-synchronous.md", tmp_path)
    assert [path.name for path in written] == ["lab1-timeline-2.svg", "lab1-timeline-3.svg"]
    records = list((tmp_path / "lab1").glob("random-s0/config.yaml"))
    assert [yaml.safe_load(path.read_text())["num_workers"] for path in records] == [12]
    assert all(path.read_bytes() != (LABS / "images" / path.name).read_bytes() for path in written)


def test_a_changed_lab_s_check_follows_its_options(
    course: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer to the old lab fails, the new one holds: the largest of 12 uniform times is 0.5 + 12/13."""
    _, questions, _ = check(capsys, course / "01.yaml")
    assert "12 workers and uniform times from 0.5 to 1.5 s" in questions
    answers = tmp_path / "01.yaml"
    answers.write_text("predictions: {seconds: 2.72, busy: 0.7027}\n")
    _, out, _ = check(capsys, course / "01.yaml", answers, "--reveal")
    assert "theory 1.423" in out
    assert "FAILS  Seconds per update with 12 workers and uniform times" in out
    assert "you said 0.7027, within 2% of both" in out
    answers.write_text("predictions: {seconds: 1.423}\n")
    _, out, _ = check(capsys, course / "01.yaml", answers)
    assert "holds  Seconds per update with 12 workers and uniform times" in out


# --- Labs that are wrong ------------------------------------------------------------------------------------


def changed(number: str, place: str, value: str) -> str:
    """Return a lab's file with other YAML at a place, or without that place."""
    content: dict[str, Any] = yaml.safe_load((LABS / f"{number}.yaml").read_text())
    inner: Any = content
    *names, last = (int(name) if name.isdigit() else name for name in place.split("."))
    for name in names:
        inner = inner[name]
    if value:
        inner[last] = yaml.safe_load(value)
    else:
        del inner[last]
    return yaml.safe_dump(content)


ONE, FIRST, WORKERS = "predictions.seconds", "exercise.laws.0", "exercise.choose.num_workers"
HEAVY = "{num_workers: 12, compute_time: 'pareto:1.5,1'}"
WRONG = [
    # the lab, the place, what stands there, what the message must say
    ("01", f"{ONE}.text", "With {num_wrokers}", ["{num_wrokers} is none of its options", "num_workers?"]),
    ("01", "exercise.text", "'{num_workers}'", ["{num_workers} is none of its options"]),
    ("01", f"{ONE}.text", "f{", ["text:", "write {{"]),
    ("01", f"{ONE}.text", "3", ["predictions: seconds: text: must be text, not 3"]),
    ("01", f"{ONE}.optoins", "{}", ["predictions: seconds:", "did you mean options?"]),
    ("01", f"{ONE}.within", "", ["predictions: seconds: needs within:", "a share"]),
    ("01", f"{ONE}.within", "5", ["predictions: seconds: within: must be a share", "not 5"]),
    ("01", f"{ONE}.quantity", "seconds_per_update", ["quantity:", "did you mean seconds_an_update?"]),
    ("01", f"{ONE}.quantity", "final_weight", ["final_weight needs workload quadratic"]),
    ("01", f"{ONE}.options", "{num_wokers: 8}", ["seconds: options:", "did you mean num_workers?"]),
    ("01", f"{ONE}.options.compute_time", "gauss:1", ["seconds: options:", "gauss"]),
    ("01", f"{ONE}.options", HEAVY, ["theory's 14.17", "measures 13", "raise steps", "within: to 0.09 or"]),
    ("01", "predictions.busy.of.worker", "8", ["busy: of:", "no worker 8", "from 0 to 7"]),
    ("01", "predictions.busy.options.num_workers", "3", ["busy: of:", "no worker 3", "from 0 to 2"]),
    ("01", "predictions.busy.of", "{}", ["busy_share: needs worker:"]),
    ("01", f"{ONE}.of", "{worker: 1}", ["of: seconds_an_update: there is no key worker; leave it out"]),
    ("01", "predictoins", "{}", ["predictoins", "did you mean predictions?"]),
    ("01", WORKERS, "{leest: 1, most: 9}", ["num_workers:", "did you mean least?"]),
    ("01", f"{WORKERS}.least", "65", ["least: 65 is above most: 64"]),
    ("01", f"{FIRST}.law", "at_leest", ["laws: number 1:", "did you mean at_least?"]),
    ("01", f"{FIRST}.text", "", ["exercise: laws: number 1: needs text:"]),
    ("01", f"{FIRST}.valeu", "4", ["at_least:", "did you mean value?"]),
    ("01", f"{FIRST}.value", "", ["at_least: needs value:"]),
    ("01", f"{FIRST}.value", "much", ["value: must be a number, not much"]),
    ("01", "exercise.laws.1.option", "num_worker", ["option: num_worker", "did you mean num_workers?"]),
    ("03", "strategy.scenarios.0", "{slak: 0}", ["strategy: there is no option slak; did you mean slack?"]),
    ("03", "strategy.scenarios.5", "{num_workers: 1}", ["needs slack in each run; scenario 6 has none"]),
    ("03", "strategy.laws.13.mode", "sspp", ["equals: mode: there is no mode sspp; did you mean ssp?"]),
    ("03", "strategy.laws.0.allowed", "numpy", ["allowed: must be a list, not numpy"]),
    ("05", "exercise.options.num_workers", "8", ["lab.yaml", "--k 16"]),
    ("05", f"{FIRST}", "{law: most_fun, text: It is fun.}", ["most_fun"]),
]


@pytest.mark.parametrize(("number", "place", "value", "parts"), WRONG)
def test_a_wrong_lab_is_refused_in_one_line(
    number: str, place: str, value: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is answered, a lab with a mistake ends with 2 and one line, and no answer is judged."""
    lab = tmp_path / "lab.yaml"
    lab.write_text(changed(number, place, value))
    (tmp_path / "01.yaml").write_text("predictions: {busy: 0.37}\n")
    code, out, err = check(capsys, lab, tmp_path / "01.yaml")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert all(part in err for part in ["lab.yaml", *parts]), err
    assert not (tmp_path / "01.first.yaml").exists()


def test_a_key_that_appears_twice_in_a_lab_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lab whose title stands there twice is refused with the line."""
    (tmp_path / "lab.yaml").write_text("title: a\npredictions: {}\ntitle: b\n")
    code, _, err = check(capsys, tmp_path / "lab.yaml")
    assert code == 2
    assert "lab.yaml: line 3: 'title' appears twice" in err


def test_an_exercise_that_no_option_solves_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lecturer, who asks for the questions, reads so; an exercise that can be solved passes."""
    text = (LABS / "01.yaml").read_text().replace("least: 1, most: 64", "least: 15, most: 17")
    for rate, code in (("4.6", 0), ("46", 2)):
        (tmp_path / "lab.yaml").write_text(text.replace("&rate 4.6", f"&rate {rate}"))
        found, _, err = check(capsys, tmp_path / "lab.yaml")
        assert found == code
        assert ("exercise: no num_workers satisfies all its laws" in err) == (code == 2)
    real = read_lab(LABS / "02.yaml").exercise
    assert real
    assert solvable(real) is None  # a real number: not all can be tried


@pytest.mark.parametrize("name", ["1", "01", "03"])
def test_a_lab_is_named_by_its_number(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`lab 3` is lab 3, and prints its questions as a file to fill in."""
    lab = read_lab(path_of(Path(name)))
    assert lab.title.startswith(f"Lab {int(name)}:")
    if name == "01":
        code, out, _ = check(capsys, name)
        assert code == 0
        assert list(yaml.safe_load(out)["predictions"]) == list(lab.predictions)


def test_options_are_put_into_words() -> None:
    """Laws of times, rates and lists are words in a sentence; what has none stays as it is."""
    assert (
        words("compute_time", "shifted-exponential:0.5,1")
        == "times of 0.5 s plus an exponential part of mean 1 s"
    )
    assert words("compute_time", "markov:1,5,.05,.2") == "times markov:1,5,.05,.2"
    assert words("compute_time", "lognormal:1,0.5") == "lognormal times of median 1 s and sigma 0.5"
    assert words("slowdown", "0=4,2=1.5").endswith("and worker 2 is always 1.5 times slower")
    assert words("than", {"slack": float("inf")}) == "slack inf"


# --- First guesses ------------------------------------------------------------------------------------------


def test_the_first_guess_is_kept_and_never_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first number of each prediction is written once with its time, whatever is said later."""
    answers, kept = tmp_path / "01.yaml", tmp_path / "01.first.yaml"
    answers.write_text("predictions: {seconds: 2}\n")
    _, out, _ = check(capsys, LABS / "01.yaml", answers)
    assert f"first guesses kept in {kept}" in out
    first = kept.read_text()
    assert re.search(
        r'^seconds: \{guess: 2\.0, at: "\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}"\}$', first, re.M
    )
    answers.write_text("predictions: {seconds: 2.72, busy: 0.4}\n")
    _, out, _ = check(capsys, LABS / "01.yaml", answers)
    assert "you said 2.72, within 5% of both the measured value and theory's; your first guess: 2\n" in out
    assert kept.read_text().startswith(first)
    assert read_first_guesses(answers) == {"seconds": 2.0, "busy": 0.4}
    before = kept.read_text()
    _, out, _ = check(capsys, LABS / "01.yaml", answers)
    assert kept.read_text() == before
    assert "kept" not in out


def test_json_writes_no_first_guess(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A lecturer's reading of a file leaves nothing beside it, and has no theory unless asked."""
    answers = tmp_path / "01.yaml"
    answers.write_text("predictions: {seconds: 2}\n")
    code, out, _ = check(capsys, "01", answers, "--json")
    result = json.loads(out)
    assert (code, result["points"], result["of"]) == (1, 0, 7)
    assert [path.name for path in tmp_path.iterdir()] == ["01.yaml"]
    asked = result["questions"][0]
    assert (asked["name"], asked["mark"], asked["answer"], asked["first"]) == ("seconds", "fails", 2.0, None)
    assert "theory" not in asked
    assert "2.718" not in out
    _, out, _ = check(capsys, "01", answers, "--json", "--reveal")
    assert json.loads(out)["questions"][0]["theory"] == "measured 2.667, theory 2.718"


def test_damaged_first_guesses_get_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of first guesses that `lab` did not write so is refused, and stays as it is."""
    (tmp_path / "01.yaml").write_text("predictions: {seconds: 2}\n")
    (tmp_path / "01.first.yaml").write_text("seconds: many\n")
    code, _, err = check(capsys, "01", tmp_path / "01.yaml")
    assert code == 2
    assert "01.first.yaml: is not as `lab` wrote it; move it away to begin anew" in err
    assert (tmp_path / "01.first.yaml").read_text() == "seconds: many\n"


# --- Verdicts -----------------------------------------------------------------------------------------------

RIGHT = (SAMPLES / "train_bounded.py").read_text()
STEP = "        w = cluster.combine(rule, w, [done])\n"
ENDLESS = STEP + "        while w.version > 2:\n            pass\n"


def strategy() -> StrategyTask:
    task = read_lab(LABS / "03.yaml").strategy
    assert task
    return task


def judged(tmp_path: Path, text: str) -> list[Verdict]:
    """Return the verdicts on a strategy, as lab 3 has them."""
    (tmp_path / "train_mine.py").write_text(text)
    task = strategy()
    return judge._strategy(task, Work(tmp_path / "train_mine.py", task.options, task.scenarios))


def test_a_broken_strategy_has_one_cause_and_what_follows_from_it(tmp_path: Path) -> None:
    """The cause comes first, with the command of its run, and the untested take one line."""
    found = judged(tmp_path, RIGHT.replace(STEP, STEP + "        if w.version == 3:\n            1 / 0\n"))
    lines = list(printed.lines(found, "strategy", {}, reveal=False, quiet=False))
    assert lines[3] == "         the run failed: line 35: ZeroDivisionError: division by zero"
    assert lines[4].startswith("         run: main.py --mode ")
    (untested,) = [line for line in lines if "not tested" in line]
    assert re.match(r"  open   12 laws not tested: the run failed: line 35", untested)
    assert sum("FAILS" in line for line in lines) == 1


def test_mistakes_that_do_not_follow_are_each_shown(tmp_path: Path) -> None:
    """A worker that starts too far ahead explains other weights than SSP's, but not a wrong step size."""
    gate = "clocks[worker] - clocks.slowest <= cfg.slack"
    found = judged(tmp_path, RIGHT.replace(gate, f"{gate} + 1").replace("gradients=1", "gradients=2"))
    causes = {v.name: v.cause for v in found if v.finding.holds is False}
    assert causes["nobody_starts_too_far_ahead"] == causes["moves_by_its_share"] == ""
    assert all(v.cause.startswith("A worker starts only") for v in found if v.name == "equals" and v.cause)


def test_quiet_shows_failures_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --quiet a sentence that holds or is open is not printed, only counted."""
    (tmp_path / "01.yaml").write_text("predictions: {seconds: 2, seconds_with_one_slow: 4}\n")
    _, out, _ = check(capsys, "01", tmp_path / "01.yaml", "--quiet")
    assert re.findall(r"^  (\w+)  ", out, re.M) == ["FAILS"]
    assert out.endswith("\n1 of 7 hold, 1 fail, 5 open\n")


def test_what_holds_of_a_strategy_takes_one_line(tmp_path: Path) -> None:
    """The details of laws that hold are left out."""
    lines = list(printed.lines(judged(tmp_path, RIGHT), "strategy", {}, reveal=True, quiet=False))
    assert len(lines) == 2 + len(strategy().laws)


def test_an_endless_strategy_is_run_once(tmp_path: Path) -> None:
    """After the first run that never comes back no other is tried, and no law fails for want of it."""
    (tmp_path / "train_mine.py").write_text(RIGHT.replace(STEP, ENDLESS))
    task = strategy()
    work = Work(tmp_path / "train_mine.py", task.options, task.scenarios, time_limit_s=2.0)
    found = judge._strategy(task, work)
    assert {v.name for v in found if v.finding.holds is False} == {"ends"}
    assert sum(v.finding.holds is None for v in found) == len(found) - 2
    assert "did not come back within 2 s" in found[0].finding.seen


def test_the_limit_of_a_run_is_ten_seconds(tmp_path: Path) -> None:
    """What the labs' page promises is what a check does."""
    (tmp_path / "train_mine.py").write_text(RIGHT)
    task = strategy()
    assert Work(tmp_path / "train_mine.py", task.options, task.scenarios)._time_limit_s == 10.0
    assert "10 seconds" in (LABS / "README.md").read_text()


# --- A class ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_class_of_ten_gets_a_row_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken files, endless and vanishing strategies cost their own row only; the table has everyone."""
    samples = yaml.safe_load((SAMPLES / "03.yaml").read_text())
    answers = {
        "ada": yaml.safe_dump(samples),
        "bob": "predictions:\n  largest_staleness: 4\n  clock_gap: 4\nexercise: {slack: 3}\n",
        "cem": "",
        "dora": "predictions: [1, 2\n",
        "eve": "predictions: {clock_gap: 4}\nstrategy: train_eve.py\n",
        "finn": "predictions: {clock_gap: 4}\nstrategy: train_finn.py\n",
        "gita": "predictions: {clock_gap: 4}\nstrategy: train_gita.py\n",
        "hal": "predictions: {clock_gap: 4, clock_gap: 5}\n",
        "kim": "predictions: {largest_staleness: '3,5', clock_gap: 4, clockgap: 4}\nexercise: {slack: 3}\n",
        "lea": "predictions: {clock_gap: 4}\nexercise: {slack: 3.5}\n",
    }
    strategies = {
        "train_bounded.py": RIGHT,
        "train_eve.py": "def train(:\n",
        "train_finn.py": RIGHT.replace(STEP, ENDLESS),
        "train_gita.py": RIGHT.replace(
            STEP, STEP + "        import os\n        print('{}')\n        os._exit(0)\n"
        ),
    }
    for name, text in answers.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    for name, text in strategies.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "ada.first.yaml").write_text('largest_staleness: {guess: 3.0, at: "then"}\n')
    (tmp_path / "ida").mkdir()  # handed in nothing
    shutil.copytree(SAMPLES, tmp_path / "jon")  # handed in the whole folder
    before = sorted(path.name for path in tmp_path.rglob("*"))

    code, out, _ = check(capsys, "03", tmp_path, "--csv")
    assert code == 0
    found = {row["student"]: row for row in csv.DictReader(io.StringIO(out))}
    assert list(found) == sorted([*answers, "ida", "jon"])
    assert {name: int(row["points"]) for name, row in found.items() if row["points"] != "0"} == {
        "ada": 20,
        "bob": 2,  # the clock gap, and a mean staleness or a time that suffices
        "eve": 1,
        "finn": 2,  # the clock gap, and that it is only its algorithm
        "jon": 20,
        "kim": 2,  # as bob; what cannot be read costs its own point
        "lea": 1,
    }
    asked = [found["ada"][f"largest_staleness {part}"] for part in ("points", "first", "answer")]
    assert asked == ["1", "3", "5"]
    assert (found["ada"]["exercise points"], found["ada"]["exercise answer"]) == ("2", "2")
    for name, says in {
        "cem": "is empty",
        "dora": "not YAML (line 2",
        "eve": "line 1: syntax error",
        "gita": "ended without a result",
        "hal": "'clock_gap' appears twice",
        "ida": "03.yaml: cannot be read",
        "kim": "largest_staleness: must be a number, like 1.5, not 3,5",
        "lea": "slack: must be a whole number",
    }.items():
        assert says in found[name]["error"], found[name]
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def small_class(tmp_path: Path) -> Path:
    for name, said in {"ada": 4, "bob": 3}.items():
        (tmp_path / f"{name}.yaml").write_text(f"predictions: {{seconds_with_one_slow: {said}}}\n")
    (tmp_path / "bob.first.yaml").write_text('seconds_with_one_slow: {guess: 1.75, at: "then"}\n')
    return tmp_path


@pytest.mark.thorough
def test_the_table_of_a_class_is_text_and_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As text a cell has points, first guess and answer; as CSV each has a column."""
    folder = small_class(tmp_path)
    _, out, _ = check(capsys, "01", folder)
    assert re.search(r"^ada +1/7 +0 - +0 - +0 - +1 4 +0 - +0/2$", out, re.M)
    assert re.search(r"^bob +0/7 +0 - +0 - +0 - +0 1\.75->3 +0 - +0/2$", out, re.M)
    assert "  4  seconds_with_one_slow\n" in out
    _, out, _ = check(capsys, "01", folder, "--csv")
    ada, bob = csv.DictReader(io.StringIO(out))
    assert (ada["student"], ada["points"], ada["seconds_with_one_slow points"]) == ("ada", "1", "1")
    assert (bob["seconds_with_one_slow first"], bob["seconds_with_one_slow answer"]) == ("1.75", "3")


def test_a_student_beyond_the_limit_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that does not end within --limit-s leaves a row that says so."""
    _, out, _ = check(capsys, "01", small_class(tmp_path), "--limit-s", "0.05")
    assert "  ada: no result in time\n  bob: no result in time\n" in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "has no answers; needed: NAME.yaml or NAME/01.yaml, one a student"),
        (["--limit-s", "0"], "--limit-s 0.0: must be above 0"),
        (["--limit-s", "nan"], "--limit-s nan: must be above 0"),
    ],
)
def test_a_folder_without_answers_gets_one_line(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty folder, or a limit that is none, ends with 2."""
    code, _, err = check(capsys, "01", tmp_path, *options)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


def test_a_verdict_says_its_mark() -> None:
    """The three marks of a check."""
    marks = [
        Verdict(part="exercise", name="x", text="x", finding=Finding(h, "")).mark for h in (True, False, None)
    ]
    assert marks == ["holds", "FAILS", "open"]
