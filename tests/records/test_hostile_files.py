"""Files that anybody may have written: one line says what is wrong, whatever they hold."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from conftest import ROOT

from dsgd.process.bounded_yaml import read_yaml
from dsgd.show.live.followed_folder import FollowedFolder
from dsgd.show.report.frames import read_folder
from main import main

SIM = "--engine sim --dim 5 --num-workers 2 --steps 3"

YAML = {
    "[" * 50_000: "line 1: is over 64 levels deep",
    "a: &x [*x]": "line 1: found unconstructable recursive node",
    "a: 1\nb: " + "9" * 400: "line 2: '999999999999999999999999 … 9999999999999' has more than 64 bits",
    "a: " + "9" * 5_000: "cannot be read as a value",
    "a: 1" + ":59" * 400 + ".5": "cannot be read as a value",
    "a: !!bool no, thanks": "'no, thanks' cannot be read as a value",
    "a: !!timestamp today": "'today' cannot be read as a value",
    "a: !!python/name:os.system": "could not determine a constructor",
    "a: {b: 1, b: 2}": "line 1: 'b' appears twice",
    "a: {8: 1, '8': 2}": "line 1: '8' appears twice",
    "variants:\n  on: {momentum: 0.9}": "line 2: 'on' is True in YAML, and no name; put it in quotes",
    "{~: 1}": "line 1: '~' is None in YAML, and no name",
    "{010: 1}": "line 1: '010' is 10 in YAML, and no name",
    "{1.50: 1}": "line 1: '1.50' is 1.5 in YAML, and no name",
}


@pytest.fixture(params=["libyaml", "Python alone"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module as it is where libyaml is installed, and where it is not."""
    if request.param != "libyaml":
        monkeypatch.delattr(yaml, "CSafeLoader")
    module = ModuleType("bounded_yaml")
    exec((ROOT / "dsgd/process/bounded_yaml.py").read_text(), vars(module))  # noqa: S102 - the module itself
    return module


@pytest.mark.parametrize("text", YAML)
def test_a_yaml_text_is_refused_in_one_line(text: str, loader: ModuleType) -> None:
    """Depth, size and numbers are bounded, and no text has another error than `YamlError`."""
    with pytest.raises(loader.YamlError) as refused:
        loader.load_yaml(text, "give another")
    assert YAML[text] in str(refused.value)
    assert len(str(refused.value)) < 200
    assert str(refused.value).isprintable()


def test_a_file_is_read_up_to_a_size(loader: ModuleType) -> None:
    """A file without an end is not read to it, and a date is text."""
    with pytest.raises(loader.YamlError, match="is larger than 4 MB"):
        loader.read_yaml(Path("/dev/zero"))
    assert loader.load_yaml("a: 2020-13-45\nb: [1.5, .5]") == {"a": "2020-13-45", "b": [1.5, 0.5]}


def test_whole_numbers_are_those_of_the_command_line(loader: ModuleType) -> None:
    """As in YAML 1.2: a zero before it does not make a number octal, nor a colon a time one; names may be
    numbers that are written as Python does.
    """
    text = "{seed: 010, a: -08, b: 0o10, c: 0x1f, d: 1:30, e: '010', 8: x, 0.5: y, 1e-3: z, 'on': w}"
    assert loader.load_yaml(text) == {
        "seed": 10, "a": -8, "b": 8, "c": 31, "d": "1:30", "e": "010",
        "8": "x", "0.5": "y", "1e-3": "z", "on": "w",
    }  # fmt: skip


def test_there_is_one_loader() -> None:
    """What reads YAML in the package goes through it."""
    files = (ROOT / "dsgd").rglob("*.py")
    assert [file.stem for file in files if re.search(r"yaml\.\w*load", file.read_text())] == ["bounded_yaml"]


Damage = bytes | Callable[[bytes], bytes] | None
DAMAGE: dict[str, tuple[Damage, ...]] = {
    "config.yaml": (b"[" * 50_000, b"steps: &x [*x]", b"steps: " + b"9" * 5_000, b"steps: 2020-13-45"),
    "updates.jsonl": (b"[" * 20_000 + b"\n{}\n",),
    "meta.json": (b"[" * 20_000,),
    "summary.json": (
        b"[" * 20_000,
        b'{"updates": ' + b"[" * 20_000,
        None,
        lambda whole: whole.replace(b'"seed": 0', b'"seed": 1'),
    ),
    "evals.jsonl": (b"\0" * 99, None),
    "faults.jsonl": (None,),
    "weights.npy": (np.lib.format.magic(1, 0) + b"\x08\0((((1 1\n", None, lambda whole: whole[:-1] + b"?"),
}
"""What a file holds instead, or becomes; None: it is not there."""


