"""How every command prints, reports a usage error, in one line with the remedy, and opens its page.

A Ray job whose command line is wrong is stopped by its own driver: KubeRay tries a job that failed again, in
a new cluster, whatever its exit code; one that was stopped it leaves alone.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from dsgd.process.outcomes import UsageError, one_line, print_page, program
from dsgd.show.terminal import examples
from dsgd.show.terminal.cli import with_dashes
from dsgd.show.terminal.help import paragraph, table, width


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError of the block into UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


class Terminal(Console):
    """Where commands print: rich's would end the program with 1 once its reader has left (`| head`)."""

    def on_broken_pipe(self) -> None: ...


class Parser(argparse.ArgumentParser):
    """The parser of a command other than a run, like --experiment; its examples are in examples.py."""

    def __init__(self, verb: str, description: str) -> None:
        super().__init__(prog=program(), allow_abbrev=False, description=description, add_help=False)
        self._verb = verb

    def format_help(self) -> str:
        """Return the help page, for the terminal as wide as it is."""
        columns = width()
        rows = [(_usage(action), action.help or "") for action in self._actions]
        page = [f"usage: {self.prog} {rows[0][0]}{' [OPTIONS]' * (len(rows) > 1)}", ""]
        page += [*paragraph(self.description or "", columns), ""]
        if shown := examples.OF_COMMANDS.get(self._verb):
            page += ["Examples:", *examples.lines(shown, columns), ""]
        return "\n".join([*page, "Options:", *table(rows, columns)])

    def error(self, message: str) -> NoReturn:
        if bad := re.fullmatch(r"argument (\S+): invalid (int|float) value: '(.*)'", message):
            kind = {"int": "a whole number", "float": "a number"}[bad[2]]
            raise UsageError(f"{bad[1]} {bad[3]}: must be {kind}")
        raise UsageError(f"{message.removeprefix('argument ')}; see {self._verb} --help")

    def parse(self, arguments: Sequence[str]) -> Any:
        """Return the options' values; raises UsageError for an option that the verb does not take."""
        if {"-h", "--help"} & set(arguments):  # also where the verb still lacks its value
            print_page(self.format_help())
            raise SystemExit(0)
        given, others = self.parse_known_args([with_dashes(argument) for argument in arguments])
        if not others:
            return given
        name = others[0].partition("=")[0]
        known = {o for action in self._actions for o in action.option_strings}
        if near := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            hint = f"did you mean {near[0]}?"
        elif "--set" in known and name.startswith("--"):
            hint = f"an option of its runs is given as --set {name.removeprefix('--')}=VALUE"
        else:
            hint = f"see {self._verb} --help"
        raise UsageError(f"{name}: is not an option of {self._verb}; {hint}")


def _usage(action: argparse.Action) -> str:
    metavar = action.metavar
    value = " ".join(metavar) if isinstance(metavar, tuple) else metavar or ""
    shown = f"[{value}]" if action.nargs == "?" else value
    return f"{', '.join(action.option_strings)} {shown}".rstrip()


def open_page(page: Path) -> None:
    """Open a page in the browser; where there is none, say in one line where the page is.

    Python's `webbrowser` chooses it: what BROWSER names, else the desktop's. Browsers that would take over
    the terminal (lynx, w3m) count as none, unless BROWSER names one.
    """
    url = page.resolve().as_uri()
    if not _opened(url):
        print(f"{program()}: --open: no browser can be opened here; the page is {url}", file=sys.stderr)


def _opened(url: str) -> bool:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    in_terminal = type(browser) is webbrowser.GenericBrowser and not os.environ.get("BROWSER")
    return not in_terminal and browser.open(url)


STOP_ASKED = "DSGD_STOP_ON_USAGE_ERROR"
"""The environment variable by which a RayJob asks for it."""

_WITHIN_S = 30.0  # of importing ray, a call to the head's dashboard, and the signal that it sends


def stop_own_job() -> None:
    """Have Ray stop the job that this process is the driver of, if that was asked for: SIGTERM ends it here.

    If Ray does not, the process goes on after a while, to end with its own exit code.
    """
    job = _own_job() if os.environ.get(STOP_ASKED) == "1" else None
    if job is None:
        return
    print("the same again would fail the same way: the job is stopped, not tried again", file=sys.stderr)
    sys.stderr.flush()
    thread = threading.Thread(target=_stop, args=(job,), daemon=True)
    thread.start()
    thread.join(_WITHIN_S)


def _own_job() -> str | None:
    with suppress(KeyError, ValueError):
        job = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["job_submission_id"]
        return str(job)
    return None


def _stop(job: str) -> None:
    try:
        from ray.dashboard.utils import ray_address_to_api_server_url
        from ray.job_submission import JobSubmissionClient

        head = ray_address_to_api_server_url(os.environ.get("RAY_ADDRESS"))
        JobSubmissionClient(head).stop_job(job)
    except Exception as error:
        print(f"the job could not be stopped ({one_line(error)})", file=sys.stderr)
    else:
        time.sleep(_WITHIN_S)
