"""The notebook of the documents runs in a real kernel, and shows what it gives; results have short texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT

import dsgd
from docs.tools.notebook import executed, read
from dsgd.show.report.frames import read_folder

DECIMAL = re.compile(r"\d+\.\d+")
FAST: dict[str, Any] = {"engine": "sim", "num_workers": 2, "steps": 30}


def texts(notebook: Any) -> list[str]:
    """Return what its cells give as text; figures are left out."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output.get("text") or output["data"].get("text/plain", "") for output in outputs]


@pytest.mark.thorough
def test_the_notebook_gives_what_it_shows() -> None:
    """Executed anew, in another folder, each cell has the output in the file; some are figures.

    Its last digits depend on the kind of processor: the losses of 800 updates of a module differ by .1 %.
    """
    path = ROOT / "docs/notebook.ipynb"
    found = executed(path)
    now, then = "\n".join(texts(found)), "\n".join(texts(read(path)))
    assert DECIMAL.sub("…", now) == DECIMAL.sub("…", then)
    assert [*map(float, DECIMAL.findall(now))] == pytest.approx(
        [*map(float, DECIMAL.findall(then))], rel=0.01
    )
    figures = [
        o for cell in found.cells for o in cell.get("outputs", ()) if "image/svg+xml" in o.get("data", {})
    ]
    assert len(figures) == 2


def test_results_are_short_to_look_at() -> None:
    """A cell that ends in a result shows a line, whatever the length of the run."""
    result = dsgd.run("asgd", **FAST)
    assert len(repr(result)) < 120
    assert len(repr(result.plot())) < 120


def test_a_run_is_a_row_a_curve_and_a_picture(tmp_path: Path) -> None:
    """The row has a report's columns, the curve is that of the evaluations, the picture is saved."""
    runs = [dsgd.run("asgd", seed=seed, out=tmp_path, **FAST) for seed in (0, 1)]
    stacked = pl.concat([run.frame() for run in runs])
    table = read_folder(tmp_path).runs.sort("seed")
    assert stacked.equals(table.select(stacked.columns))
    assert runs[0].curve(x="gradients").columns == ["gradients", "loss"]
    assert runs[0].curve()["loss"].to_list() == runs[0].evaluations["loss"].to_list()
    picture = runs[0].plot(runs[1])
    assert all(f"seed={seed}" in picture.svg for seed in (0, 1))
    assert picture.save(tmp_path / "a.svg").read_text() == picture.svg
    assert picture.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda run: run.curve("los"), "curve: los: must be one of version, t_s, gradients, bytes, loss"),
        (lambda run: run.plot(x="hour"), "curve: hour: must be one of"),
        (lambda run: run.plot().save("a.pdf"), "a.pdf: .pdf: must end in .svg or .png"),
        (
            lambda run: dsgd.run("asgd", **FAST, workload="none").plot(),
            "plot: asgd was not evaluated; give it",
        ),
    ],
)
def test_a_mistake_names_the_choices(wrong: Any, says: str) -> None:
    """What there is not to see is a ValueError in one line."""
    with pytest.raises(ValueError, match=re.escape(says)):
        wrong(dsgd.run("asgd", **FAST))


@pytest.mark.thorough
def test_a_comparison_draws_without_its_records() -> None:
    """The answer, a variant's curves and the first figure are there although nothing was kept on disk."""
    base = FAST | {"mode": "ssp", "compute_time": "exponential:1"}
    asked = {"title": "T", "question": "Q?", "base": base, "grid": {"slack": [0, 4]}, "seeds": 2}
    found = dsgd.experiment(asked | {"compare": "slack", "measure": "throughput"})
    assert "has the highest throughput" in found.answer
    assert found.plot().title == "Throughput by slack"
    assert found.curve("slack=4")["variant"].unique().to_list() == ["slack=4"]
    assert found.frame().equals(found.runs)
    with pytest.raises(ValueError, match="plot: timelines: there is no such figure; choose from sweep"):
        found.plot("timelines")
    with pytest.raises(ValueError, match="curve: slack=5: must be one of slack=0, slack=4"):
        found.curve("slack=5")
