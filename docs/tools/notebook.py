"""Executes a notebook, as Jupyter would, and keeps its outputs.

python docs/tools/notebook.py docs/notebook.ipynb                   # or make docs
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

_FORMAT: Any = nbformat  # its functions have no types


def read(path: Path) -> Any:
    """Return a notebook."""
    return _FORMAT.read(path, as_version=4)


def executed(path: Path) -> Any:
    """Return the notebook with the outputs of all its cells, run in an empty folder.

    Raises nbclient.exceptions.CellExecutionError for a cell that fails.
    """
    notebook = read(path)
    for cell in notebook.cells:
        cell.metadata.clear()
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=240, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # when each cell ran is of no interest
    notebook.metadata.language_info = {"name": "python"}
    return notebook


if __name__ == "__main__":
    for name in sys.argv[1:]:
        _FORMAT.write(executed(Path(name)), name)
        print(name)
