"""Servers as processes of this machine: how each of them is ended."""

from __future__ import annotations

import subprocess
from typing import Any


def end(process: subprocess.Popen[Any], patience_s: float) -> None:
    """Ask a process to end, and end it by force if it has not after `patience_s`."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
