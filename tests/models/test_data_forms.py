"""What a data set's samples may be: whatever torch's own loader takes, and a `collate` for the rest."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from conftest import ROOT
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from workloads.forms import X

from dsgd.core.problem import Problem, take
from dsgd.data import make_workload
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.models.objectives.replica import trained
from dsgd.models.workloads import _by_position, _wrong
from dsgd.running.quick_run import config, run, same_bytes

FORMS = str(ROOT / "tests/workloads/forms.py")


def options(form: str, **more: Any) -> dict[str, Any]:
    return {"workload": FORMS, "form": form, "num_workers": 2, "batch_size": 8, "steps": 6, **more}


def wanted(form: str, module: nn.Module, rows: Any) -> Tensor:
    """Return the loss of these samples, from plain tensors."""
    x, y = X[rows], X[rows].sum(1, keepdim=True)
    if form == "unequal":
        x = x * (torch.arange(4) < 2 + torch.as_tensor(rows)[:, None] % 3)
    found: Tensor = (module(x) - y).square().mean()
    if form == "slope":
        x = x.requires_grad_(True)
        (slopes,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        found = (slopes - 1).square().mean()
    return found


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    "form", ["swapped", "double", "texts", "dict", "nested", "named", "lone", "unequal", "packed", "slope"]
)
def test_samples_of_all_forms_are_trained_and_evaluated(form: str, accumulate: int) -> None:
    """The gradient and the loss of evaluations are those of the same numbers as plain tensors."""
    made = make_workload(config("ssgd", **options(form, accumulate=accumulate)))
    objective, shard = cast(ModuleObjective, made.objective), cast(ProblemShard, made.shards[1])
    module, w = objective.problem.module, torch.from_numpy(objective.initial_weights(0))[None]
    loss, g = objective.loss_and_gradient(w, [shard], [2])
    expected = wanted(form, module, shard.batch_rows(2))
    plain = torch.autograd.grad(expected, trained(module), allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(loss[0], expected.detach())
    torch.testing.assert_close(g[0], torch.cat([part.flatten() for part in plain]))
    found = objective.evaluate(objective.initial_weights(0))
    assert found
    assert found.loss == pytest.approx(wanted(form, module, np.arange(len(X))).item(), rel=1e-5)


MORE = ["texts", "nested", "slope"]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    "form", ["packed", *(pytest.param(form, marks=pytest.mark.thorough) for form in MORE)]
)
def test_both_engines_train_them(form: str) -> None:
    assert same_bytes(run("localsgd", **options(form)), run("localsgd", **options(form), engine="ray"))


VALUES = np.arange(24, dtype=np.float32).reshape(8, 3)
NUMBERS = np.arange(8.0)
SHUFFLED = [5, 2, 7, 0, 3, 6, 1, 4]
FRAME = pd.DataFrame(VALUES, index=SHUFFLED, columns=["part", "to", "mini_batch"])
COLUMNS: dict[str, Any] = {
    "array": (VALUES, NUMBERS),
    "series": (VALUES, pd.Series(NUMBERS, index=SHUFFLED)),
    "frame": (FRAME, NUMBERS),
    "frame of sparse columns": (FRAME.astype(pd.SparseDtype("float32", 0)), NUMBERS),
    "repeated index": (VALUES, pd.Series(NUMBERS, index=[0] * 8)),
    "two indices": (VALUES, pd.Series(NUMBERS, index=pd.MultiIndex.from_product([[1, 0], [3, 1, 0, 2]]))),
    "nullable": (VALUES, pd.Series(NUMBERS.astype(int), index=SHUFFLED, dtype="Int64")),
    "index": (VALUES, pd.Index(NUMBERS)),
    "polars": (pl.DataFrame(VALUES), pl.Series(NUMBERS)),
    "no mask": (np.ma.array(VALUES), NUMBERS),
    "other bytes": (VALUES.astype(">f4"), NUMBERS),
}


def made_of(data: Any) -> Problem:
    """Return what a file's `make` has made, as it is checked and used."""
    return cast(Problem, _by_position(Problem(nn.Linear(3, 1), lambda module, *batch: None, data, data)))


