"""How a run ends: its state in the summary, and the exit code (docs/record.md)."""

from __future__ import annotations

from typing import Literal

StoppedBy = Literal["budget", "seconds", "target-loss", "diverged", "interrupted", "failed"]

EXIT_CODES: dict[StoppedBy, int] = {
    "budget": 0,
    "seconds": 0,
    "target-loss": 0,
    "failed": 1,
    "diverged": 3,
    "interrupted": 130,
}
EXIT_FAILED, EXIT_USAGE, EXIT_DIVERGED, EXIT_INTERRUPTED = 1, 2, 3, 130


def is_result(stopped_by: str) -> bool:
    """Whether such an end is a result of the run's options: divergence is, being cut off is not."""
    return stopped_by not in ("failed", "interrupted")


def one_line(error: object) -> str:
    """Return an error's message on one line."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
