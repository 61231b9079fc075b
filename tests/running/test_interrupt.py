"""Ctrl-C at any moment: one line that is true or none, no traceback, and the right exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HANGS, PATIENCE_S, ROOT, CommandLine, python

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # by nohup, for these tests and what they start
    SIGNALS.pop()


@pytest.mark.parametrize(
    ("arguments", "module"),
    [("compare e.yaml", "yaml"), ("report .", "polars"), ("lab a b", "yaml")],
)
def test_a_command_that_still_loads_has_written_nothing(arguments: str, module: str, tmp_path: Path) -> None:
    """A signal while the modules of a command load: exit 130, one line that is true of every command."""
    # Loading stops at a module that reports that it is being loaded, and then takes its time.
    hangs = f"import time\nprint('loading', flush=True)\n{HANGS}\n"
    (tmp_path / f"{module}.py").write_text(hangs)
    process = python(
        str(ROOT / "main.py"), *arguments.split(), env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    )
    assert process.stdout
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (130, "main.py: interrupted before it began; nothing was written\n")


@pytest.mark.parametrize("which", SIGNALS)
def test_an_interrupted_report_says_that_it_is_not_complete(which: signal.Signals, cli: CommandLine) -> None:
    """A signal while a report is drawn: exit 130, one line with the remedy, and no report."""
    ran = cli("--engine sim --steps 5 --workload none")
    (ran.record / "evals.jsonl").unlink()
    os.mkfifo(ran.record / "evals.jsonl")  # a report that reads it waits for a writer
    process = python(str(ROOT / "main.py"), "report", str(ran.record))
    with (ran.record / "evals.jsonl").open("wb"):  # waits until it is being read
        process.send_signal(which)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err == "main.py: interrupted before the report was complete; the same command draws it again\n"
    assert not (ran.record / "report.html").exists()


@pytest.mark.parametrize("which", SIGNALS)
@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_settled_when_the_work_is_done(which: signal.Signals, code: int) -> None:
    """A signal while the interpreter ends changes neither the exit code nor what was printed."""
    process = python(
        "-c",
        "import atexit, time\n"
        "from dsgd.process.interruptions import run_as_program\n"
        "def main(arguments):\n"
        "    print('done')\n"
        f"    atexit.register(lambda: (print('ending', flush=True), {HANGS}))\n"
        f"    return {code}\n"
        "run_as_program(main)\n",
    )
    assert process.stdout
    assert process.stdout.readline() == "done\n"
    assert process.stdout.readline() == "ending\n"
    process.send_signal(which)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (code, "")


def test_a_run_outlives_its_terminal_under_nohup() -> None:
    """A SIGHUP that was ignored when the program began stays ignored."""
    ignoring = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from dsgd.process.interruptions import Interruptions\n"
        "with Interruptions() as found:\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    found.wait(0.01)\n"
        "print('went on')\n"
    )
    assert python("-c", ignoring).communicate(timeout=PATIENCE_S) == ("went on\n", "")


def test_what_a_terminal_cannot_show_is_a_question_mark() -> None:
    """And the rest is printed: a page, a table of rich, and an error."""
    printing = (
        "from rich.console import Console; from dsgd.process.interruptions import run_as_program\n"
        "from dsgd.process.outcomes import print_page, report_error\n"
        "def main(_):\n"
        "    print_page('0.1 ± 0.2'); Console().print('0.3 ± 0.4'); return report_error('0.5 ± 0.6', 2)\n"
        "run_as_program(main)\n"
    )
    process = python("-c", printing, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert process.communicate(timeout=PATIENCE_S) == ("0.1 ? 0.2\n0.3 ? 0.4\n", "main.py: 0.5 \\xb1 0.6\n")
    assert process.returncode == 2


def test_a_standard_output_that_is_full_is_reported() -> None:
    """What could not be printed is an error: exit 1, one line; no traceback when Python ends."""
    called = (
        "from dsgd.process.interruptions import run_as_program; run_as_program(lambda _: print('x') or 0)"
    )
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", called],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr == "main.py: standard output: No space left on device; make room there\n"