@pytest.mark.parametrize("kind", COLUMNS)
def test_rows_are_taken_by_position(kind: str) -> None:
    """Whatever the index of a data frame calls them, and in memory that torch may write to."""
    found = made_of(COLUMNS[kind])
    assert _wrong(found) is None
    for expected, tensor in zip((VALUES, NUMBERS), take(found.train, np.array([6, 1])), strict=True):
        assert tensor.tolist() == expected[[6, 1]].tolist()


def test_a_data_frame_alone_is_an_array() -> None:
    for data in (FRAME, pl.DataFrame(VALUES)):
        (x,) = take(made_of(data).train, np.array([6, 1]))
        assert x.tolist() == VALUES[[6, 1]].tolist()


SPARSE = torch.tensor(VALUES).to_sparse()
NO_ROWS: dict[str, Any] = {
    "hold a csr_matrix, whose rows torch cannot take": (csr_matrix(VALUES), NUMBERS),
    "hold a sparse Tensor, whose rows": (SPARSE, NUMBERS),
    "hold a tuple, whose rows": ((VALUES, VALUES), NUMBERS),
    "hold a dict, whose rows": ({"x": VALUES}, NUMBERS),
    "hold a deque, whose rows": (VALUES, deque(NUMBERS)),
    "hold a str, whose rows": (VALUES, "12345678"),
    "hold a list; give arrays": (VALUES, [0] * 8),
    "hold a LazyFrame; give arrays": (pl.LazyFrame(VALUES), NUMBERS),
    "have the type datetime64[us], whose rows": (VALUES, pd.Series(pd.date_range("2020", periods=8))),
    "have the type float128, whose rows": (VALUES.astype(np.longdouble), NUMBERS),
    "have the type object, with numbers or None": (pd.DataFrame({"a": [1], "b": ["u"]}), NUMBERS[:1]),
    "have masked values; fill them in": (np.ma.masked_less(VALUES, 5), NUMBERS),
    "are a dict; give a tuple of arrays": {"x": VALUES, "y": NUMBERS},
    "are a set; give a tuple of arrays": {1, 2, 3},
}


@pytest.mark.parametrize("words", NO_ROWS)
def test_what_has_no_rows_is_refused_by_its_type(words: str) -> None:
    wrong = _wrong(made_of(NO_ROWS[words]))
    assert wrong
    assert wrong.startswith(f"its train data {words}")


WRONG = {
    "Problem(module, loss, Ragged(), Ragged())": "its samples do not fit together (stack expects",
    "Problem(module, loss, (x,), (x,), collate=list)": "its collate is for the items of a dataset, and",
    "Problem(module, loss, (['a', 'b'],), (x,))": "its train data hold a list; give arrays with a row",
    "Problem(module, loss, Ragged(), Ragged(), collate=5)": "its collate is a int; give a function",
    "Problem(module, loss, Ragged(), Ragged(), collate=lambda items: items[9])": "its loss cannot be",
}


@pytest.mark.parametrize("problem", WRONG)
def test_what_does_not_fit_together_is_one_line(problem: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch; from torch import nn; from dsgd import Problem\n"
        "class Ragged(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, i): return torch.ones(1 + i)\n"
        "def loss(module, x): return module(x).mean()\n"
        f"def make():\n    module, x = nn.Linear(2, 1), torch.ones(64, 2)\n    return {problem}\n"
    )
    with pytest.raises(ValueError, match="workload") as refused:
        make_workload(config("ssgd", workload=str(file), batch_size=4))
    assert str(refused.value).startswith(f"--workload {file}: {WRONG[problem]}")
    assert "\n" not in str(refused.value)
