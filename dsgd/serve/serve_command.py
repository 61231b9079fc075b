"""The command `serve`: what runs have trained, over HTTP."""

from __future__ import annotations

import math
import os
import socket
import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import UsageError
from dsgd.serve.options import ServeOptions
from dsgd.show.live.server import listen, url_of
from dsgd.show.terminal.command_options import options_of_command
from dsgd.show.terminal.usage import usage_errors


def serve(arguments: Sequence[str], interruptions: Interruptions) -> int:
    """Serve until ctrl-C or SIGTERM, and return the exit code once what was accepted is answered.

    Raises UsageError, in one line, for anything that is wrong.
    """
    given = options_of_command(ServeOptions, "serve", arguments)
    with usage_errors(), listen("--port", given.host, given.port) as listener:
        if find_spec("fastapi_offline") is None:
            raise UsageError("serve: needs FastAPI; install the extra serve: uv sync --extra serve")
        if given.replicas or os.environ.get("RAY_ADDRESS"):
            _on_cluster(given, listener, interruptions)
        else:
            _here(given, listener)
    return 0


def _here(given: ServeOptions, listener: socket.socket) -> None:
    from dsgd.serve.application import Server, application
    from dsgd.serve.loading import catalog_of, follow, load
    from dsgd.serve.versions import Meters

    meters = Meters()
    versions = load(given, meters)
    catalog = catalog_of(given, versions)
    if given.follow:
        followed = zip(given.runs, versions, strict=True)
        catalog.beside = [partial(follow, catalog, *one, given, meters) for one in followed]
    for version in versions:
        print(f"model   {version.model}, version {version.name}")
        for note in version.notes:
            print(f"note    {note}")
    _say(given, url_of(listener))
    Server(application(catalog, given, meters)).run([listener])


def _on_cluster(given: ServeOptions, listener: socket.socket, interruptions: Interruptions) -> None:
    from dsgd.serve.replicas import served

    url = url_of(listener)
    listener.close()
    on_port = replace(given, port=int(url.rpartition(":")[2]))
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        with interruptions.held():  # Ray installs its handlers, which would end this process
            stack.enter_context(served(on_port))
        _say(given, url)
        interruptions.wait(math.inf)


def _say(given: ServeOptions, url: str) -> None:
    print(f"serving {url} (its interfaces: /docs)", flush=True)
    if given.open:
        webbrowser.open(f"{url}/docs")
