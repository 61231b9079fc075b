"""The command `serve`: what runs have trained, over HTTP."""

from __future__ import annotations

import asyncio
import socket
import webbrowser
from collections.abc import Sequence

from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import UsageError
from dsgd.serve.options import ServeOptions
from dsgd.show.live.server import listen, url_of
from dsgd.show.terminal.command_options import options_of_command
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
        from dsgd.serve.application import Server, application
        from dsgd.serve.loading import load
        from dsgd.serve.versions import Meters
    except ModuleNotFoundError as error:
        raise UsageError(f"serve: needs {error.name}; install the extra: uv sync --extra serve") from None
    meters, url = Meters(), url_of(listener)
    versions, catalog = load(given, meters)
    for version in versions:
        print(f"model   {version.model}, version {version.name}")
        for note in version.notes:
            print(f"note    {note}")
    print(f"serving {url} (its interfaces: /docs)", flush=True)
    if given.open:
        webbrowser.open(f"{url}/docs")
    asyncio.run(Server(application(catalog, given, meters)).serve([listener]))
