"""Finds the workloads: each file in this folder is a value of `--workload`, and so is a user's file.

A workload's file has a function `make()` that returns a `dsgd.Problem`. With options it has a class `Config`,
derived from `dsgd.DataConfig`, and `make(cfg)`, where `cfg` is the run's Config.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from numbers import Number
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.core.option_effects import BUILT_IN
from dsgd.core.rng import Purpose, generator
from dsgd.models.datasets.user_files import DataError
from dsgd.process.outcomes import echoed
from dsgd.process.user_code import BESIDE, UserCodeError, in_one_line, load_code

if TYPE_CHECKING:
    from dsgd.config import DataConfig
    from dsgd.core.problem import Problem

FOLDER = Path(__file__).parent
PYTHON = "python"
"""A value of --data that is no path: the Python sources of torch."""


@cache
def names() -> tuple[str, ...]:
    """Return the names of the workloads in this folder, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("[!_]*.py")))


def file_of(workload: str) -> Path:
    """Return the file of a workload: one in this folder by its name, or a user's by its path.

    Raises ValueError for a name that is not there.
    """
    if workload in names():
        return FOLDER / f"{workload}.py"
    if not workload.endswith(".py"):
        known = ", ".join((*BUILT_IN, *names(), "or a file like mine.py"))
        raise ValueError(f"--workload {workload}: there is no such workload; give {known}")
    return Path(workload)


def name_of(config: Mapping[str, Any]) -> str:
    """Return what a run learns, from its options: its workload, or its file without the ending."""
    return Path(str(config.get("workload", "xor"))).stem


def module_of(config: Mapping[str, Any]) -> str | None:
    """Return the workload of a run with these options, if it is a torch module with its data."""
    workload = config.get("workload")
    return None if workload is None or workload in BUILT_IN else str(workload)


def code_of(workload: str) -> ModuleType:
    """Return the file of a workload as a module. Raises ValueError, naming the line, if that fails."""
    from dsgd.models.objectives.process_wide import AT_FIRST, seeded, settings_kept

    path = file_of(workload)
    try:
        with settings_kept(), seeded(AT_FIRST):
            module = load_code(path, "workload")
        if not callable(getattr(module, "make", None)):
            raise UserCodeError("needs a function make() that returns a dsgd.Problem")
    except UserCodeError as error:
        raise ValueError(f"--workload {workload}: {error}") from None
    return module


def options_of(workload: str) -> type[DataConfig] | None:
    """Return a workload's `Config`; None if it has none, and then its file is not run.

    Raises ValueError, in one line, for a file that cannot be used.
    """
    if workload in BUILT_IN:
        return None
    try:
        tree = ast.parse(file_of(workload).read_bytes())
    except (OSError, SyntaxError, ValueError):
        tree = None  # what is wrong with it is said where it is run
    if tree and not any(isinstance(node, ast.ClassDef) and node.name == "Config" for node in tree.body):
        return None
    from dsgd.config import DataConfig
    from dsgd.core.option_rules import members

    found: Any = code_of(workload).Config
    where = f"--workload {workload}: its Config"
    if not (isinstance(found, type) and issubclass(found, DataConfig) and is_dataclass(found)):
        raise ValueError(f"{where} is no option class; derive it from dsgd.DataConfig, as a frozen dataclass")
    with in_one_line(file_of(workload), f"{where} cannot be used: "):
        members(found)
        found()
    return found


def make_problem(data: DataConfig, seed: int) -> Problem:
    """Make the problem of the workload, generators seeded with the run's seed: it draws the initial weights.

    Raises ValueError, in one line, for a file that fails and for a problem that cannot be trained.
    """
    from dsgd.core.problem import Collated
    from dsgd.models.moe.mixture import MixtureRouting, mixtures
    from dsgd.models.objectives.process_wide import seeded, settings_kept

    workload = data.workload
    code = code_of(workload)
    first = int(generator(seed, Purpose.INITIAL_WEIGHTS).integers(2**63))
    try:
        failing = in_one_line(file_of(workload), "", passed=(DataError,))
        with settings_kept(), seeded(first), BESIDE[code.__name__].importable(), failing:
            own = getattr(code, "Config", None)
            problem = code.make(data) if own is not None and isinstance(data, own) else code.make()
            problem = _by_position(problem)
            wrong = _wrong(problem)
            problem = problem if wrong else _in_float32(problem)
    except (DataError, UserCodeError) as error:
        raise ValueError(f"--workload {workload}: {error}") from None
    if wrong:
        raise ValueError(f"--workload {workload}: {wrong}")
    made: Problem = problem
    if made.collate:
        made = made._replace(train=Collated(made.train, made.collate), test=Collated(made.test, made.collate))
    if made.routing is None and any(mixtures(made.module)):
        made = made._replace(routing=MixtureRouting())
    return made


def _by_position(problem: Any) -> Any:
    """Return it with the values of data frames, series and other containers of arrays, row by row: what their
    index calls a row does not matter.
    """
    import torch

    from dsgd.core.problem import Problem

    def values(data: Any) -> Any:
        if isinstance(data, tuple):
            return tuple(map(values, data))
        if isinstance(data, np.ma.MaskedArray) and not np.ma.is_masked(data):
            return data.data
        is_array = isinstance(data, np.ndarray | torch.Tensor) or hasattr(type(data), "part")
        return np.array(data) if hasattr(data, "__array__") and not is_array else data

    if not isinstance(problem, Problem):
        return problem
    return problem._replace(train=values(problem.train), test=values(problem.test))


