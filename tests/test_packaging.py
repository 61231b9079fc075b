"""requirements.txt is what pyproject.toml asks for and what is tested; a wheel of dsgd is complete."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIREMENTS = ROOT / "requirements.txt"
REMEDY = "run `make requirements`, then `make setup`"


def requirements() -> list[tuple[Requirement, list[str]]]:
    """Return each requirement of requirements.txt with its hashes."""
    text = REQUIREMENTS.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    parts = [line.split("--hash=") for line in lines]
    return [(Requirement(first), [one.strip() for one in hashes]) for first, *hashes in parts]


def pins() -> dict[str, str]:
    """Return the version of every package that this Python, on this machine, gets from requirements.txt."""
    here = [one for one, _ in requirements() if one.marker is None or one.marker.evaluate()]
    found: dict[str, str] = {
        canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in here
    }
    assert len(found) == len(here), "two versions of one package for one Python"
    return found


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
    for requirement, hashes in requirements():
        assert re.fullmatch(r"==[\w.!+]+", str(requirement.specifier)), requirement
        assert requirement.url is None
        assert hashes, f"{requirement} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes)
    text = REQUIREMENTS.read_text()
    assert not re.search(r"://|--(extra-)?index|--find-links|^-[ef]|@", text, re.MULTILINE)


def test_requirements_have_the_pins_of_the_project() -> None:
    """Each dependency in pyproject.toml is in requirements.txt, in the same version."""
    found = pins()
    for text in PYPROJECT["project"]["dependencies"]:
        asked = Requirement(text)
        assert found.get(canonicalize_name(asked.name)) == str(asked.specifier).removeprefix("=="), REMEDY


def test_requirements_are_what_is_tested() -> None:
    """The packages that these tests run on are those of requirements.txt, in the same versions."""
    found = pins()
    different = {
        name: f"{version} is installed, requirements.txt has {found.get(name)}"
        for name, version in installed(PYPROJECT["project"]["dependencies"])
        if found.get(name) != version
    }
    assert not different, f"{different}: {REMEDY}"


def test_requirements_are_what_uv_exports() -> None:
    """`make requirements` would change nothing: the lock that `make setup` made here exports the same."""
    uv = shutil.which("uv") or shutil.which(str(ROOT / ".tools/uv/bin/uv"))
    lock = ROOT / "uv.lock"
    if not (uv and lock.exists()):
        pytest.skip("needs uv and the uv.lock that `make setup` makes; the pins are compared all the same")
    if lock.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        pytest.skip("pyproject.toml is younger than uv.lock: `make setup` brings the lock up to date")
    (flags,) = re.findall(r"^EXPORT = \$\(UV\) (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    exported = subprocess.run(
        [uv, *flags.split(), "--offline"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert REQUIREMENTS.read_text().partition("\n")[2] == exported, REMEDY


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_requirements_are_for_every_python_and_machine(python: str, machine: str) -> None:
    """On Linux each supported Python gets one version of each package, and all direct dependencies."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }

    def applies(marker: Marker | None) -> bool:
        return marker is None or marker.evaluate(environment)

    names = [canonicalize_name(one.name) for one, _ in requirements() if applies(one.marker)]
    assert len(names) == len(set(names))
    asked = {canonicalize_name(Requirement(one).name) for one in PYPROJECT["project"]["dependencies"]}
    assert asked <= set(names)


def test_requirements_hold_what_builds_the_project() -> None:
    """The build backend of pyproject.toml is in requirements.txt: the image builds without fetching."""
    (build,) = PYPROJECT["build-system"]["requires"]
    assert PYPROJECT["tool"]["uv"]["constraint-dependencies"] == [build]
    assert f"setuptools=={pins()['setuptools']}" == build


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
    shutil.copytree(
        ROOT / "dsgd", source / "dsgd", symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", build, str(source / "dist")], cwd=source, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = (source / "dist").glob("*.whl")
    unpacked = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(unpacked)
    shutil.rmtree(source)
    return unpacked


def test_a_wheel_has_every_file_of_the_package_and_no_links(site: Path) -> None:
    """What dsgd/ holds is in the wheel under the same name and with the same bytes, and nothing else is."""
    own = {path.relative_to(ROOT) for path in (ROOT / "dsgd").rglob("*") if path.is_file()}
    own = {path for path in own if "__pycache__" not in path.parts}
    found = {path.relative_to(site) for path in site.rglob("*") if path.is_file()}
    assert {path for path in found if not path.parts[0].endswith(".dist-info")} == own
    for path in own:
        assert (site / path).read_bytes() == (ROOT / path).read_bytes()
        assert not (site / path).is_symlink()


def test_an_installed_dsgd_trains_and_reports_from_any_folder(site: Path, tmp_path: Path) -> None:
    """From a wheel alone, without this repository, a run makes its record and a report its page."""

    def dsgd(*arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "dsgd", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    where = subprocess.run(
        [sys.executable, "-c", "import dsgd, dsgd.config; print(dsgd.__file__, dsgd.config.__file__)"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert where.stdout.split() == [str(site / "dsgd/__init__.py"), str(site / "dsgd/config.py")], (
        where.stderr
    )
    dsgd("--engine", "sim", "--steps", "20", "--out", "runs", "--run-name", "one", "--quiet")
    dsgd("--report", "runs/one")
    assert "<svg" in (tmp_path / "runs/one/report.html").read_text()
