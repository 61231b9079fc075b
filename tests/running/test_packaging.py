"""requirements.txt is what pyproject.toml asks for and what is tested; a wheel of dsgd is complete."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tomllib
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT, run_python
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.requirements import FILE as REQUIREMENTS
from deploy.requirements import exported, first_lines, too_young

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REMEDY = "run `make requirements`, then `make setup`"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "linux x86_64": {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    "linux aarch64": {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    "darwin arm64": {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix"},
    "win32 AMD64": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
}
# The supported Pythons and platforms, as values of the variables in markers.
ENVIRONMENTS = {
    f"Python {python} on {name}": {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "platform_machine": name.rpartition(" ")[2],
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        **platform,
    }
    for python in PYTHONS
    for name, platform in PLATFORMS.items()
}


class Package(NamedTuple):
    version: str
    hashes: frozenset[str]


def packages(text: str, environment: dict[str, str]) -> dict[str, Package]:
    """Return the packages that the text of a requirements.txt asks for in an environment, by their names."""
    found: dict[str, Package] = {}
    for one, hashes in requirements(text):
        if one.marker is None or one.marker.evaluate(environment):
            name = canonicalize_name(one.name)
            assert name not in found, f"two versions of {name} in {environment}"
            found[name] = Package(str(one.specifier).removeprefix("=="), frozenset(hashes))
    return found


def requirements(text: str) -> Iterator[tuple[Requirement, list[str]]]:
    """Yield each requirement with its hashes."""
    for line in text.replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            first, *hashes = line.split("--hash=")
            yield Requirement(first), [one.strip() for one in hashes]


def moved(before: str, after: str) -> dict[str, str]:
    """Return what differs between two requirements.txt in an environment that is supported: by the package's
    name, from what to what.
    """
    found: dict[str, str] = {}
    for environment, variables in ENVIRONMENTS.items():
        old, new = packages(before, variables), packages(after, variables)
        for name in sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)):
            was, now = (one[name].version if name in one else "nothing" for one in (old, new))
            what = f"{was} to {now}" if was != now else f"other hashes of {was}"
            found.setdefault(name, f"{what} ({environment})")
    return found


@pytest.fixture(scope="module")
def locked() -> str:
    """Return what the lock that `make setup` made here exports, in the form of requirements.txt."""
    uv = shutil.which("uv") or shutil.which(str(ROOT / ".tools/uv/bin/uv"))
    if not (uv and lock().exists()):
        pytest.skip("needs uv and the uv.lock that `make setup` makes")
    return exported(uv, "--offline", "--no-cache")


def lock() -> Path:
    return ROOT / "uv.lock"


def installed(asked: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and version of the installed packages that `asked` needs, themselves included."""
    todo, seen = [(Requirement(text), "") for text in asked], set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in ("", *sorted(requirement.extras)):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                found = importlib.metadata.distribution(name)
                yield name, found.version
                todo += [(Requirement(text), wanted) for text in found.requires or ()]


def test_requirements_pin_every_package_by_version_and_hash() -> None:
    """Each line has one exact version and SHA-256 hashes; none names a registry, a URL or a folder."""
    text = REQUIREMENTS.read_text()
    for requirement, hashes in requirements(text):
        assert re.fullmatch(r"==[\w.!+]+", str(requirement.specifier)), requirement
        assert requirement.url is None
        assert hashes, f"{requirement} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes)
    assert not re.search(r"://|--(extra-)?index|--find-links|^-[ef]|@", text, re.MULTILINE)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_requirements_are_for_every_python_and_platform(environment: str) -> None:
    """Each supported Python gets one version of each package, and all direct dependencies as pinned."""
    found = packages(REQUIREMENTS.read_text(), ENVIRONMENTS[environment])
    for asked in map(Requirement, PYPROJECT["project"]["dependencies"]):
        assert f"=={found[canonicalize_name(asked.name)].version}" == str(asked.specifier), REMEDY


def test_requirements_are_made_of_todays_pins() -> None:
    """Nothing that decides the packages has changed in pyproject.toml since requirements.txt was made."""
    assert REQUIREMENTS.read_text().startswith(first_lines(PYPROJECT)), REMEDY


def test_requirements_are_what_a_fresh_clone_gets(locked: str) -> None:
    """`make setup` resolves to the packages of requirements.txt, for every supported Python and platform.

    If it does not though the pins are those that the file was made from, then the registry answers otherwise
    than it did then. No commit did that, so none is held up: the end of the tests says what moved.
    """
    if changes := moved(REQUIREMENTS.read_text(), locked):
        test_requirements_are_made_of_todays_pins()
        what = ", ".join(f"{name} {change}" for name, change in changes.items())
        pytest.xfail(f"the registry now gives {what}: {REMEDY}")


def test_what_moved_is_named() -> None:
    """Markers in other words are the same requirement; a version, a hash or a package more is not."""
    here = "--hash=sha256:" + "0" * 64
    old = f"a==1 ; python_full_version >= '3.12' {here}\nb==2 ; sys_platform == 'linux' {here}\n"
    same = f"a==1 ; python_version > '3.11' {here}\nb==2 ; platform_system == 'Linux' {here}\n"
    assert moved(old, same) == {}
    assert moved(old, old.replace("a==1", "a==2")) == {"a": "1 to 2 (Python 3.12 on linux x86_64)"}
    assert moved(old, old.replace("0", "1")) == {
        "a": "other hashes of 1 (Python 3.12 on linux x86_64)",
        "b": "other hashes of 2 (Python 3.11 on linux x86_64)",
    }
    assert moved(f"c==3 {here}\n", "") == {"c": "3 to nothing (Python 3.11 on linux x86_64)"}


