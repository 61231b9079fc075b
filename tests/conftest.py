"""Fixtures: a Ray cluster for each process, and runs of the command line; which tests run, and where."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiers import TEST_S, THE_REAL_THING_ONCE

from dsgd.models.datasets.shipped import FASHION
from dsgd.strategies import modes

ROOT = Path(__file__).parents[1]
MODES = frozenset(modes())
collect_ignore = ["own"]  # a user's folder: test_adding_a_strategy.py runs its test there
# What belongs to the caller, not to the tests: where Ray is, how wide and colourful a terminal, a proxy.
TERMINAL = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "MPLBACKEND")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
for name in ("RAY_ADDRESS", *TERMINAL, *PROXIES):
    os.environ.pop(name, None)
if {*tempfile.gettempdir()} & {*" \t\n"}:  # most tests write a command as one text, with tmp_path in it
    os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"
# Ray runs workers at niceness 15: beside tests that compute they would starve, up to their time limits.
os.environ.setdefault("RAY_worker_niceness", "0")

# --- Programs that some tests need --------------------------------------------------------------------------

# How to get what `make setup` does not bring; `make packages` installs all of Debian's.
REMEDIES = {
    "amtool": "apt-get install prometheus-alertmanager",
    "chromium": "apt-get install chromium",
    "fashion-mnist": "apt-get install dataset-fashion-mnist",
    "git": "apt-get install git",
    "ip": "apt-get install iproute2",
    "kubectl": "install kubectl",
    "openssl": "apt-get install openssl",
    "pkill": "apt-get install procps",
    "prometheus": "apt-get install prometheus",
    "prometheus-alertmanager": "apt-get install prometheus-alertmanager",
    "promtool": "apt-get install prometheus",
    "root": "run as root",
    "unshare -p": "allow process namespaces",
    "unshare -rm": "allow user namespaces",
}
KUBERAY_CRD = Path(os.environ.get("KUBERAY_CRD", ""))


@cache
def where(needed: str) -> str:
    """Return the path of a program of this environment or machine, or of data; empty if it is not there.

    For a right or a namespace, any text if it is given.
    """
    match needed:
        case "fashion-mnist":
            return FASHION if Path(FASHION).is_dir() else ""
        case "root":
            return "" if os.geteuid() else "root"
        case "unshare -p":
            return works("unshare", "--pid", "--fork", "--mount-proc", "true")
        case "unshare -rm":
            return works("unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    return shutil.which(needed, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or ""


def works(*command: str) -> str:
    """Return the command's program if it ends well, else nothing."""
    ended = shutil.which(command[0]) and subprocess.run(command, capture_output=True).returncode
    return command[0] if ended == 0 else ""


def needs(needed: str) -> pytest.MarkDecorator:
    """Leave a test out where something is not there; the end of the run says how to get it."""
    return pytest.mark.skipif(not where(needed), reason=f"needs {needed}: {REMEDIES[needed]}")


@pytest.fixture(scope="session")
def git() -> None:
    """Leave out, where git is not there, the tests of a fixture that makes a clone."""
    if not where("git"):
        pytest.skip(f"needs git: {REMEDIES['git']}")


needs_crd = pytest.mark.skipif(
    not KUBERAY_CRD.is_file(), reason="needs KubeRay's CRD: export KUBERAY_CRD=FILE (the RayJob CRD as JSON)"
)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the tests that were left out need, and which of `make test` took too long."""
    say_what_is_needed(terminalreporter)
    if config.getoption("markexpr") == "not thorough":
        say_what_took_long(terminalreporter)


def say_what_took_long(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that belong into `make test-all`, or on the list of what is real; none fails for it."""
    long = {
        (report.nodeid.partition("@")[0], round(report.duration))
        for report in terminalreporter.stats.get("passed", [])
        if report.when == "call" and report.duration > TEST_S
    }
    if long := {(test, took_s) for test, took_s in long if test.partition("[")[0] not in THE_REAL_THING_ONCE}:
        terminalreporter.section(f"tests of more than {TEST_S:g} s that tests/tiers.py does not list")
        for test, took_s in sorted(long):
            terminalreporter.line(f"{took_s} s {test}")


