"""The command `watch`: a page of runs while they go on."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dsgd.core.option_rules import Checked, Must
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import UsageError
from dsgd.show.live import server
from dsgd.show.terminal.command_options import Positional, options_of_command
from dsgd.show.terminal.usage import usage_errors

_PORT = 8000


@dataclass(frozen=True, kw_only=True)
class WatchOptions(Checked):
    """Show runs in a browser, those that go on and those that have ended: a folder of runs, an experiment's
    folder, or one run. ctrl-C ends it.
    """

    folder: Annotated[str, Positional("DIR")]
    """The folder, like runs."""

    port: Annotated[int | None, Must("must be a port, 0 to 65535", lambda port: 0 <= port < 65536)] = None
    """Of 127.0.0.1; 0 takes any. None: 8000, or any if that is taken."""

    open: bool = False
    """Open the page in the browser of this machine."""


def watch(arguments: Sequence[str], _: Interruptions) -> int:
    """Serve the records in a folder as a page, until ctrl-C.

    Raises UsageError in one line for anything that is wrong.
    """
    given = options_of_command(WatchOptions, "watch", arguments)
    folder = Path(given.folder)
    if not folder.is_dir():
        raise UsageError(f"watch {folder}: is not a folder; give a run, or a folder of runs, like runs")
    with usage_errors():
        listener = _listener(given.port)
    from dsgd.show.live.page import show

    url = server.url_of(listener)
    print(f"live    {url}", flush=True)
    if given.open:
        webbrowser.open(url)
    show(folder, listener)
    return 0


def _listener(port: int | None) -> socket.socket:
    """Return a socket at a port; without one at the usual port, or another if that is taken.

    Raises ValueError if the port is not available.
    """
    if port is not None:
        return server.listen("--port", "127.0.0.1", port)
    try:
        return server.listen("--port", "127.0.0.1", _PORT)
    except ValueError:
        return server.listen("--port", "127.0.0.1", 0)
