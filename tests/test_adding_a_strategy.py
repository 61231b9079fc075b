"""A strategy is one file and its page: a new one does all that the shipped ones do.

It is copied into a separate folder, and nothing else is touched.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import CommandLine, Ran, python

from dsgd.report.build import build_report
from dsgd.strategies import modes

OWN = Path(__file__).parent / "own"
OPTION = "--strategy-file my/train_signvote.py"
SIM = f"{OPTION} --engine sim --num-workers 3 --steps 30 --lr 0.01 --quorum 2"


@pytest.fixture(autouse=True)
def my(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a user's folder with `my/train_signvote.py` the current one."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(OWN, tmp_path / "my")


def weights(ran: Ran) -> bytes:
    return (ran.record / "weights.npy").read_bytes()


def test_it_is_in_no_list() -> None:
    """The modes of the repository are the files of its folder; the user's is known to its runs only."""
    assert "signvote" not in modes()


def test_help_shows_its_options(cli: CommandLine) -> None:
    """--help begins with the file's own text and describes its options."""
    ran = cli(f"{OPTION} --help")
    assert ran.code == 0
    assert "Mode signvote: signSGD with majority vote" in " ".join(ran.out.split())
    assert "--quorum INT" in ran.out
    assert "How many more votes" in ran.out


