"""The options of what is kept of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt

from dsgd.core import option_texts as texts
from dsgd.core.option_rules import HIDDEN, Checked, Must, Parsed, require


def is_name(text: str) -> bool:
    """Whether a record's folder can have this name, with room for what is added while it is written."""
    return bool(re.fullmatch(r"\w[\w.+=-]*", text)) and len(text.encode()) <= 200


@dataclass(frozen=True, kw_only=True)
class OutputConfig(Checked):
    """What is kept of a run."""

    out: str = "runs"
    """Folder of the run records. s3://BUCKET/PREFIX: they are written to runs/s3/BUCKET/PREFIX and uploaded
    while the run goes on, and when it ends, however it ends."""
    folder = Parsed("out", texts.folder)

    upload_every: Annotated[float, Gt(0), HIDDEN] = 60.0
    """Wall seconds between two uploads of what a run with --out s3://... has recorded. inf: when it ends."""

    run_name: Annotated[
        str | None,
        Must(
            "must name a folder: letters, digits and . _ + = -, at most 200 bytes, no . + = - first",
            is_name,
        ),
    ] = None
    """Name of the record's folder; must be new. None: time, mode, workers and seed."""

    note: Annotated[
        str | None,
        Must("must be one line of at most 500 letters", lambda t: t.isprintable() and len(t) <= 500),
    ] = None
    """A line about the run, shown and searched by `main.py watch`. Words that begin with # are its tags, as
    in "#slides second try"."""

    record: str = "all"
    """Which updates are written to updates.jsonl: all | every:N | none."""
    record_every = Parsed("record", texts.every)

    trace_last: Annotated[int | None, Ge(0), HIDDEN] = None
    """Number of final updates shown in trace.json (for Perfetto). None: as many as make a file of a few MB.
    0: no trace.json."""

    profile: str | None = None
    """FILE[@FIRST-LAST]: write what torch computes from update FIRST to LAST (2-11), in the driver and in
    workers' processes on Ray, to a file for Perfetto."""
    profiled = Parsed("profile", texts.profile)

    tensorboard: bool = False
    """Also write scalars for TensorBoard while the run goes on (needs the extra `tensorboard`)."""

    quiet: bool = False
    """Print nothing but the record's path."""

    def __post_init__(self) -> None:
        super().__post_init__()
        uploads = self.upload_every == 60.0 or self.out.startswith("s3://")
        require(uploads, "upload-every", self.upload_every, "is for --out s3://BUCKET/PREFIX; give that too")
        rule = "needs recorded updates, and --record is none; use --record all"
        require(not self.trace_last or self.record != "none", "trace-last", self.trace_last, rule)

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for what cannot be in this run."""
        rule = "--engine both compares updates, so they must be recorded; use --record all"
        require(run.engine != "both" or self.record != "none", "record", "none", rule)
        rule = "--engine both is two runs, and this is one file; profile --engine ray or sim"
        require(run.engine != "both" or self.profile is None, "profile", self.profile, rule)
