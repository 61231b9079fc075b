"""What a workload's file imports from its folder: found as by a script, sent to workers, and recorded."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import dsgd
from dsgd.data import make_workload
from dsgd.models.workloads import code_of
from dsgd.process.beside import _lies_in
from dsgd.process.user_code import BESIDE
from dsgd.records.schema import RecordError
from dsgd.records.workload_copy import changed_since
from dsgd.running.quick_run import config, run, same_bytes
from dsgd.running.replaying import compared, recorded_run
from dsgd.running.trained_run import recorded_options
from main import main

FILES = {
    "mine.py": """
        import dsgd, nets.deep
        from data import load
        from config import far

        def make():
            from late import WIDTH
            return dsgd.Problem(nets.deep.Net(WIDTH), far, load(160), load(16))
        """,
    "data.py": """
        import torch, nets.scale

        class Doubled(torch.utils.data.Dataset):
            def __init__(self, x):
                self.x = x
            def __len__(self):
                return len(self.x)
            def __getitem__(self, row):
                return nets.scale.times(self.x[row])

        def load(n):
            return Doubled(torch.randn(n, 4))
        """,
    "config.py": """
        def far(module, x):
            return (module(x) - x).square().mean()
        """,
    "late.py": "WIDTH = 3",
    "nets/__init__.py": "",
    "nets/scale.py": """
        SCALE = 0.5
        def times(x):
            return SCALE * x
        """,
    "nets/deep.py": """
        from torch import nn
        from .scale import times

        class Net(nn.Sequential):
            def __init__(self, width):
                super().__init__(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 4))
            def forward(self, x):
                return times(super().forward(x))
        """,
}


def write(folder: Path, **changed: str) -> str:
    """Write the files, some of them changed, and return that of the workload."""
    for name, text in {**FILES, **{f"{name}.py": text for name, text in changed.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(
            "\n".join(line[8:] if line[:8].isspace() else line for line in text.split("\n"))
        )
    return str(folder / "mine.py")


def test_a_file_imports_what_lies_beside_it_and_nothing_else_does(tmp_path: Path) -> None:
    """Also from within make(), and files with the names of the product's; other imports are as they were."""
    import data  # the product's

    path, loaded = list(sys.path), set(sys.modules)
    workload = write(tmp_path)
    assert make_workload(config("ssgd", workload=workload)).objective.num_weights == 31
    assert sorted(BESIDE[code_of(workload).__name__].files) == sorted(set(FILES) - {"mine.py"})
    assert sys.path == path
    assert sys.modules["data"] is data
    assert not {"late", "nets", "nets.deep"} & (set(sys.modules) - loaded)


def test_a_file_may_change_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also so that the folder is no longer on it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    workload = write(tmp_path, late="import sys\nsys.path = sys.path[1:]\nWIDTH = 3")
    assert make_workload(config("ssgd", workload=workload)).objective.num_weights == 31
    assert str(tmp_path) not in sys.path


def test_a_file_may_lie_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it may in a container: files and packages beside it are found."""
    for name, place in (("aside", "/aside.py"), ("asides", "/asides/__init__.py"), ("far", "/else/far.py")):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setattr(sys.modules[name], "__file__", place, raising=False)
    assert [_lies_in(Path("/"), name) for name in ("aside", "asides", "far")] == [True, True, False]


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    """Whichever is made first, and again after the other."""
    wide = write(tmp_path / "wide", late="WIDTH = 5")
    for workload, weights in ((write(tmp_path), 31), (wide, 49), (str(tmp_path / "mine.py"), 31)):
        assert make_workload(config("ssgd", workload=workload)).objective.num_weights == weights


def test_what_lies_beside_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    workload = write(tmp_path)
    make_workload(config("ssgd", workload=workload))
    write(tmp_path, late="WIDTH = 5")
    os.utime(tmp_path / "late.py", ns=(0, 0))
    assert make_workload(config("ssgd", workload=workload)).objective.num_weights == 49


def test_an_import_that_comes_too_late_is_named(tmp_path: Path) -> None:
    """A function has on every machine what was imported when it was made."""
    text = "def far(module, x):\n    import late\n    return module(x).square().mean()\n"
    with pytest.raises(ValueError, match=r"No module named 'late'; import it at the top of your file, or in"):
        make_workload(config("ssgd", workload=write(tmp_path, config=text)))


def test_what_is_sent_takes_its_code_along(tmp_path: Path) -> None:
    """A process that cannot import these modules makes the same module, loss and data of what Ray sends."""
    from ray import cloudpickle

    made = make_workload(config("ssgd", workload=write(tmp_path)))
    sent = cloudpickle.loads(cloudpickle.dumps((made[0], made[1][0])))  # type: ignore[no-untyped-call]
    w = torch.from_numpy(made.objective.initial_weights(0))[None]
    here, there = (of.loss_and_gradient(w, [shard], [0])[1] for of, shard in ((made[0], made[1][0]), sent))
    assert torch.equal(here, there)


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_workers_that_cannot_import_it_get_its_code(tmp_path: Path) -> None:
    """Module, loss and data come from four files, and a run on Ray has the simulator's bytes."""
    options: dict[str, Any] = {"workload": write(tmp_path), "num_workers": 2, "steps": 4, "batch_size": 8}
    assert same_bytes(run("ssgd", **options), run("ssgd", **options, engine="ray"))


def test_a_record_has_all_files_and_goes_on_only_with_these(tmp_path: Path) -> None:
    """A replay, and what loads the weights, computes with the record's where the user's are other or gone."""
    workload = write(tmp_path / "code")
    asked = ["--engine", "sim", "--mode", "ssgd", "--num-workers", "2", "--steps", "4", "--batch-size", "8"]
    assert main([*asked, "--workload", workload, "--out", str(tmp_path), "--run-name", "r", "--quiet"]) == 0
    record = tmp_path / "r"
    options = recorded_options(record)
    kept = {str(file.relative_to(record / "code")) for file in (record / "code").rglob("*.py")}
    assert kept == set(FILES)
    assert recorded_run(record).cfg.data.workload == workload
    loss = dsgd.load(record).evaluate().loss

    (tmp_path / "code/nets/scale.py").write_text("def times(x):\n    return x\n")
    assert f"nets/scale.py has changed since; put {record}/code/nets/scale.py in" in str(
        changed_since(record, options)
    )
    assert main(["--resume", str(record), "--steps", "6", "--quiet"]) == 2
    for lost in (False, True):
        if lost:
            shutil.rmtree(tmp_path / "code")
        assert compared(recorded_run(record)).same_weights
        assert dsgd.load(record).evaluate().loss == loss
    assert "is not there any more" in str(changed_since(record, options))

    (record / "code/late.py").write_text("WIDTH = 4")
    with pytest.raises(RecordError, match=r"late\.py: is not the file that was trained"):
        recorded_run(record)
    (record / "code/late.py").write_text("WIDTH = 3")
    assert not list(tmp_path.rglob("__pycache__"))
    shutil.copytree(record / "code", tmp_path / "code")
    assert main(["--resume", str(record), "--steps", "6", "--quiet"]) == 0
