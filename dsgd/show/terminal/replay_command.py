"""The command `replay`: a recorded run computed again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge

from dsgd.core.option_rules import Checked
from dsgd.process.files import whole_file
from dsgd.process.interruptions import Interruptions, ended_by_signals
from dsgd.process.outcomes import EXIT_FAILED, UsageError, echoed, print_page
from dsgd.process.s3_access import is_s3
from dsgd.records.s3 import fetch
from dsgd.records.schema import RecordError
from dsgd.show.terminal.command_options import Positional, options_of_command
from dsgd.show.terminal.usage import usage_errors

with ended_by_signals():
    from dsgd.running.replaying import ReplayComparison, compared, recorded_run, unlike


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Checked):
    """Compute a recorded run again in its recorded order, without workers, and compare each task's loss and
    the weights with the record. Asynchronous runs of real workers give their bytes again too. Exit codes: 0
    the same, 1 something differs or cannot be compared, 2 the record cannot be replayed.
    """

    run: Annotated[str, Positional("RUN")]
    """Its folder, or s3://BUCKET/PREFIX/NAME."""

    until: Annotated[int | None, Ge(1)] = None
    """Stop at this version of the weights. None: at the end."""

    save: str | None = None
    """Write the last weights computed to this file, like w.npy."""


def replay(arguments: Sequence[str], _: Interruptions) -> int:
    """Compute a recorded run again, compare it with its record, and return the exit code.

    Raises UsageError, in one line, for a record that cannot be replayed.
    """
    given = options_of_command(ReplayOptions, "replay", arguments)
    with usage_errors():
        folder = fetch(given.run, "replay", weights=True) if is_s3(given.run) else Path(given.run)
    try:
        found = compared(recorded_run(folder), given.until)
    except RecordError as error:
        raise UsageError(f"replay {error}") from None
    if given.save:
        with whole_file(Path(given.save), "name another file with --save") as file:
            np.save(file, found.weights.vector)
    print_page("\n".join(_said(found, given.until, given.save)))
    return 0 if found.is_same else EXIT_FAILED


def _said(found: ReplayComparison, until: int | None, saved: str | None) -> Iterator[str]:
    run, unit = found.run, "virtual s" if found.run.cfg.engine == "sim" else "s"
    yield f"run       {run.cfg.mode} on {run.cfg.engine}, {run.cfg.num_workers} workers: {run.path}"
    yield (
        f"replayed  {found.updates} updates of {found.tasks} tasks in {found.wall_s:.3g} s; "
        f"the run took {found.recorded_s:.4g} {unit}"
    )
    for note in found.made.workload.objective.trial.notes:
        yield f"note      {echoed(note)}"
    if until is not None and found.updates < until:
        yield f"          the record ends before version {until}"
    if found.differs:
        yield f"differs   {found.differs}"
    elif found.damaged:
        yield f"tasks     no difference up to update {found.updates:,}"
    else:
        yield "tasks     the same, with the same losses"
    digest = hashlib.sha256(found.weights.vector.tobytes()).hexdigest()
    if found.same_weights is not None:
        same = "no difference" if found.damaged else "the same bytes"
        yield f"weights   {same if found.same_weights else 'other bytes'}, sha256 {digest}"
    else:
        yield f"weights   of version {found.weights.version}, sha256 {digest}"
        if evaluation := found.evaluate():
            yield f"          loss {evaluation.loss:.6g} on held-out samples"
        if until is None and not found.damaged:
            yield "          its run has not ended: the record has no last weights to compare them with"
    for damaged in found.damaged:
        yield f"damaged   {damaged}"
    if found.damaged:
        yield "          what is damaged cannot be compared; put the record back as its run left it"
    if saved:
        yield f"saved     {saved}"
    if found.differs or found.same_weights is False:
        yield f"why       {_why(found)}"


def _why(found: ReplayComparison) -> str:
    """Return what may have made the difference."""
    if found.same_weights:
        return "the weights are those of the run, so the record's line was changed after it was written"
    if reasons := unlike(found.run.meta):
        return f"bits depend on the machine and its libraries: {'; '.join(reasons)}"
    made = f" (it was made by commit {found.run.meta.git_commit[:10]})" if found.run.meta.git_commit else ""
    return f"the libraries are the same: the code{made}, the processor, or the record itself has changed"
