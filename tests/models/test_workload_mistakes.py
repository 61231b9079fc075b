"""What a user may get wrong in a workload: one line, exit code 2, and nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from main import main

START = """\
from dsgd import Problem as P
import torch
from torch import nn
x, f = torch.ones(64, 2), nn.Linear(2, 1)
mean = lambda m, x: m(x).mean()
"""

FILES = {
    "nothing = 1": "needs a function make() that returns a dsgd.Problem",
    "make = 3": "needs a function make() that returns a dsgd.Problem",
    "def make(): pass": "make() returned a NoneType; return a dsgd.Problem",
    "def make(): return 3": "make() returned a int; return a dsgd.Problem",
    "async def make(): return 3": "make() returned a coroutine; return a dsgd.Problem",
    "def make(): return 1 / 0": "line 6: ZeroDivisionError: division by zero",
    "def make(): raise SystemExit": "line 6: SystemExit",
    "class No(BaseException): pass\ndef make(): raise No('so')": "line 7: No: so",
    "def make(:": "line 6: syntax error",
    "def make(cfg): pass": "TypeError: make() missing 1 required positional argument: 'cfg'",
    "def make(): return P(nn.ReLU(), mean, (x,), (x,))": "its module has no parameter that requires a",
    "def make(): return P(x, mean, (x,), (x,))": "its module is a Tensor; give a torch.nn.Module",
    "def make(): return P(f, 'mse', (x,), (x,))": "its loss is a str; give a function",
    "def make(): return P(f, lambda m, x: exit(), (x,), (x,))": "line 6: SystemExit",
    "def make(): return P(f, lambda m, x: 1.5, (x,), (x,))": "its loss has float; return a",
    "def make(): return P(f, lambda m, x: m(x).mean() / 0, (x,), (x,))": "its loss is ",
    "def make(): return P(f, mean, (x, None), (x,))": "its train data hold a NoneType; give",
    "def make(): return P(f, mean, (x,), x[0, 0])": "its test data hold a Tensor; give arrays",
    "def make(): return P(f, mean, (x + 0j,), (x,))": "its train data are complex; give real",
    "def make(): return P(f, mean, (x[:0],), (x,))": "train data are empty",
    "def make(): return P(f, mean, (), (x,))": "train data have no arrays",
    "def make(): return P(f, mean, (x, x[1:]), (x,))": "of 64, 63 rows",
    "def make(): return P(f, mean, (x,), (x,), about=[])": "its about is a list; give names and",
    "def make(): return P(f, mean, (x,), (x,), about={'x': x})": "its about has no form as JSON",
    "def make(): return P(f, mean, (x,), (x,), None, '4')": "its bytes_per_token is '4'; give a",
    "def make(): return P(f, lambda m, x: m(x), (x,), (x,))": "its loss has shape (2, 1); return one",
    "def make(): return P(f, lambda m, x: m(x).mean() * float('nan'), (x,), (x,))": "its loss is nan at the",
    "def make(): return P(f, lambda m, x: m(x).mean() + 1 / 0, (x,), (x,))": (
        "its loss cannot be computed: line 6: ZeroDivisionError: division by zero"
    ),
    "def make(): return P(f, lambda m, x, y: 0, (x,), (x,))": "missing 1 required positional argument: 'y'",
    "def make(): return P(f, lambda m, x: m(x).mean().detach(), (x,), (x,))": "its loss does not depend on",
    "def make(): return P(f, mean, (x,), (torch.ones(5, 3),))": (
        "its loss of test data cannot be computed: line 5: RuntimeError: "
    ),
    "def make(): return P(f, mean, (x,), (x,), lambda m, x: [][1])": (
        "its score of test data cannot be computed: line 6: IndexError: list index out of range"
    ),
    "def make(): return P(f, mean, (x,), (x,), lambda m, x: m(x))": "its score of test data has shape (8, 1)",
    "def make(): return P(f, mean, (x[:6],), (x,))": "--batch-size 8: worker 0's shard has only 3 of the 6",
    "def make(): return P(f, lambda m, *d: nn.functional.cross_entropy(m(x), x[:, 0]), (x,), (x,))": (
        "to be Long or Byte, but got Float; class labels are whole numbers: give y.long()"
    ),
    "def make(): return P(f, mean, [*x.double()], [*x.double()])": (
        "but got Double and Float; parameters are float32: give x.float()"
    ),
    **{
        f"def make(): return P(nn.Sequential({layer}), mean, (x.byte(),), (x.byte(),))": (
            "; parameters are float32, and images of whole numbers are not: give x.float() / 255"
        )
        for layer in (
            "f",
            "nn.LayerNorm(2)",
            "nn.BatchNorm1d(2)",
            "nn.Softmax(1), f",
            "nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 1, 1)",
        )
    },
    "import json; json.loads('{')": "cannot be imported: line 6: JSONDecodeError: Expecting property name",
    "from torch import not_there": "cannot be imported: line 6: ImportError: cannot import name 'not_there'",
    "import sys; sys.exit(3)": "cannot be imported: line 6: SystemExit: 3",
}

OPTIONS = {
    "--workload nowhere": "--workload nowhere: there is no such workload; give xor, digits, ",
    "--workload my/none.py": "my/none.py: cannot be read (No such file or directory)",
    "--workload gpt --size 3m": "--size 3m: must be one of 100k, 1m, ",
    "--workload gpt --context 0": "--context 0: must be at least 1",
    "--workload gpt --data none.txt": "none.txt: there is no such file or folder",
    "--workload digits_cnn --size 1m": "--size is an option of --workload gpt; leave it out or choose that",
    "--size 1m": "--size is an option of --workload gpt; leave it out or choose that workload",
    "--workload digits_cnn --hidden 8": "--hidden 8: has no effect with --workload digits_cnn",
    "--workload gpt --top-k 3": "--top-k 3: has an effect only with --experts; leave it out",
    "--workload gpt --router-z .1": "--router-z 0.1: has an effect only with --experts; leave it out",
    "--workload gpt --experts 4 --top-k 5": "--top-k 5: must be at most --experts 4, which is all there are",
    "--workload moe --experts 0": "--experts 0: must be at least 1",
    "--workload moe --top-k 0": "--top-k 0: must be at least 1",
    "--workload moe --capacity 0": "--capacity 0.0: must be above 0",
    "--workload moe --capacity nan": "--capacity nan: must be above 0",
    "--workload moe --balance-rate -1": "--balance-rate -1.0: must be finite and above 0",
    "--workload moe --balance loss --balance-rate 2": "--balance-rate 2.0: has no effect with --balance loss",
    "--workload moe --balance loss:0": "--balance loss:0: WEIGHT must be a number above 0",
    "--workload digits_cnn --batch-size 900": "--batch-size 900: worker 0's shard has only 700 of the 1400",
    "--workload digits_cnn --num-workers 2000": "2000 workers need at least one sample each",
}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line of a run that is not begun."""
    capsys.readouterr()
    code = main(["--engine", "sim", "--num-workers", "2", "--steps", "3", *arguments])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not Path("runs").exists()
    return err