def _in_float32(problem: Problem) -> Problem:
    """Return it with arrays of float64 in float32, as its parameters are, unless its loss takes them so."""
    import torch

    from dsgd.core.problem import take
    from dsgd.models.objectives.loss_failures import NOT_FLOAT32
    from dsgd.models.objectives.module_copy import copied

    def is_double(array: Any) -> bool:
        in_memory = isinstance(array, np.ndarray | torch.Tensor) and not isinstance(array, np.memmap)
        return in_memory and "float64" in str(array.dtype)

    def single(data: Any) -> Any:
        if not isinstance(data, tuple):
            return data
        return tuple(torch.as_tensor(a, dtype=torch.float32) if is_double(a) else a for a in data)

    if not (isinstance(problem.train, tuple) and any(map(is_double, problem.train))):
        return problem
    rows = range(min(8, len(problem.train[0])))
    try:
        problem.loss(copied(problem.module).float(), *take(problem.train, rows))
    except Exception as error:  # of the user's code; what else is wrong is said when it is tried
        if re.search(NOT_FLOAT32, str(error)):
            return problem._replace(train=single(problem.train), test=single(problem.test))
    return problem


def _wrong(problem: Any) -> str | None:
    """Return what is wrong with what `make` returned; None if it can be trained."""
    import torch

    from dsgd.core.problem import Problem
    from dsgd.models.objectives.replica import trained

    if not isinstance(problem, Problem):
        getattr(problem, "close", bool)()  # of a coroutine, which complains that nobody has awaited it
        return f"make() returned a {type(problem).__name__}; return a dsgd.Problem"
    if not isinstance(problem.module, torch.nn.Module):
        return f"its module is a {type(problem.module).__name__}; give a torch.nn.Module"
    if not trained(problem.module):
        return "its module has no parameter that requires a gradient; there is nothing to train"
    for name in ("loss", "score", "sample", "collate", "decode"):
        if not callable(function := getattr(problem, name)) and (name == "loss" or function is not None):
            return f"its {name} is a {type(function).__name__}; give a function"
    for name, data in (("train", problem.train), ("test", problem.test)):
        if wrong := _wrong_data(data):
            return f"its {name} data {wrong}"
        if problem.collate and isinstance(data, tuple):
            return f"its collate is for the items of a dataset, and its {name} data are arrays; leave it out"
    size = problem.bytes_per_token
    if size is not None and not (isinstance(size, int | float) and 0 < size < math.inf):
        return f"its bytes_per_token is {size!r}; give a number above 0"
    name = problem.score_name
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= 40):
        return f"its score_name is {name!r}; give a name of at most 40 letters"
    if problem.routing is not None and not callable(getattr(problem.routing, "layers", None)):
        return f"its routing is a {type(problem.routing).__name__}; give a dsgd.Routing"
    return _wrong_about(problem.about)


def _wrong_data(data: Any) -> str | None:
    arrays = data if isinstance(data, tuple) else (data,)
    if isinstance(data, Mapping | set):
        return f"are a {type(data).__name__}; give a tuple of arrays, or a dataset with [i]"
    if not arrays:
        return "have no arrays; give one or more, with a row for each sample"
    for array in arrays:
        if not hasattr(array, "__len__") or getattr(array, "ndim", 1) == 0:
            return f"hold a {type(array).__name__}; give arrays with a row for each sample, or a dataset"
        if isinstance(array, list) and isinstance(data, tuple):
            return "hold a list; give arrays with a row for each sample, of text those of numpy"
        if "complex" in str(getattr(array, "dtype", "")):
            return "are complex; give real and imaginary parts as real numbers"
        if wrong := _wrong_rows(array) if isinstance(data, tuple) else None:
            return wrong
    if len({len(array) for array in arrays}) != 1:
        lengths = ", ".join(str(len(array)) for array in arrays)
        return f"have arrays of {lengths} rows; give each sample a row in all of them"
    return None if len(arrays[0]) else "are empty; give it samples"


def _wrong_rows(array: Any) -> str | None:
    from dsgd.core.problem import tensor

    if np.ma.is_masked(array):
        return "have masked values; fill them in (.filled(0))"
    kind = f"hold a {'sparse ' * getattr(array, 'is_sparse', False)}{type(array).__name__}"
    if isinstance(array, np.ndarray):
        kind = f"have the type {array.dtype}"
        if array.dtype == object and any(x is None or isinstance(x, Number) for x in array.flat[:1000]):
            return f"{kind}, with numbers or None; give one type of numbers (.astype(np.float32))"
    try:
        rows = np.arange(min(2, len(array)))
        if len(tensor(array[rows])) == len(rows):
            return None
    except (DataError, OSError):  # of a file, with words of its own
        raise
    except Exception:  # noqa: S110 - of whatever has no rows by number, or none that torch takes
        pass
    return f"{kind}, whose rows torch cannot take; give arrays of numbers (.to_numpy(), .toarray())"


def _wrong_about(about: Any) -> str | None:
    if not isinstance(about, Mapping):
        return f"its about is a {type(about).__name__}; give names and values"
    try:
        json.dumps(dict(about), default=lambda number: number.item())
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        return f"its about has no form as JSON ({echoed(str(error), 100)}); give numbers and text"
    return None