def test_a_run_is_recorded_with_the_file_and_repeated_from_its_record(
    cli: CommandLine, my: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """config.yaml holds the file's resolved path, so that --config repeats the run from any folder."""
    first = cli(f"{SIM} --compute-time exponential:1")
    assert first.code == 0
    config = yaml.safe_load((first.record / "config.yaml").read_text())
    assert (config["mode"], config["strategy_file"]) == ("signvote", str(my / "train_signvote.py"))
    assert first.summary["theory"].keys() == {"staleness_mean", "s_per_update"}
    elsewhere = my.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = cli(f"--config {first.record}/config.yaml")
    assert again.code == 0
    assert weights(again) == weights(first)


def test_a_strategy_may_say_nothing_of_theory_and_laws(cli: CommandLine, my: Path) -> None:
    """Without `theory` and `LAWS` a strategy makes the same run; only the theory is missing."""
    file = my / "train_signvote.py"
    whole = cli(SIM)
    file.write_text(file.read_text().partition("def theory(")[0])
    bare = cli(SIM)
    assert (bare.code, bare.summary["theory"]) == (0, {})
    assert weights(bare) == weights(whole)


def test_a_record_outlives_the_file(cli: CommandLine, my: Path) -> None:
    """A run is reported after its strategy's file has gone."""
    ran = cli(SIM)
    (my / "train_signvote.py").unlink()
    assert "signvote" in build_report(ran.record).read_text()


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_real_workers_compute_the_tasks_it_defines(cli: CommandLine) -> None:
    """Ray's workers do not have the file: its tasks bring their code, and the weights are the simulator's."""
    problem = "--dataset quadratic --dim 4 --curvatures 1,2,3 --optima 0,1,-1"
    real, sim = cli(f"{SIM} {problem} --engine ray"), cli(f"{SIM} {problem}")
    assert (real.code, sim.code) == (0, 0)
    np.testing.assert_array_equal(np.load(real.record / "weights.npy"), np.load(sim.record / "weights.npy"))


def test_it_is_compared_in_an_experiment_and_reported(cli: CommandLine, tmp_path: Path) -> None:
    """An experiment's processes load the file, and the report compares the strategy with SSGD."""
    from main import main

    variants = {
        "vote": {"strategy_file": "my/train_signvote.py", "quorum": 2, "lr": 0.01},
        "ssgd": {"mode": "ssgd"},
    }
    base = {"engine": "sim", "num_workers": 3, "steps": 20}
    Path("x.yaml").write_text(
        yaml.safe_dump({"title": "Votes", "question": "Who?", "base": base, "variants": variants, "seeds": 2})
    )
    assert main(["--experiment", "x.yaml", "--processes", "2", "--out", f"{tmp_path}/out"]) == 0
    page = (tmp_path / "out" / "x" / "report.html").read_text()
    assert "signvote" in page
    one = cli(SIM)
    assert "signvote" in build_report(one.record).read_text()


def test_the_laws_of_strategies_are_held_to_it() -> None:
    """`pytest tests/test_conformance.py --strategy-file FILE` holds the file to every law; it keeps them."""
    out = laws("my/train_signvote.py")
    assert " failed" not in out
    assert "quorum=3 is signvote quorum=2" in out
    assert out.count("PASSED") >= 20


def test_a_law_that_it_breaks_is_seen(my: Path) -> None:
    """If the file claims that P = 1 is plain SGD, that law fails, and only that."""
    file = my / "train_signvote.py"
    text = file.read_text()
    assert text.count("plain_sgd=None") == 1
    file.write_text(text.replace("plain_sgd=None", 'plain_sgd={"momentum": 0.0}'))
    out = laws("my/train_signvote.py", "-k", "plain_sgd or versions")
    assert "FAILED" in out
    assert "1 failed, 2 passed" in out


def laws(*arguments: str) -> str:
    """Run the laws on a file; return what pytest prints."""
    process = python(
        "-m", "pytest", "-v", "-p", "no:cacheprovider", "tests/test_conformance.py",
        f"--strategy-file={Path(arguments[0]).resolve()}", *arguments[1:],
    )  # fmt: skip
    out, err = process.communicate(timeout=100)
    print(out, err, file=sys.stderr)
    return out


WRONG: list[tuple[str, str, list[str]]] = [
    ("--strategy-file my/train_none.py", "", ["my/train_none.py", "cannot be read"]),
    ("--strategy-file my/train_x.py", "def f(:\n", ["my/train_x.py", "line 1: syntax error"]),
    ("--strategy-file my/train_x.py", "\nx = y\n", ["line 2", "NameError", "'y'"]),
    ("--strategy-file my/train_x.py", "x = 1\n", ["needs a Config", "train(cluster, w, cfg)"]),
    ("--strategy-file my/train_asgd.py", "", ["a mode asgd already", "rename"]),
    ("--strategy-file my/mine.py", "", ["train_<mode>.py"]),
    (f"{OPTION} --mode ssp", "", ["--mode ssp", "mode signvote", "leave --mode out"]),
    (f"{OPTION} --slack 3", "", ["--slack", "--mode ssp", "not of --mode signvote"]),
    (f"{OPTION} --qorum 3", "", ["--qorum", "did you mean --quorum"]),
    (f"{OPTION} --quorum 9", "", ["--quorum 9", "between 1 and num_workers"]),
    ("--strategy-file", "", ["--strategy-file", "needs a value"]),
]


@pytest.mark.parametrize(("text", "source", "parts"), WRONG)
def test_a_mistake_gets_one_line(text: str, source: str, parts: list[str], cli: CommandLine) -> None:
    """Exit 2, and one line that names the file or option, the line of the file, and the rule."""
    if source:
        Path("my/train_x.py").write_text(source)
    ran = cli(f"--engine sim {text}") if text != "--strategy-file" else cli("--engine sim", text)
    assert ran.code == 2
    assert len(ran.err.strip().splitlines()) == 1
    for part in parts:
        assert part in ran.err
    assert not cli.out.exists()


def test_a_mistake_in_its_config_names_its_line(cli: CommandLine, my: Path) -> None:
    """What its Config raises, other than a refused value, is one line with the line of the file."""
    file = my / "train_signvote.py"
    lines = file.read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "require(1 <=" in text)
    file.write_text("\n".join(lines).replace("require(1 <=", "oops(1 <="))
    ran = cli(SIM)
    assert ran.code == 2
    assert ran.err == (
        f"main.py: --strategy-file my/train_signvote.py: line {line}: NameError: name 'oops' is not defined\n"
    )
