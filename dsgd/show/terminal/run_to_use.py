"""The run that --evaluate, --export and --sample use."""

from __future__ import annotations

from dsgd.process.interruptions import ended_by_signals
from dsgd.process.s3_access import is_s3
from dsgd.records.s3 import fetch
from dsgd.records.schema import RecordError
from dsgd.show.terminal.cli import UsageError

with ended_by_signals():
    from dsgd.running.trained_run import TrainedRun, trained_run

RUN = (
    "its folder, or s3://BUCKET/PREFIX/NAME; RUN@VERSION is one of its checkpoints. Of a run that has not "
    "ended, the newest checkpoint is used"
)


def run_to_use(option: str, source: str) -> TrainedRun:
    """Return what a run has trained; raises UsageError or ValueError, in one line, where that is not there.

    option: what asked for it, as messages name it.
    """
    place = str(fetch(source, option, weights=True)) if is_s3(source) else source
    try:
        return trained_run(place)
    except RecordError as error:
        raise UsageError(f"{option} {error}") from None