def damaged(file: Path, damage: Damage) -> None:
    """Write what is there instead of a file."""
    whole = file.read_bytes()
    file.unlink()
    if damage is not None:
        file.write_bytes(damage(whole) if callable(damage) else damage)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the record of a run that has ended."""
    out = tmp_path_factory.mktemp("hostile")
    given = [*SIM.split(), "--faults=kill:1@update=1", "--out", str(out), "--run-name", "r", "--quiet"]
    assert main(given) == 0
    return out / "r"


CUT: tuple[Damage, ...] = (
    lambda whole: whole[: len(whole) // 2],
    lambda whole: b"".join(whole.splitlines(keepends=True)[:-1]),
    b"",
)
CASES = {(file, damage) for file, them in DAMAGE.items() for damage in (*them, *CUT)} | {
    ("trace.json", CUT[0])
}


@pytest.mark.parametrize(("file", "damage"), sorted(CASES, key=str))
def test_who_reads_a_record_says_in_one_line_what_is_wrong(
    file: str, damage: Damage, record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No replay of a record with a damaged file finds it the same. Each other command ends with 2 and a line
    that names the file, or needs none of it; a list goes on.
    """
    bad = shutil.copytree(record, tmp_path / "bad")
    damaged(bad / file, damage)
    code, said = main(["replay", str(bad)]), capsys.readouterr()
    assert code == 2 or (code == 1 and "cannot be compared" in said.out)
    assert file in said.out + said.err or "no update" in said.err
    assert "the same" not in said.out
    run = [*SIM.split(), "--out", str(tmp_path), "--quiet", "--init-from"]
    for command in (["report"], ["evaluate"], run):
        code, error = main([*command, str(bad)]), capsys.readouterr().err
        is_whole = code == 0 and (file in error or not error)
        assert is_whole or (code == 2 and error.count("\n") == 1 and file in error), error
    assert main(["list", str(tmp_path)]) == 0


COMPARE = "compare ssgd asgd --engine sim --steps 3 --seeds 2 --lr .1"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an experiment of two modes with two seeds; return the folder that it is in."""
    out = tmp_path_factory.mktemp("experiment")
    assert main([*COMPARE.split(), "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("line", ["mode: [a]", "num_workers: two", "steps: many", "lr: fast", "own: [1]"])
@pytest.mark.parametrize("earlier", [False, True], ids=["", "of an earlier version"])
def test_one_bad_record_never_hides_the_others(
    line: str, earlier: bool, experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where an option has a value that is none, `list`, `report` and `compare` show the other runs, and this
    one with its fault.
    """
    (folder,) = shutil.copytree(experiment, tmp_path / "out").iterdir()
    bad, option = folder / "asgd-s1", line.partition(":")[0]
    config = (bad / "config.yaml").read_text()
    text, count = re.subn(rf"^{option}: .*$", line, config, flags=re.M)
    (bad / "config.yaml").write_text(text if count else f"{config}{line}\n")
    if earlier:
        meta = json.loads((bad / "meta.json").read_text()) | {"options_sha256": None}
        (bad / "meta.json").write_text(json.dumps(meta))
    commands = {f"list {folder}": 0}
    if line == "mode: [a]" and not earlier:  # those take seconds
        commands |= {f"report {folder}": 0, f"{COMPARE} --out {folder.parent}": 1}
    for command, code in commands.items():
        capsys.readouterr()
        assert main(command.split()) == code
        said = " ".join("".join(capsys.readouterr()).split())
        assert re.search(rf"asgd-s1.{{,200}}config\.yaml: {option}", said), said
    frames = read_folder(folder)
    assert [run.record.path.name for run in frames.records] == ["ssgd-s0", "ssgd-s1", "asgd-s0"]
    assert option in frames.notes[0]


ESCAPE = "\x1b]0;owned\x07\x1b[31m"
ME = "me:hush"


@pytest.mark.parametrize(
    "options",
    [
        f"--schedule {ESCAPE}",
        f"list {ESCAPE}",
        "--steps " + "9" * 100_000,
        "--compute-time " + "a://x:" * 17_000,
        "list http://hush@host:9091",
        f"--out s3://{ME}/hush@host/there",
        f"--config s3://{ME}@host/there?sign=hush",
    ],
)
def test_what_was_given_is_echoed_as_one_short_line(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No control character, no password and no key reaches the terminal; long values are cut."""
    assert main(options.split()) == 2
    said = capsys.readouterr().err
    assert said.endswith("\n")
    assert said[:-1].isprintable()
    assert len(said) < 1_100
    assert "hush" not in said


@pytest.mark.thorough
@pytest.mark.parametrize("file", ["config.yaml", "meta.json", "summary.json"])
def test_no_text_of_a_record_rewrites_the_terminal(
    file: str, record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each text in turn has escape sequences: no command prints them, and none ends in a traceback."""
    bad = shutil.copytree(record, tmp_path / "runs" / "bad")
    whole = read_yaml(bad / file)
    for key in [key for key, value in whole.items() if isinstance(value, str)]:
        changed = whole | {key: whole[key] + ESCAPE}
        (bad / file).write_text(yaml.safe_dump(changed) if file == "config.yaml" else json.dumps(changed))
        for command in ("list", "report", "replay", "evaluate"):
            assert main([command, str(bad.parent if command == "list" else bad)]) in (0, 1, 2)
            said = "".join(capsys.readouterr())
            assert said.replace("\n", "").isprintable()


def test_who_looks_at_a_record_runs_no_code_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`list`, `report` and what `watch` reads: the strategy's and workload's files would end this process."""
    monkeypatch.chdir(tmp_path)
    for name in ("own/train_pairs.py", "workloads/tiny.py"):
        shutil.copy(ROOT / "tests" / name, ".")
    options = "--mode train_pairs.py --workload tiny.py --num-workers 2 --steps 3 --engine sim"
    assert main([*options.split(), "--run-name", "a", "--out", "runs", "--quiet"]) == 0
    for file in tmp_path.rglob("*.py"):
        file.write_text("import os; os._exit(1)")
    assert main(["list", "runs"]) == main(["report", "runs"]) == 0
    folder = FollowedFolder(Path("runs"))
    while any(folder.read()):
        pass
    assert {name for name, _ in folder.runs} == {"a"}
