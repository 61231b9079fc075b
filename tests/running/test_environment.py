"""What the programs that we start get from the environment: only what is meant for them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PATIENCE_S, ROOT, needs

from deploy.observability.local_servers import free_port, prometheus, prometheus_config
from dsgd.process import environment
from dsgd.records import writer
from dsgd.show.live.page import serve
from main import main

# Each says to a program that believes it that it shall act elsewhere, wait, or print something else.
MISLEADING = {
    "GIT_DIR": "/nowhere/.git", "GIT_WORK_TREE": "/nowhere", "GIT_INDEX_FILE": "/nowhere/index",
    "GIT_CONFIG_COUNT": "many", "GIT_TRACE": "1", "GIT_CONFIG_GLOBAL": "/nowhere/config",
    "PYTHONINSPECT": "1", "PYTHONVERBOSE": "1", "PYTHONSTARTUP": "/nowhere.py", "FORCE_COLOR": "1",
    "PYTHONPROFILEIMPORTTIME": "1",
    "LC_ALL": "C", "LANGUAGE": "de", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TZ": "Nowhere/Else",
    "http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9",
    "PROMETHEUS_MULTIPROC_DIR": "/nowhere", "PROMETHEUS_PORT": "tcp://10.0.0.1:1", "TMPDIR": "/nowhere",
}  # fmt: skip
STARTS = {"run", "Popen", "call", "check_call", "check_output"}


@pytest.fixture
def misled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in MISLEADING.items():
        monkeypatch.setenv(name, value)


def test_each_program_gets_an_environment_that_is_written_down() -> None:
    """Wherever a program is started, its environment is one of those in dsgd/process/environment.py."""
    found = 0
    for path in sorted([*ROOT.glob("dsgd/**/*.py"), *ROOT.glob("deploy/**/*.py")]):
        if path == ROOT / "deploy/requirements.py":  # it runs before anything is installed
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="subprocess"), attr=attr)) if (
                    attr in STARTS
                ):
                    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                    assert given.get("env", "").startswith("of_"), f"{path}:{node.lineno}"
                    found += 1
                case ast.Attribute(value=ast.Name(id="os"), attr=attr):
                    assert not attr.startswith(("spawn", "popen", "posix_spawn")), f"{path}:{node.lineno}"
                    assert attr != "system", f"{path}:{node.lineno}"
    assert found >= 9


@needs("git")
@pytest.mark.usefixtures("misled")
def test_the_commit_of_a_record_is_that_of_this_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever repository a hook of git, or a tool, has put into the environment, or lies above it."""
    clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def git(folder: Path, *arguments: str) -> str:
        made = subprocess.run(
            ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            env=clean, check=True, capture_output=True, text=True,
        )  # fmt: skip
        return made.stdout.strip()

    own, user = tmp_path / "user" / "own", tmp_path / "user"
    own.mkdir(parents=True)
    for folder in (user, own):
        git(folder, "init")
        git(folder, "commit", "--allow-empty", "--message", folder.name)
    (own / "dsgd").mkdir()
    (own / "dsgd/code.py").write_text("")
    monkeypatch.setattr(writer, "ROOT", own)

    def commit() -> tuple[str | None, bool | None]:
        writer._commit.cache_clear()
        return writer._commit()

    git(own, "add", "dsgd")
    assert commit() == (git(own, "rev-parse", "HEAD"), True)
    git(own, "commit", "--message", "code")
    assert commit() == (git(own, "rev-parse", "HEAD"), False)
    shutil.rmtree(own / ".git")  # as where the package is installed into a user's project
    assert commit() == (None, None)
    git(user, "add", "own")  # or is a part of it
    git(user, "commit", "--message", "all")
    assert commit() == (git(user, "rev-parse", "HEAD"), False)
    writer._commit.cache_clear()


@pytest.mark.thorough
@pytest.mark.usefixtures("misled")
def test_our_own_processes_are_not_misled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment's processes end and answer, and the live page is there, also in a folder with files that
    are called like modules of Python's.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("asyncio", "queue", "json", "select", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')\n")
    asked = f"compare ssgd asgd --engine sim --num-workers 2 --steps 5 --processes 2 --out {tmp_path / 'it'}"
    assert main(asked.split(" ")) == 0
    assert len([*tmp_path.glob("it/*/*/summary.json")]) == 10
    here = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with serve(tmp_path / "it", 0) as url, here.open(url, timeout=PATIENCE_S) as page:
        assert b"<html" in page.read()


@needs("prometheus")
@pytest.mark.usefixtures("misled")
def test_a_server_on_this_machine_is_reached(tmp_path: Path) -> None:
    """No proxy is asked for it, and it takes nothing from the environment but where things are."""
    with prometheus(prometheus_config(), tmp_path, free_port()) as url:
        commands = Path("/proc").glob("[0-9]*/cmdline")
        pids = [path.parent.name for path in commands if str(tmp_path) in _text(path)]
        given = _text(Path(f"/proc/{pids[0]}/environ")).split("\0")
        names = {entry.partition("=")[0] for entry in given if entry}
        assert names <= {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LC_ALL"}
        assert url.startswith("http://127.0.0.1")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize("of", [environment.of_python, environment.of_users_tool], ids=["python", "kubectl"])
def test_what_a_users_tools_need_is_passed_on(
    of: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials, proxies, clusters: to our own processes, and to tools that act for the user."""
    given = {"AWS_PROFILE": "lab", "KUBECONFIG": "/k", "HTTPS_PROXY": "http://p:1", "MINE": "y"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert given.items() <= of().items()
