"""A strategy is one file and its page: a new one does all that the shipped ones do.

Two are in tests/own, which is a user's folder: majority-vote sign SGD, and asynchronous SGD in pairs. They
are copied into a separate folder, and nothing else is touched.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT, CommandLine, Ran, run_python

from dsgd.conformance import LawBroken, LawCheck, checks_of
from dsgd.show.report.build import build_report
from dsgd.strategies import modes

OWN = Path(__file__).parents[1] / "own"
OPTION = "--mode my/train_majority.py"
SIM = f"{OPTION} --engine sim --num-workers 3 --steps 30 --lr 0.01 --quorum 2"


@pytest.fixture(autouse=True)
def my(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a user's folder with `my/train_majority.py` the current one."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(OWN, tmp_path / "my")


def weights(ran: Ran) -> bytes:
    return (ran.record / "weights.npy").read_bytes()


def test_it_is_in_no_list() -> None:
    """The modes of the repository are the files of its folder; the user's is known to its runs only."""
    assert "majority" not in modes()


def test_help_shows_its_options(cli: CommandLine) -> None:
    """--help begins with the file's own text and describes its options."""
    ran = cli(f"{OPTION} --help")
    assert ran.code == 0
    assert "Mode majority: signSGD with majority vote" in " ".join(ran.out.split())
    assert "--quorum INT" in ran.out
    assert "How many more votes" in ran.out


