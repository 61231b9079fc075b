"""The house: which module may import which, and one name for one thing.

Read from the source alone, imports inside functions included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeAlias

import pytest
from conftest import ROOT

from docs.tools.house import FLOORS, README, with_tree

Graph: TypeAlias = dict[str, set[str]]

PACKAGE = ROOT / "dsgd"
PUBLIC = ("__main__", "config", "data", "metrics")
FIRST_FOUR = ("train_ssgd", "train_asgd", "train_ssp", "train_localsgd")


def module_of(path: Path) -> str:
    """Return the name under which a file of the package is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


GROUPS_OF_OPTIONS = frozenset(
    f"dsgd.{name}_options"
    for name in ("engines.ray", "models.compute", "records.output", "running.checkpoint", "show.watching")
)
"""Parts of config that stand beside the capabilities they configure: they may import what config may.

The list may only shrink.
"""

ARROWS, ARROWS_UP = 123, 7
"""How many rooms import another, and how many of these one above them; both may only fall."""

CIRCLE = {
    "config", "data", "engines", "models", "records", "running", "show", "strategies", "strategy", "theory"
}  # fmt: skip
"""Rooms that import each other in a circle; the list may only shrink."""

CODE = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "deploy").rglob("*.py")])
MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}


class _Imports(ast.NodeVisitor):
    """Collects what a file imports, in functions and for annotations too."""

    def __init__(self, module: str) -> None:
        self.module, self.found = module, set[str]()

    def visit_Import(self, node: ast.Import) -> None:
        self.found |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            package = self.module.split(".")
            is_package = MODULES[self.module].name == "__init__.py"
            kept = package[: len(package) - node.level + is_package]
            base = ".".join([*kept, *([base] if base else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            self.found.add(inner if inner in MODULES else base)


def imports(module: str) -> set[str]:
    """Return the modules, of the package and others, that a file imports."""
    collected = _Imports(module)
    collected.visit(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    return collected.found


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Return, by module, the others of the package that it imports."""
    return {module: imports(module) & MODULES.keys() for module in MODULES}


def room(module: str) -> str:
    """Return the folder of a module in the package; empty for the files outside the folders."""
    if module in GROUPS_OF_OPTIONS:
        return "config"
    parts = module.split(".")
    known = len(parts) > 1 and (parts[1] in PUBLIC or (PACKAGE / parts[1]).is_dir())
    return parts[1] if known else ""


def test_all_files_are_read(graph: Graph) -> None:
    """The laws below look at the whole package, and see imports where there are some."""
    assert {"dsgd", "dsgd.config", "dsgd.running.execute", "dsgd.strategies.train_ssp"} <= MODULES.keys()
    assert {"dsgd.show.terminal.commands", "dsgd.process.outcomes"} <= graph["dsgd.__main__"]
    assert "dsgd.api" in graph["dsgd"]  # inside a function


def test_the_package_never_imports_the_command_line_or_a_bare_public_file() -> None:
    """No file of dsgd imports the command line, nor config, data, metrics or a strategy by its bare name."""
    bare = {"main", "dsgd.__main__", *PUBLIC, *FIRST_FOUR}
    wrong = {module: found for module in MODULES if (found := imports(module) & bare)}
    assert not wrong


def test_no_file_imports_a_strategy_by_name(graph: Graph) -> None:
    """Strategies are found by their files' names, so adding one touches no other file."""
    strategies = {module for module in MODULES if module.startswith("dsgd.strategies.train_")}
    assert not {module: found for module, used in graph.items() if (found := used & strategies)}


def test_the_package_stands_alone() -> None:
    """It is installed without the folders beside it."""
    used = {name.partition(".")[0] for module in MODULES for name in imports(module)}
    assert "numpy" in used
    assert not used & {"benchmarks", "deploy", "docs", "tests"}


def test_no_files_import_each_other_in_a_circle(graph: Graph) -> None:
    """The files of the package can be put in an order in which each imports only those before it."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def _upwards(graph: Graph) -> Iterator[str]:
    floor = {name: n for n, names in enumerate(FLOORS) for name in names}
    for module, used in graph.items():
        for other in used:
            above, below = floor.get(room(other)), floor.get(room(module))
            if above is not None and below is not None and above > below:
                yield f"{module} -> {other}"


def test_nothing_imports_upwards(graph: Graph) -> None:
    """What computes knows nothing of what runs it, and what runs it nothing of what shows it."""
    assert graph["dsgd.config"] > GROUPS_OF_OPTIONS
    assert not sorted(_upwards(graph))
    assert {name for names in FLOORS for name in names} - {*PUBLIC} == {
        path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()
    }


def _rooms(graph: Graph) -> Graph:
    """Return, by room, the others that it imports; no file is exempt, and one outside the rooms is a room."""

    def inside(module: str) -> str:
        return module.split(".")[1] if "." in module else module

    rooms: Graph = {}
    for module, used in graph.items():
        rooms.setdefault(inside(module), set()).update({inside(other) for other in used} - {inside(module)})
    return rooms


def _reached(rooms: Graph, begin: str) -> set[str]:
    """Return the rooms that one imports, and those that these import, and so on."""
    reached: set[str] = set()
    ahead = {*rooms[begin]}
    while ahead:
        reached |= ahead
        ahead = set().union(*(rooms[name] for name in ahead)) - reached
    return reached


def test_the_arrows_between_rooms_only_become_fewer(graph: Graph) -> None:
    """With links resolved and imports for types: how many there are, how many go up, which form a circle."""
    rooms = _rooms(graph)
    floor = {name: n for n, names in enumerate(FLOORS) for name in names}
    arrows = {(one, other) for one in rooms for other in rooms[one]}
    up = {(one, other) for one, other in arrows if floor.get(one, len(floor)) < floor.get(other, len(floor))}
    circle = {name for name in rooms if name in _reached(rooms, name)}
    assert (len(arrows), len(up), circle) == (ARROWS, ARROWS_UP, CIRCLE)


def _folders_beside(graph: Graph, folder: str) -> dict[str, set[str]]:
    """Return which of the folders inside one each of them imports."""
    begin = f"{folder}."
    beside: dict[str, set[str]] = {}
    for module, used in graph.items():
        above = folder_in(begin, module)
        below = {folder_in(begin, other) for other in used} - {above, ""}
        if above:
            beside.setdefault(above, set()).update(below)
    return beside


def folder_in(begin: str, module: str) -> str:
    """Return the folder right inside another that a module is in; empty for a module elsewhere."""
    if begin == "dsgd." and module in GROUPS_OF_OPTIONS:
        return ""
    name, point, _ = module.removeprefix(begin).partition(".")
    is_folder = MODULES.get(begin + name, Path()).name == "__init__.py"
    return name if module.startswith(begin) and (point or is_folder) else ""


@pytest.mark.parametrize("folder", sorted({module.rpartition(".")[0] for module in MODULES} - {""}))
def test_no_two_folders_beside_each_other_import_each_other(graph: Graph, folder: str) -> None:
    """Rooms, and the folders in each, can be put in an order in which each imports only those before it."""
    try:
        list(TopologicalSorter(_folders_beside(graph, folder)).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_the_front_page_shows_the_rooms_as_their_docstrings_do() -> None:
    """README has one line for each folder of dsgd/, from the ground up, made by `make docs`."""
    page = README.read_text(encoding="utf-8")
    assert "  process/ " in page
    assert with_tree(page) == page, "run `make docs`"


@pytest.mark.parametrize("name", [*PUBLIC, *(f"strategies/{stem}" for stem in FIRST_FOUR)])
def test_the_public_files_are_links(name: str) -> None:
    """The code of the public files is at the top of the repository; the package has links to it."""
    link = PACKAGE / f"{name}.py"
    top = ROOT / ("main.py" if name == "__main__" else f"{link.stem}.py")
    assert link.is_symlink()
    assert link.resolve() == top
    assert not top.is_symlink()


def test_no_two_public_classes_have_one_name() -> None:
    """A class's name means one thing in dsgd/ and deploy/; only `Config` to each strategy and workload."""
    places: dict[str, set[str]] = {}
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(f"{path.relative_to(ROOT)}:{node.lineno}")
    with_options = {ROOT / place.partition(":")[0] for place in places.pop("Config")}
    assert {path for path in CODE if path.stem.startswith("train_")} <= with_options
    assert all(path.stem.startswith("train_") or path.parent.name == "workloads" for path in with_options)
    assert not {name: sorted(found) for name, found in places.items() if len(found) > 1}


def test_no_two_files_in_different_rooms_have_one_stem() -> None:
    """A file name means one thing in dsgd/ and deploy/, and one in engines/ray/, where folders say more."""
    of_ray = PACKAGE / "engines/ray"
    for inside in (True, False):
        places: dict[str, set[str]] = {}
        for path in CODE:
            if path.is_relative_to(of_ray) == inside and path.stem not in {"__init__", "__main__"}:
                places.setdefault(path.stem, set()).add(str(path.relative_to(ROOT)))
        assert {"sent_tasks" if inside else "config"} <= places.keys()
        assert not {stem: sorted(found) for stem, found in places.items() if len(found) > 1}
