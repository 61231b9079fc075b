"""What a job leaves: losses in its records; what its logs say of uploads, premises and NCCL."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

# Of the evaluations of all runs with a record below the folder `runs`: the file's name, its first line and
# its last one. Runs that tune an experiment's options are left out: some of them may diverge.
READ_EVALUATIONS = (
    *("find", "runs", "-name", "evals.jsonl", "-not", "-path", "*/tuning/*"),
    *("-exec", "sed", "-n", "-e", "1F", "-e", "1p", "-e", "$p", "{}", ";"),
)


def losses_in_records(text: str) -> dict[str, tuple[float | None, float | None]]:
    """Return the first and the last loss of each run, from what READ_EVALUATIONS prints.

    A loss that was not finite is None. Raises ValueError for anything else.
    """
    lines = text.splitlines()
    if len(lines) % 3:
        raise ValueError(f"evals.jsonl: {lines[-1]} is cut off")
    losses = {}
    for path, first, last in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        losses[PurePosixPath(path).parent.name] = (json.loads(first)["loss"], json.loads(last)["loss"])
    return losses


_UPLOADED = re.compile(r"^(?:\w+ +)?(s3://\S+)$", re.MULTILINE)


def uploads_in_log(text: str) -> list[str]:
    """Return the URL in a driver's log line of its upload: `upload  s3://BUCKET/PREFIX/NAME`."""
    return _UPLOADED.findall(text)


_PREMISE = re.compile(r"^premise (.+: (?:holds|does not hold|was not measured).*)$", re.MULTILINE)


def premises_in_log(text: str) -> dict[str, bool]:
    """Return an experiment's premises as a driver's log has them, each with whether it held.

    >>> premises_in_log("premise idle_share is 0.7, at least 0.6: holds")
    {'idle_share is 0.7, at least 0.6: holds': True}
    """
    return {line: line.endswith(": holds") for line in _PREMISE.findall(text)}


_NCCL = re.compile(
    r"nccl(?:UnhandledCuda|System|Internal|Remote|InvalidUsage|InvalidArgument)\w*"
    r"|NCCL (?:WARN .*(?:error|fail|abort|timed? ?out)|error|watchdog)"
    r"|ProcessGroupNCCL.*(?:exception|timeout|timed out|abort|terminat)",
    re.IGNORECASE,
)


def nccl_errors(text: str) -> list[str]:
    """Return the lines of a log in which NCCL, or torch about it, reports an error."""
    return [" ".join(line.split()) for line in text.splitlines() if _NCCL.search(line)]
