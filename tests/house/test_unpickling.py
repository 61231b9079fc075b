"""Bytes that become objects: only those are unpickled that this project's own processes sent each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from conftest import ROOT

# Where bytes are unpickled, and who wrote them. A file or an object in a bucket may be anybody's: what comes
# from there has a format that holds no code (safetensors, JSON, numpy without objects, Parquet).
ALLOWED = {
    "dsgd/compare/pool.py: pickle.load": "a child process, through a pipe of this process",
    "dsgd/compare/worker.py: pickle.load": "the parent process, on standard input",
    "dsgd/engines/ray/worker/host.py: pickle.loads": "the driver, through Ray or its own socket",
    "dsgd/engines/ray/worker/rank.py: pickle.loads": "the driver, handed on by the group's leader",
}
_PICKLES = [f"{module}.{call}" for module in ("pickle", "cloudpickle", "dill") for call in ("load", "loads")]
RUN_CODE = {
    *_PICKLES,
    *("pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "joblib.load"),
    *("yaml.unsafe_load", "yaml.full_load"),
}

WORDS = re.compile(r"pickle|dill|marshal|shelve|joblib|torch\.load|yaml\.")  # no others need a look


def unpickles(call: ast.Call, source: str) -> str | None:
    """Return the name of a call that may run code from the bytes that it reads."""
    name = ".".join(ast.unparse(call.func).split(".")[-2:])
    given = {option.arg: ast.unparse(option.value) for option in call.keywords}
    if name in RUN_CODE:
        return name
    if name == "torch.load" and given.get("weights_only", "True") != "True":  # the default since torch 2.6
        return name
    if name in ("np.load", "format.read_array") and given.get("allow_pickle", "False") != "False":
        return name
    if name == "yaml.load":
        loader = given.get("Loader") or ast.unparse(call.args[1])
        return None if re.search(rf"\b{loader}\b.*SafeLoader", source) else name
    return None


def found() -> Iterator[str]:
    for folder in ("dsgd", "deploy", "benchmarks", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            source, place = path.read_text(), path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(source)) if WORDS.search(source) else ():
                if isinstance(node, ast.Call) and (name := unpickles(node, source)):
                    yield f"{place}: {name}"
                if isinstance(node, ast.ImportFrom):
                    names = {f"{node.module}.{alias.name}" for alias in node.names}
                    yield from (f"{place}: {name}" for name in names & RUN_CODE)


def test_only_the_bytes_of_own_processes_are_unpickled() -> None:
    """No call that runs code from bytes is new, and none that is listed is gone."""
    assert set(found()) == ALLOWED.keys()


@pytest.mark.parametrize(
    "line",
    [
        "import pickle; pickle.loads(b'')",
        "ray.cloudpickle.loads(x)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, yaml.Loader)",
    ],
)
def test_the_law_sees_calls_that_run_code(line: str) -> None:
    calls = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call)]
    assert any(unpickles(call, line) for call in calls)
