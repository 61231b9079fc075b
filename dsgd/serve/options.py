"""The options of `serve`."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from dsgd.core.option_rules import FINITE, HIDDEN, REPEATED, Checked, Must, Parsed, require
from dsgd.show.terminal.command_options import Positional

_LOOPBACK = "127.0.0.1", "localhost", "::1"


def is_range(text: str) -> bool:
    """Whether a text is a number of replicas, or the fewest and the most."""
    return range_of(text)[0] >= 1


def range_of(text: str | None) -> tuple[int, int]:
    """Return the fewest and the most replicas; (0, 0) for what is neither.

    >>> range_of("3"), range_of("auto:1-8"), range_of("auto:8-1")
    ((3, 3), (1, 8), (0, 0))
    """
    found = re.fullmatch(r"([1-9]\d{0,3})|auto:([1-9]\d{0,3})-([1-9]\d{0,3})", text or "1")
    least, most = (int(found[1] or found[i]) for i in (2, 3)) if found else (0, 0)
    return (least, most) if least <= most else (0, 0)


def shares_of(text: str | None) -> dict[str, float]:
    """Return the share of each version that a split names.

    >>> shares_of("90:runs/a@120,10:runs/a@160")
    {'runs/a@120': 90.0, 'runs/a@160': 10.0}
    """
    found = dict[str, float]()
    for part in text.split(",") if text else ():
        share, colon, name = part.partition(":")
        try:
            found[name.strip()] = float(share)
        except ValueError:
            colon = ""
        if not (colon and name and 0 <= found.get(name.strip(), -1) < math.inf):
            raise ValueError(
                "must be SHARE:RUN@VERSION, of each version, with a comma between, like 90:a@1,10:a@2"
            )
    if text and not sum(found.values()) > 0:
        raise ValueError("must have a share above 0")
    return found


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Checked):
    """Answer requests with what runs trained, until ctrl-C: the Open Inference Protocol for every model, and
    OpenAI's completions for those that write text. This runs the code of the runs' workloads.
    """

    runs: Annotated[tuple[str, ...], Positional("RUN..."), REPEATED]
    """Folders of runs, or s3://BUCKET/PREFIX/NAME; RUN@VERSION is a checkpoint. Those that learned the same
    are versions of one model, and the last of them answers where a request names none.
    """

    port: Annotated[int, Must("must be a port, 0 to 65535", lambda port: 0 <= port < 65536)] = 8080
    """0 takes any that is free."""

    host: str = "127.0.0.1"
    """The address to listen at; others than this machine's own need --token."""

    token: str | None = None
    """What requests must send, as Authorization: Bearer TOKEN. None: DSGD_SERVE_TOKEN of the environment, if
    it has that."""

    open: bool = False
    """Open the page that describes the interfaces in the browser."""

    replicas: Annotated[str | None, Must("must be a number of replicas, or auto:FEWEST-MOST", is_range)] = (
        None
    )
    """Serve on Ray, from processes that each have the weights: N of them, or auto:1-8, as many as are needed.
    None: 1 if RAY_ADDRESS names a cluster, else this process."""

    split: str | None = None
    """Shares of the requests that name no version, like 90:RUN@120,10:RUN@160. None: all to the last."""
    shares = Parsed("split", shares_of)

    int8: bool = False
    """Hold the weights of linear layers in 8 bits, and print what that costs on the test data."""

    follow: bool = False
    """Go over to each newer checkpoint of a run that goes on."""

    max_batch: Annotated[int, Ge(1)] = 32
    """Rows that are computed together, and texts that are written at a time."""

    batch_wait_ms: Annotated[float, FINITE, Ge(0)] = 2.0
    """How long a request waits for others while the model is free."""

    max_queue: Annotated[int, Ge(1)] = 1000
    """Requests that may wait; others get 503, and when to come again."""

    timeout_s: Annotated[float, FINITE, Gt(0), HIDDEN] = 60.0
    """The time limit of a request, from its first byte to the end of its answer."""

    max_body_mb: Annotated[float, FINITE, Gt(0), HIDDEN] = 16.0
    """The largest body of a request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token is None:  # there no list of processes shows it
            object.__setattr__(self, "token", os.environ.get("DSGD_SERVE_TOKEN", "").strip() or None)
        rule = "others reach it there; give --token, or leave --host out"
        require(self.is_here or bool(self.token), "host", self.host, rule)
        rule = "replicas do not follow a run; leave --follow out"
        require(not (self.replicas and self.follow), "replicas", self.replicas, rule)

    @property
    def is_here(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in _LOOPBACK