def say_what_is_needed(terminalreporter: pytest.TerminalReporter) -> None:
    """Name all Debian packages in one command, and the others."""
    others: set[str] = set()
    packages: set[str] = set()
    for report in terminalreporter.stats.get("skipped", []):
        _, _, reason = report.longrepr
        _, apt, package = reason.rpartition("apt-get install ")
        if apt:
            packages.add(package)
        else:
            others.add(reason.removeprefix("Skipped: "))
    if packages or others:
        left_out = len(terminalreporter.stats["skipped"])
        terminalreporter.section(f"tests left out: {left_out}; to run them too")
        if packages:
            terminalreporter.line(f"apt-get install {' '.join(sorted(packages))}")
        for reason in sorted(others):
            terminalreporter.line(reason)


# --- Which tests run, and in which process ------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mode", help="run only the tests of a mode: those that have it as a parameter or name")
    parser.addoption("--one-in", type=int, default=1, help="run one in so many tests, chosen by their names")
    parser.addoption("--strategy-file", help="hold this strategy, and no other, to the laws of strategies")


def pytest_configure(config: pytest.Config) -> None:
    mode = config.getoption("--mode")
    if mode and mode not in MODES:
        raise pytest.UsageError(f"--mode {mode}: there is no such mode; choose among {', '.join(modes())}")
    if (share := config.getoption("--one-in")) < 1:
        raise pytest.UsageError(f"--one-in {share}: give a whole number of at least 1")
    paths = [] if config.getoption("pyargs") else config.args
    for path in paths:  # xdist says of one that is not there that no tests ran
        if not (config.invocation_params.dir / path.partition("::")[0]).exists():
            raise pytest.UsageError(f"{path}: there is no such file or folder")


@pytest.hookimpl(tryfirst=True)  # -m then sees the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that are thorough, name the process of those that must share one, keep those of
    --mode and --one-in.
    """
    for item in repeated(items):
        item.add_marker("thorough")
    share = config.getoption("--one-in")
    keep(config, items, lambda item: zlib.crc32(item.nodeid.encode()) % share == 0)
    for item in items:
        if hasattr(config, "workerinput") and (group := shared(item)):
            # What xdist 3.8 makes of the mark xdist_group: it sets _nodeid, which pytest 9.2 does not read.
            item._id = item.id.parse(f"{item.nodeid}@{group}")
    if mode := config.getoption("--mode"):
        keep(config, items, lambda item: concerns(item, mode))


def repeated(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the cases of crossings that `make test` leaves out: all but the first of each mode, or of a test
    without modes; with `crossing(one_in=N)` all but every Nth.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for item in items:
        if mark := item.get_closest_marker("crossing"):
            key = item.nodeid.partition("[")[0], "" if mark.kwargs else next(modes_of(item), "")
            if counts[key] % mark.kwargs.get("one_in", len(items)):
                yield item
            counts[key] += 1


def modes_of(item: pytest.Item) -> Iterator[str]:
    """Yield the modes among a test's parameters."""
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        for parameter in item.callspec.params.values():
            for name in (parameter, getattr(parameter, "mode", None)):
                if isinstance(name, str) and name in MODES:
                    yield name


def keep(config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]) -> None:
    """Deselect the tests that are not wanted."""
    config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
    items[:] = filter(wanted, items)


def shared(item: pytest.Item) -> str:
    """Return what a test shares with others and a process makes once: the cluster, or its file's fixtures."""
    if item.get_closest_marker("ray"):
        # These tests wait more than they compute, so they go to two processes, with a cluster each.
        return "ray" if item.path.parent.name == "engines" else "ray2"
    fixtures = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    made_once = (f.func for found in fixtures.values() for f in found if f.scope in ("module", "session"))
    return item.path.stem if any(not f.__module__.startswith("_pytest") for f in made_once) else ""


def concerns(item: pytest.Item, mode: str) -> bool:
    """Whether a test has the mode as a parameter, or in its file's or its name: test_local_sgd_… is about
    localsgd.
    """
    if item.path.stem == f"test_{mode}":
        return True
    if mode in modes_of(item):
        return True
    words = item.name.partition("[")[0].split("_")
    return any("".join(words[i:j]) == mode for i in range(len(words)) for j in range(i + 1, i + 4))


