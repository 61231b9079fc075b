"""Draws the figures of docs/labs again, from the experiments that its pages name.

    python docs/tools/lab_figures.py docs/labs/*.md        # or make labs

A page has the command `uv run python main.py compare FOLDER/experiments/NAME.yaml`, and shows figures of
that experiment's report as images/NAME-FIGURE.svg.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from dsgd.show.report.figures import draw_sections
from dsgd.show.report.frames import read_folder
from dsgd.show.report.panels.drawing import Panel
from dsgd.show.report.style import standalone_svg

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"uv run python main\.py compare (\S*experiments/[\w-]+\.yaml)")
IMAGE = re.compile(r"\]\((images/([a-z0-9]+)-([\w-]+)\.svg)\)")


def refresh(page: Path, out: Path) -> list[Path]:
    """Run a page's experiments, with their records in the folder `out`, and return the figures written.

    Raises ValueError for a figure that none of its experiments makes.
    """
    text = page.read_text(encoding="utf-8")
    drawn: dict[tuple[str, str], Panel] = {}
    for experiment in dict.fromkeys(COMMAND.findall(text)):
        subprocess.run(
            [sys.executable, "main.py", "compare", experiment, "--out", str(out)],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        name = Path(experiment).stem
        for section in draw_sections(read_folder(out / name)):
            drawn |= {(name, panel.name): panel for panel in section.panels}
    written = []
    for image, name, figure in IMAGE.findall(text):
        if (name, figure) not in drawn:
            known = ", ".join(f"{name}-{figure}" for name, figure in drawn)
            raise ValueError(f"{page}: no experiment of it makes {name}-{figure}; there are {known}")
        path = page.parent / image
        path.parent.mkdir(exist_ok=True)
        path.write_text(standalone_svg(drawn[name, figure].svg), encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in sys.argv[1:]:
                print(f"{name}: {len(refresh(Path(name), Path(folder)))} figures")
        except (OSError, ValueError) as error:
            sys.exit(f"lab_figures.py: {error}")