def test_a_run_is_recorded_with_the_file_and_repeated_from_its_record(
    cli: CommandLine, my: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """config.yaml holds the file's resolved path, so that --config repeats the run from any folder."""
    first = cli(f"{SIM} --compute-time exponential:1")
    assert first.code == 0
    config = yaml.safe_load((first.record / "config.yaml").read_text())
    assert (config["mode"], config["strategy_file"]) == ("majority", str(my / "train_majority.py"))
    assert first.summary["theory"].keys() == {"staleness_mean", "s_per_update"}
    elsewhere = my.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = cli(f"--config {first.record}/config.yaml")
    assert again.code == 0
    assert weights(again) == weights(first)


def test_a_strategy_may_say_nothing_of_theory_and_laws(cli: CommandLine, my: Path) -> None:
    """Without `theory` and `LAWS` a strategy makes the same run; only the theory is missing."""
    file = my / "train_majority.py"
    whole = cli(SIM)
    file.write_text(file.read_text().partition("def theory(")[0])
    bare = cli(SIM)
    assert (bare.code, bare.summary["theory"]) == (0, {})
    assert weights(bare) == weights(whole)


def test_a_record_outlives_the_file(cli: CommandLine, my: Path) -> None:
    """A run is reported after its strategy's file has gone."""
    ran = cli(SIM)
    (my / "train_majority.py").unlink()
    assert "majority" in build_report(ran.record).read_text()


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_real_workers_compute_the_tasks_it_defines(cli: CommandLine) -> None:
    """Ray's workers do not have the file: its tasks bring their code, and the weights are the simulator's."""
    problem = "--workload quadratic --dim 4 --curvatures 1,2,3 --optima 0,1,-1"
    real, sim = cli(f"{SIM} {problem} --engine ray"), cli(f"{SIM} {problem}")
    assert (real.code, sim.code) == (0, 0)
    np.testing.assert_array_equal(np.load(real.record / "weights.npy"), np.load(sim.record / "weights.npy"))


@pytest.mark.thorough
def test_it_is_compared_in_an_experiment_and_reported(cli: CommandLine, tmp_path: Path) -> None:
    """An experiment's processes load the file, and the report compares the strategy with SSGD."""
    from main import main

    variants = {
        "vote": {"mode": "my/train_majority.py", "quorum": 2, "lr": 0.01},
        "ssgd": {"mode": "ssgd"},
    }
    base = {"engine": "sim", "num_workers": 3, "steps": 20}
    Path("x.yaml").write_text(
        yaml.safe_dump({"title": "Votes", "question": "Who?", "base": base, "variants": variants, "seeds": 2})
    )
    assert main(["compare", "x.yaml", "--processes", "2", "--out", f"{tmp_path}/out"]) == 0
    page = (tmp_path / "out" / "x" / "report.html").read_text()
    assert "majority" in page
    one = cli(SIM)
    assert "majority" in build_report(one.record).read_text()


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_on_real_workers_it_keeps_the_law(my: Path) -> None:
    """There it spends its budget, and as it claims to be deterministic its weights are the simulator's."""
    held("runs_on_real_workers", my / "train_majority.py")()


@pytest.mark.thorough
def test_its_own_test_runs_in_the_users_folder(my: Path) -> None:
    """It needs the package alone, and holds all laws to the file; here without the one on real workers."""
    out = pytest_in(my, "-v", "-k", "not real_workers", "test_majority.py")
    assert "FAILED" not in out
    assert "is_another quorum=3 is majority quorum=2] PASSED" in out
    assert "test_the_majority_decides[3] PASSED" in out


@pytest.mark.thorough
def test_a_broken_law_is_a_sentence_in_the_users_test(my: Path) -> None:
    """What is shown is the law, the first difference, the remedy and the command: nothing of dsgd's code."""
    file = my / "train_majority.py"
    text = file.read_text()
    assert text.count("plain_sgd=None") == 1
    file.write_text(text.replace("plain_sgd=None", 'plain_sgd={"momentum": 0.0}'))
    out = pytest_in(my, "-k", "plain_sgd or versions", "test_majority.py")
    assert "1 failed, 2 passed" in out
    assert "majority breaks a law (momentum=0.0): With P = 1 it is plain SGD" in out
    assert "update 1 (of worker 0): weight 48 is" in out
    assert "remedy:  If it never is" in out
    assert "def one_worker_is_plain_sgd" not in out


def pytest_in(folder: Path, *arguments: str) -> str:
    """Run pytest in a folder as its user would; return what it prints."""
    quietly = {"PYTHONDONTWRITEBYTECODE": "1"}
    done = run_python("-m", "pytest", "-p", "no:cacheprovider", *arguments, cwd=folder, env=quietly)
    print(done.stdout, done.stderr, file=sys.stderr)
    return done.stdout


# --- Laws, and mistakes that break them ---------------------------------------------------------------------


@pytest.mark.crossing
@pytest.mark.parametrize("name", ["majority", "pairs"])
def test_it_keeps_all_laws(name: str, my: Path) -> None:
    """Neither is plain SGD with P = 1; one weighs its results differently and remembers a number."""
    checks = [check for check in checks_of(str(my / f"train_{name}.py")) if not check.needs_ray]
    assert len(checks) >= 15
    keep(checks)


def keep(checks: list[LawCheck]) -> None:
    for check in checks:
        check()


Mistake = tuple[str, str, list[tuple[str, str]], list[str]]

# The law, the file, what is replaced in it, and what the message says.
MISTAKES: list[Mistake] = [
    ("is_only_its_algorithm", "pairs", [("import ClassVar\n", "import ClassVar\nimport time\n")],
     ["imports no engine, clock", "imports time"]),
    ("train_fits_a_slide", "majority", [("    while True:\n", "    x = 0\n" * 25 + "    while True:\n")],
     ["at most 25 lines", "it has 30"]),
    ("says_where_it_comes_from", "majority", [("Limits: with", "With")], ["no 'Limits:'"]),
    ("its_options_make_the_same_configuration", "majority",
     [("        rule =", '        object.__setattr__(self, "quorum", self.quorum + 1)\n        rule =')],
     ["quorum becomes 3, needed 2"]),
    ("spends_the_budget", "pairs", [(", exact_budget=False", "")],
     ["update 26 (of worker", "makes 52 mini-batches, needed 51", "exact_budget=False"]),
    ("versions_count_updates", "majority",
     [("yield Update(w,", "yield Update(w._replace(version=7 * w.version),")],
     ["update 1 has version 7, needed 1"]),
    ("every_worker_takes_part", "pairs",
     [("            start_idle(cluster, gradient, w)\n",
       "            [cluster.start(i, gradient, w) for i in sorted(cluster.idle) if i < 3]\n"),
      ("        start_idle(cluster, gradient, w)  # before", "        # before")],
     ["worker 3 took no part"]),
    ("each_task_is_in_one_update", "pairs", [("yield Update(w, two)", "yield Update(w, [two[0]])")],
     ["mini-batches were finished", "are in updates", "ignored"]),
    ("the_same_seed_gives_the_same_run", "pairs",
     [("def train(", "SEEN = []\n\n\ndef train("),
      ("stale = sum(", "SEEN.append(0)\n        stale = len(SEEN) + sum(")],
     ["repeated: update 1 (of workers", "kept is"]),
    ("what_theory_bounds_is_never_passed", "majority",
     [("staleness_mean=lambda: 0.0", "staleness_max=lambda: -1.0")],
     ["staleness_max is 0, and theory says -1"]),
    ("no_scenario_breaks_it", "majority", [("quorum: int = 1", "quorum: int = 2")],
     ["--quorum 2: must lie between 1 and num_workers = 1", "defaults", "--num-workers 1"]),
    ("one_worker_is_plain_sgd", "majority", [("plain_sgd=None", 'plain_sgd={"momentum": 0.0}')],
     ["With P = 1 it is plain SGD", "update 1 (of worker 0): weight 48 is", "needed", "plain_sgd=None"]),
    ("reaches_the_loss_of_plain_sgd", "majority", [('{"lr": 0.002}', '{"lr": 1e-6}')],
     ["the loss ends at", "needed", "convex=None", "--workload digits"]),
    ("does_not_depend_on_who_is_faster", "pairs", [("plain_sgd=None,", "plain_sgd=None, deterministic={},")],
     ["where all are equally fast", "in_worker_order", "deterministic=None"]),
    ("is_another", "majority", [('{"quorum": 2})]', '{"quorum": 1})]')],
     ["(quorum=3 is majority quorum=1)", "update 1 (of workers 0, 1, 2, 3, 4): weight", "--quorum 3"]),
    ("goes_on_from_any_update", "pairs",
     [("    while True:\n", "    mean = 0.0\n    while True:\n"), ("        mean = w.kept or 0.0\n", ""),
      ("w = cluster.combine(rule, w.keeping(mean + (stale - mean) / (w.version + 1)), two)",
       "mean += (stale - mean) / (w.version + 1)\n        w = cluster.combine(rule, w.keeping(mean), two)")],
     ["keeps nothing between two updates", "started again after update", "kept is", "w.keeping(value)"]),
    ("goes_on_from_any_update", "pairs",
     [("yield Update(w, two)", "yield Update(w.keeping(lambda: 0), two)")],
     ["update 1", "cannot be in a checkpoint", "Weights.kept has", "<lambda>"]),
    ("survives_random_faults", "pairs", [("yield Update(w, two)", "yield from ()")],
     ["next_done was called 1000 times, and no update was made"]),
    ("each_task_is_in_one_update", "pairs", [("yield Update(w, two)", "yield from ()")],
     ["0 of 96 mini-batches are in updates"]),
    ("survives_random_faults", "pairs",
     [("            if done := cluster.next_done():\n                two.append(done)\n",
       "            two.append(cluster.next_done())\n")],
     ["whoever leaves or joins", "AttributeError", "next_done() returns None", "--faults"]),
]  # fmt: skip


@pytest.mark.parametrize(("law", "name", "mistake", "parts"), MISTAKES)
def test_a_mistake_breaks_its_law(
    law: str, name: str, mistake: list[tuple[str, str]], parts: list[str], my: Path
) -> None:
    """The message is the law, the first difference in one line, the remedy and the command: no arrays."""
    file = my / f"train_{name}.py"
    text = file.read_text()
    for right, wrong in mistake:
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    file.write_text(text)
    checks = [check for check in checks_of(str(file)) if check.law.__name__ == law]
    with pytest.raises(LawBroken) as broken:
        keep(checks)
    message = str(broken.value)
    for part in parts:
        assert part in message
    assert message.startswith(f"{name} breaks a law")
    assert len(message.splitlines()) <= 4
    assert max(map(len, message.splitlines())) < 400
    assert "array(" not in message


def test_every_law_is_broken_by_a_mistake(my: Path) -> None:
    """None of the laws is one that cannot fail; real workers are asked in test_conformance.py."""
    laws = {check.law.__name__ for check in checks_of("ssp") if not check.needs_ray}
    assert laws <= {law for law, *_ in MISTAKES}


def test_without_its_page_it_breaks_a_law(my: Path) -> None:
    """The message names the page and where it belongs."""
    (my / "pairs.md").unlink()
    with pytest.raises(LawBroken, match=f"there is no page pairs.md in {my}"):
        held("says_where_it_comes_from", my / "train_pairs.py")()


def held(law: str, file: Path) -> LawCheck:
    (check,) = (check for check in checks_of(str(file)) if check.law.__name__ == law)
    return check


@pytest.mark.thorough
def test_conformance_prints_each_law_once(my: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check FILE` says what holds, and below what does not why; the exit code is 0 or 1."""
    from main import main

    assert main(["check", "my/train_pairs.py", "--no-ray"]) == 0
    out = capsys.readouterr().out
    assert "15 of 15 checks hold" in out
    assert "not claimed in LAWS, so not checked: plain_sgd, deterministic" in out
    assert out.count("It keeps nothing between two updates") == 1
    file = my / "train_pairs.py"
    file.write_text(file.read_text().replace(", exact_budget=False", ""))
    assert main(["check", "my/train_pairs.py", "--no-ray"]) == 1
    out = capsys.readouterr().out
    assert "FAILS  A run applies exactly num_workers x steps mini-batches" in out
    assert "seen:    update 26" in out
    assert "13 of 15 checks hold, 2 fail" in out  # the budget, with faults and without


def test_conformance_shows_an_error_once(my: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error that ends every run is shown once, however many laws it breaks; the exit code is 1."""
    from main import main

    file = my / "train_pairs.py"
    file.write_text(file.read_text().replace("    while True:\n", "    boom\n    while True:\n", 1))
    assert main(["check", "my/train_pairs.py", "--no-ray"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("boom") == 1
    assert "the error above again" in printed


# --- The scaffold -------------------------------------------------------------------------------------------


@pytest.mark.crossing
@pytest.mark.parametrize("into", [[], ["--into", "my/new"]])
def test_the_scaffold_writes_a_strategy_that_keeps_the_laws(
    into: list[str], tmp_path: Path, cli: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside the repository `new` writes file, page and test into one folder; all work."""
    from main import main

    assert main(["new", "mine", *into]) == 0
    folder = Path("my/new") if into else Path()
    said = capsys.readouterr().out
    for name in ("train_mine.py", "mine.md", "test_mine.py"):
        assert f"{folder / name}\n" in said
        assert (folder / name).exists()
    ran = cli(f"--mode {folder / 'train_mine.py'} --engine sim --steps 20 --factor 0.5")
    assert ran.code == 0
    for check in checks_of(str(folder / "train_mine.py")):
        if not check.needs_ray:
            check()


@pytest.mark.crossing
def test_the_scaffolds_test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The test that it writes is one of pytest's, and holds the file to the laws and to its own."""
    from main import main

    assert main(["new", "mine", "--into", "new"]) == 0
    out = pytest_in(tmp_path / "new", "-k", "factor_times or seed")
    assert "2 passed" in out


@pytest.mark.thorough
def test_in_the_repository_nothing_else_is_touched(tmp_path: Path) -> None:
    """In a clone the files of the scaffold are a mode: it is in --help, and style and tests hold."""
    clone = tmp_path / "clone"
    clone.mkdir()
    for path in [*ROOT.glob("*.py"), ROOT / "pyproject.toml", ROOT / "README.md"]:
        shutil.copy(path, clone)
    leave_out = shutil.ignore_patterns("__pycache__")
    for folder in ("dsgd", "docs", "tests", "deploy"):
        shutil.copytree(ROOT / folder, clone / folder, symlinks=True, ignore=leave_out)
    environment = {"PYTHONPATH": f"{clone}", "PYTHONDONTWRITEBYTECODE": "1"}

    def call(*arguments: str) -> str:
        done = run_python("-m", *arguments, cwd=clone, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    before = {path for path in clone.rglob("*") if path.is_file()}
    assert "tests/test_mine.py" in call("main", "new", "mine")
    new = {path for path in clone.rglob("*") if path.is_file()} - before
    files = sorted(f"{path.relative_to(clone)}" for path in new)
    assert files == ["docs/strategies/mine.md", "dsgd/strategies/train_mine.py", "tests/test_mine.py"]
    assert "Mode mine: mine: synchronous SGD" in " ".join(call("main", "--mode", "mine", "--help").split())
    call("ruff", "check", "--no-cache", *files[1:])
    call("ruff", "format", "--no-cache", "--check", *files[1:])
    named = ("conformance", "golden", "mine", "optimizers", "usage")
    tests = [str(path) for name in named for path in (clone / "tests").rglob(f"test_{name}.py")]
    out = call("pytest", "-p", "no:cacheprovider", "-m", "not ray", "--mode", "mine", *tests)
    assert "test_mine.py ." in out  # the law of the factor
    assert "mine is new: `make golden REWRITE=1` keeps its weights" in out
    others = ["tests/house/test_house.py", "tests/house/test_documents.py"]
    chosen = "not of_all_strategies"  # what the large comparisons have is written by hand
    assert " passed" in call("pytest", "-q", "-p", "no:cacheprovider", *others, "-k", chosen)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ["new", "Sign Vote"],
            ["new Sign Vote: a name has lower-case letters", "signvote"],
        ),
        (["new", "train_x"], ["without train_ and .py"]),
        (["new", "ssp"], ["there is a mode ssp already", "like myssp"]),
        (["new", "majority", "--into", "my"], ["my/train_majority.py already", "another name"]),
        (["new", "x", "--into", "my/pairs.md"], ["my/pairs.md/train_x.py cannot be written"]),
        (["new", "x", "--int", "my"], ["--int: is not an option", "did you mean --into?"]),
        (["check", "sspp"], ["check sspp: there is no such strategy"]),
        (["check", "my/train_none.py"], ["check my/train_none.py: cannot be read"]),
    ],
)
def test_a_mistake_in_these_commands_gets_one_line(
    arguments: list[str], parts: list[str], my: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, and one line that names the option, the rule and the remedy; no file is written or changed."""
    from main import main

    before = {path: path.read_bytes() for path in my.parent.rglob("*") if path.is_file()}
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    for part in parts:
        assert part in err
    assert {path: path.read_bytes() for path in my.parent.rglob("*") if path.is_file()} == before


# --- Mistakes in a file -------------------------------------------------------------------------------------


NO_DEFAULT = """from dataclasses import dataclass
from dsgd.config import TrainConfig
@dataclass(frozen=True, kw_only=True)
class Config(TrainConfig):
    mode: str = "x"
    patience: int
def train(cluster, w, cfg):
    return iter(())
"""
WRONG: list[tuple[str, str, list[str]]] = [
    ("--mode my/train_none.py", "", ["my/train_none.py", "cannot be read"]),
    ("--mode my/train_x.py", "def f(:\n", ["my/train_x.py", "line 1: syntax error"]),
    ("--mode my/train_x.py", "\nx = y\n", ["line 2", "NameError", "'y'"]),
    ("--mode my/train_x.py", "x = 1\n", ["needs a Config", "train(cluster, w, cfg)"]),
    ("--mode my/train_asgd.py", "", ["a mode asgd already", "rename"]),
    ("--mode my/mine.py", "", ["train_<mode>.py"]),
    ("--strategy-file my/train_majority.py --mode ssp", "", ["--mode ssp", "is majority", "alone"]),
    (f"{OPTION} --slack 3", "", ["--slack", "--mode ssp", "not of --mode majority"]),
    (f"{OPTION} --qorum 3", "", ["--qorum", "did you mean --quorum"]),
    (f"{OPTION} --quorum 9", "", ["--quorum 9", "between 1 and num_workers"]),
    ("--mode", "", ["--mode", "needs a value"]),
    ("--mode my/train_x.py", NO_DEFAULT, ["--patience: has no default", "give it a value"]),
    ("--mode my/train_x.py", NO_DEFAULT.replace("patience", "mix"), ["has an option mix, as all runs once"]),
    (
        "--mode my/train_x.py",
        NO_DEFAULT.replace("int", "tuple[str, ...]"),
        ["is an int, float"],
    ),
]


@pytest.mark.parametrize(("text", "source", "parts"), WRONG)
def test_a_mistake_gets_one_line(text: str, source: str, parts: list[str], cli: CommandLine) -> None:
    """Exit 2, and one line that names the file or option, the line of the file, and the rule."""
    if source:
        Path("my/train_x.py").write_text(source)
    ran = cli(f"--engine sim {text}") if text != "--mode" else cli("--engine sim", text)
    assert ran.code == 2
    assert len(ran.err.strip().splitlines()) == 1
    for part in parts:
        assert part in ran.err
    assert not cli.out.exists()


def test_a_mistake_in_its_config_names_its_line(cli: CommandLine, my: Path) -> None:
    """What its Config raises, other than a refused value, is one line with the line of the file."""
    file = my / "train_majority.py"
    lines = file.read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "require(1 <=" in text)
    file.write_text("\n".join(lines).replace("require(1 <=", "oops(1 <="))
    ran = cli(SIM)
    assert ran.code == 2
    assert ran.err == (
        f"main.py: --mode my/train_majority.py: line {line}: NameError: name 'oops' is not defined\n"
    )
