"""The command `serve`: what runs have trained, over HTTP."""

from __future__ import annotations

import asyncio
import signal
import socket
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import UsageError
from dsgd.serve.options import ServeOptions
from dsgd.show.live.server import listen, url_of
from dsgd.show.terminal.command_options import options_of_command
from dsgd.show.terminal.trained_commands import run_to_use
from dsgd.show.terminal.usage import usage_errors


def serve(arguments: Sequence[str], _: Interruptions) -> int:
    """Serve until ctrl-C or SIGTERM, and return the exit code once what was accepted is answered.

    Raises UsageError, in one line, for anything that is wrong.
    """
    given = options_of_command(ServeOptions, "serve", arguments)
    with usage_errors(), listen("--port", given.host, given.port) as listener:
        _serve(given, listener)
    return 0


def _serve(given: ServeOptions, listener: socket.socket) -> None:
    try:
        import uvicorn

        from dsgd.serve.application import application
        from dsgd.serve.versions import Catalog, Meters, Version
    except ModuleNotFoundError as error:
        raise UsageError(f"serve: needs {error.name}; install the extra: uv sync --extra serve") from None

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Take ctrl-C and SIGTERM as the end of what was asked for, not as a failure."""
            loop = asyncio.get_running_loop()
            for which in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(which, self.handle_exit, which, None)
            yield

    meters, url = Meters(), url_of(listener)
    catalog = Catalog([Version(run_to_use("serve", run, mapped=True), given, meters) for run in given.runs])
    for version in catalog:
        print(f"model   {version.model}, version {version.name}")
        for note in version.notes:
            print(f"note    {note}")
    print(f"serving {url} (its interfaces: /docs)", flush=True)
    if given.open:
        webbrowser.open(f"{url}/docs")
    config = uvicorn.Config(application(catalog, given, meters), log_config=None, access_log=False)
    asyncio.run(Server(config).serve([listener]))