@pytest.mark.parametrize("text", FILES)
def test_a_file_that_cannot_be_trained_is_one_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the file, its line where there is one, and what to return."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(f"{START}{text}\n")
    line = refused(["--workload", "mine.py", "--batch-size", "8"], capsys)
    assert FILES[text] in line
    assert str(tmp_path / "mine.py") in line or line.startswith("main.py: --batch-size")


@pytest.mark.parametrize("arguments", OPTIONS)
def test_options_that_do_not_fit_a_workload_are_one_line(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the option, and what to give in its place."""
    monkeypatch.chdir(tmp_path)
    assert OPTIONS[arguments] in refused(arguments.split(), capsys)


LATE = """\
import numpy as np, torch
from torch import nn
from dsgd import Problem

calls, marks = 0, np.arange(256)
x, y = torch.ones(256, 4), torch.zeros(256, dtype=torch.long)
test = (x[:64], y[:64].clone())

class Items:
    def __len__(self): return 256
    def __getitem__(self, i): return x[i, : 3 if i == 150 else 4], y[i]

class Missing(Items):
    def __getitem__(self, i): return x[i], {"a": y[i]}["b" if i == 150 else "a"]

class Failing(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x.clone())
    @staticmethod
    def backward(ctx, g):
        return g if calls < 30 else {}[calls]

def loss(m, x, y, marks=None):
    global calls
    calls += torch.is_grad_enabled()
    LINE
    return nn.functional.cross_entropy(Failing.apply(m(x)), y)

def score(m, x, y):
    assert (y < 5).all(), "a mark is missing"
    return (m(x).argmax(1) == y).float().mean()

def make():
    train = (x, y)
    MADE
    return Problem(nn.Linear(4, 10), loss, train, test, score)
"""
GIVEN = " (with float32 [16, 4], int64 [16]"
ALONE = "fails alone too"
TESTED = f" (with float32 [8, 4], int64 [8]; test sample 40 {ALONE})"
LATER = {
    ("", "y[137] = 11"): (1, f"26: IndexError: Target 11 is out of bounds.{GIVEN}; sample 137 {ALONE}"),
    ("", "y[9] = -3"): (1, f"26: IndexError: Target -3 is out of bounds.{GIVEN}; sample 9 {ALONE}"),
    ("assert marks is None or not (marks == 77).any(), 'so'", "train = (x, y, marks)"): (
        1, f"25: AssertionError: so{GIVEN}, int64 [16]; sample 77 {ALONE}",
    ),
    ("if calls > 20: 1 / 0", ""): (1, f"25: ZeroDivisionError: division by zero{GIVEN})\n"),
    ("", ""): (1, "20: KeyError: 30\n"),
    ("", "train = Missing()"): (1, f"14: KeyError: 'b' (sample 150 {ALONE})"),
    ("", "train = Items()"): (1, " and 150); give its Problem a collate"),
    ("", "test[1][40] = 12"): (2, f"26: IndexError: Target 12 is out of bounds.{TESTED}"),
    ("", "test[1][40] = 6"): (2, f"29: AssertionError: a mark is missing{TESTED}"),
    ("assert m.training or len(x) < 40, 'large'", ""): (2, "25: AssertionError: large (with float32 [64, 4]"),
    ("assert len(x) != 5, 'odd'", "--batch-size 10 --accumulate 2"): (
        2, "25: AssertionError: odd (with float32 [5, 4]",
    ),
    ("assert len(x) < 10, 'large'", "--accumulate 1"): (2, "25: AssertionError: large (with float32 [16, 4]"),
}  # fmt: skip
"""What a loss does, and what make() or the command does: how the run ends, and what is said."""


@pytest.mark.parametrize("late", LATER)
def test_what_fails_later_is_one_line(
    late: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the line of the user's file, what the loss was given, and the sample to blame; what fails for
    the sizes that parts have later is refused before the run.
    """
    monkeypatch.chdir(tmp_path)
    line, made = late
    options, made = (made, "pass") if made.startswith("--") else ("", made or "pass")
    (tmp_path / "late.py").write_text(LATE.replace("LINE", line or "pass").replace("MADE", made))
    given = "--engine sim --mode ssgd --workload late.py --num-workers 2 --steps 40 --batch-size 16 --quiet"
    code, said = main([*given.split(), *options.split()]), capsys.readouterr().err
    expected, words = LATER[late]
    assert (code, said.count("\n"), words in said) == (expected, 1, True), said
    assert (
        code == 2
        or "do not fit" in said
        or re.search(r"in worker [01]'s mini-batch \d+: late\.py, line ", said)
    )
    assert (tmp_path / "runs").exists() == (code == 1)