def test_the_packages_that_are_tested_are_those_of_the_lock(request: pytest.FixtureRequest) -> None:
    """What these tests run on are the versions that `make setup` resolved; in an image, requirements.txt."""
    text = request.getfixturevalue("locked") if lock().exists() else REQUIREMENTS.read_text()
    asked = packages(text, {})
    different = {
        name: f"{version} is installed, not {asked[name].version if name in asked else 'asked for'}"
        for name, version in installed(PYPROJECT["project"]["dependencies"])
        if name not in asked or asked[name].version != version
    }
    assert not different, f"{different}: run `make setup`"


def test_no_package_is_younger_than_the_date_of_the_pins() -> None:
    """All that the lock has was uploaded before `exclude-newer`, the direct pins and all tools among it."""
    if not lock().exists():
        pytest.skip("needs the uv.lock that `make setup` makes")
    date = datetime.fromisoformat(PYPROJECT["tool"]["uv"]["exclude-newer"])
    uploaded = {
        package["name"]: max(
            datetime.fromisoformat(file["upload-time"])
            for file in (*package.get("wheels", ()), *filter(None, [package.get("sdist")]))
        )
        for package in tomllib.loads(lock().read_text())["package"]
        if "registry" in package["source"]
    }
    project = PYPROJECT["project"]
    groups = [*project["optional-dependencies"].values(), *PYPROJECT["dependency-groups"].values()]
    direct = [*project["dependencies"], *(one for group in groups for one in group)]
    named = {canonicalize_name(Requirement(one).name) for one in direct} - {project["name"]}
    assert named <= uploaded.keys()
    assert {name: f"{when}" for name, when in uploaded.items() if when >= date} == {}


@pytest.mark.parametrize(
    ("date", "old_enough"),
    [("2026-11-15T00:00:00Z", True), ("2026-11-15T00:00:01Z", False), ("2026-11-20T00:00:00Z", False),
     ("2024-02-29T00:00:00+02:00", True), ("2026-11-14", False), ("10 days", False), ("", False)],
)  # fmt: skip
def test_make_requirements_refuses_a_date_that_is_too_young(date: str, old_enough: bool) -> None:
    """On 25 November it takes 15 November and what is older, as a time with its zone, and names that date."""
    problem = too_young(date, datetime(2026, 11, 25, 23, 59, tzinfo=UTC))
    assert (problem == "") == old_enough
    assert old_enough or (f'"{date}"' in problem and problem.endswith('set "2026-11-15T00:00:00Z"'))


def test_requirements_hold_what_builds_the_project() -> None:
    """The build backend of pyproject.toml is in requirements.txt: the image builds without fetching."""
    (build,) = PYPROJECT["build-system"]["requires"]
    assert PYPROJECT["tool"]["uv"]["constraint-dependencies"] == [build]
    for environment in ENVIRONMENTS.values():
        assert f"setuptools=={packages(REQUIREMENTS.read_text(), environment)['setuptools'].version}" == build


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the unpacked wheel, built from a copy that is gone, its links included."""
    try:
        built_by = f"setuptools=={importlib.metadata.version('setuptools')}"
    except importlib.metadata.PackageNotFoundError:
        built_by = "nothing"
    if [built_by] != PYPROJECT["build-system"]["requires"]:
        pytest.skip(f"the wheel is built by {PYPROJECT['build-system']['requires']}, here is {built_by}")
    source = tmp_path_factory.mktemp("source")
    for path in (*ROOT.glob("*.py"), ROOT / "pyproject.toml", ROOT / "LICENSE"):
        shutil.copy(path, source)
    shutil.copytree(ROOT / "experiments" / "scenarios", source / "experiments" / "scenarios")
    shutil.copytree(
        ROOT / "dsgd", source / "dsgd", symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    built = run_python("-c", build, source / "dist", cwd=source)
    assert built.returncode == 0, built.stderr
    (wheel,) = (source / "dist").glob("*.whl")
    unpacked = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(unpacked)
    shutil.rmtree(source)
    return unpacked


def test_a_wheel_has_every_file_of_the_package_and_no_links(site: Path) -> None:
    """What dsgd/ holds is in the wheel under the same name and with the same bytes, and nothing else is."""
    folders = os.walk(ROOT / "dsgd", followlinks=True)
    own = {(Path(folder) / name).relative_to(ROOT) for folder, _, names in folders for name in names}
    own = {path for path in own if "__pycache__" not in path.parts}
    found = {path.relative_to(site) for path in site.rglob("*") if path.is_file()}
    assert {path for path in found if not path.parts[0].endswith(".dist-info")} == own
    for path in own:
        assert (site / path).read_bytes() == (ROOT / path).read_bytes()
        assert not (site / path).is_symlink()


def test_an_installed_dsgd_trains_and_reports_from_any_folder(site: Path, tmp_path: Path) -> None:
    """From a wheel alone, without this repository, a run makes its record and a report its page."""

    def python(*arguments: str) -> str:
        done = run_python(*arguments, cwd=tmp_path, env={"PYTHONPATH": str(site)})
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = python("-c", "import dsgd, dsgd.config; print(dsgd.__file__, dsgd.config.__file__)")
    assert where.split() == [str(site / "dsgd/__init__.py"), str(site / "dsgd/config.py")]
    options = "--engine sim --scenario wan --steps 20 --out runs --run-name one"
    python("-m", "dsgd", *options.split())
    python("-m", "dsgd", "report", "runs/one")
    assert "<svg" in (tmp_path / "runs/one/report.html").read_text()
