"""What a data set's samples may be: whatever torch's own loader takes, and a `collate` for the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import ROOT
from torch import Tensor, nn
from workloads.forms import X

from dsgd.data import make_workload
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.models.objectives.replica import trained
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
