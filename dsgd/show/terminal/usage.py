"""How every command prints, reports a usage error, in one line with the remedy, and opens its page.

A Ray job whose command line is wrong is stopped by its own driver: KubeRay tries a job that failed again, in
a new cluster, whatever its exit code; one that was stopped it leaves alone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

from dsgd.process.outcomes import UsageError, one_line, program
from dsgd.records.lease import TakenError


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


def stop_own_job(error: UsageError) -> None:
    """Have Ray stop the job that this process is the driver of, if that was asked for: SIGTERM ends it here.

    If Ray does not, the process goes on after a while, to end with its own exit code. Where the error is that
    another run has the name, nothing is stopped: it may be about to end.
    """
    job = _own_job() if os.environ.get(STOP_ASKED) == "1" else None
    if job is None or isinstance(error.__cause__, TakenError):
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

        os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"  # it asks its own cluster, and ends
        head = ray_address_to_api_server_url(os.environ.get("RAY_ADDRESS"))
        JobSubmissionClient(head).stop_job(job)
    except Exception as error:
        print(f"the job could not be stopped ({one_line(error)})", file=sys.stderr)
    else:
        time.sleep(_WITHIN_S)
