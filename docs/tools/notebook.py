"""Executes a notebook, as Jupyter would, and keeps its outputs.

python docs/tools/notebook.py docs/notebook.ipynb                   # or make docs
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbformat import NotebookNode


def read(path: Path) -> Any:
    """Return a notebook."""
    return json.loads(path.read_text(encoding="utf-8"), object_hook=NotebookNode)


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
        text = json.dumps(executed(Path(name)), indent=1, ensure_ascii=False)
        Path(name).write_text(f"{text}\n", encoding="utf-8")
        print(name)