# --- Fixtures -----------------------------------------------------------------------------------------------


class Ran(NamedTuple):
    """A finished run of the command line."""

    code: int
    out: str
    err: str
    record: Path

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.record / "summary.json").read_text())
        return summary

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.record / name).read_text().splitlines()]


class CommandLine:
    """Runs main.py in this process, with records in its own folder."""

    def __init__(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self._capsys, self._count = out, capsys, 0

    def __call__(self, text: str, *more: str) -> Ran:
        from main import main

        self._count += 1
        name = f"run{self._count}"
        arguments = [*shlex.split(text), *more]
        resumes = "--resume" in arguments  # its own folder
        if not resumes and "--out" not in arguments:
            arguments += ["--out", str(self.out)]
        if not resumes and "--run-name" not in arguments:
            arguments += ["--run-name", name]
        try:
            code = main(arguments)
        except SystemExit as stop:  # --help
            code = int(stop.code or 0)
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err, self.out / name)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path / "runs", capsys)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Start a private Ray cluster for this process; yield its address."""
    import ray

    import dsgd.engines.ray.connection.connect  # noqa: F401 - sets what Ray reads at its import
    from dsgd.engines.ray.connection.credentials import guard_token

    guard_token()
    folder = tempfile.mkdtemp(prefix="dsgd-ray-", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=folder,
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


HEAD_AND_TWO_NODES = """
import sys
import dsgd.engines.ray.connection.connect
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = {node.node_id: node for node in (cluster.add_node(num_cpus=1) for _ in range(2))}
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(nodes[line.strip()])
    print("removed", flush=True)
cluster.shutdown()
"""


class Nodes:
    """A Ray cluster of three nodes, in a separate process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._asked(None)

    def remove(self, node_id: str) -> None:
        """End a node that is not the head."""
        assert self._asked(node_id) == "removed"

    def _asked(self, line: str | None) -> str:
        assert self._process.stdin
        assert self._process.stdout
        if line:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Start a cluster of a head and two nodes that can be removed."""
    with subprocess.Popen(
        [sys.executable, "-c", HEAD_AND_TWO_NODES],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as cluster:  # fmt: skip
        yield Nodes(cluster)
        assert cluster.stdin
        cluster.stdin.close()
        assert cluster.wait(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start Chromium; yield Playwright's handle of it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=where("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Start an S3 of our own; yield its URL."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def aws(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Set up a user with the empty bucket `lab` in S3, in a separate folder; yield a client."""
    import boto3

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    monkeypatch.chdir(tmp_path)
    client = boto3.client("s3")
    client.create_bucket(Bucket="lab")
    yield client
    for key in stored(client):
        client.delete_object(Bucket="lab", Key=key)
    client.delete_bucket(Bucket="lab")


def stored(client: Any) -> dict[str, bytes]:
    """Return all that is in the bucket; nobody may write there meanwhile."""
    return {key: client.get_object(Bucket="lab", Key=key)["Body"].read() for key in keys(client)}


def keys(client: Any) -> list[str]:
    """Return the keys in the bucket, also while a process adds and removes some."""
    return [entry["Key"] for entry in client.list_objects_v2(Bucket="lab").get("Contents", [])]


# How long a test waits for what must come, s. Only what hangs takes as long, not a machine that is slow or
# does other things, too. Alertmanager takes longer, five minutes, to resolve what it hears no more of.
PATIENCE_S = 240.0
# The source of what a test wants to see cut short. A signal that comes just before a sleep begins is handled
# only after it, so the sleeps are short.
HANGS = f"[time.sleep(0.02) for _ in range({100 * PATIENCE_S:.0f})]"


def wait_for(condition: Callable[[], Any], what: str = "it") -> Any:
    """Wait until a condition holds; return what it then gave."""
    until_s = time.monotonic() + PATIENCE_S
    while not (given := condition()):
        assert time.monotonic() < until_s, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.02)
    return given


def run_python(
    *arguments: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Python of this environment to its end, with this repository's modules and more variables."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip


def python(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a Python of this environment in its own process group."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
