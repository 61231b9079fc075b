"""A run that is killed at any update goes on as if it had not been."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MODES, ROOT, CommandLine, python
from golden_variants import VARIANTS, name

import dsgd
from dsgd.config import TrainConfig
from dsgd.core.option_rules import options as all_options
from dsgd.core.protocol import Update
from dsgd.process.outcomes import UsageError
from dsgd.records.reader import read_options
from dsgd.records.writer import RunRecord
from dsgd.running.execute import Ended, execute
from dsgd.running.keeper import Running, Watcher
from dsgd.running.replaying import difference, recorded_run, replayed
from dsgd.show.terminal.resume_option import going_on, going_on_by_name
from dsgd.strategies import configured

OPTIONS: Mapping[str, Any] = {
    "engine": "sim", "num_workers": 4, "steps": 24, "lr": 0.05, "eval_every": 3, "trace_last": 0,
    "compute_time": "exponential:1", "slowdown": "0=3", "checkpoint_every": "2",
}  # fmt: skip
EVEN = {"mode": "ssgd", "compute_time": "constant:1", "slowdown": ""}
WALL = ("wall_s", "startup_s")


class Kill(Watcher):
    """Kills this process after an update, or as soon after it as there is a checkpoint; at None: once the
    checkpoint of the run's end is written, and its summary is not.
    """

    def __init__(self, at: int | None, *, wait: bool = False) -> None:
        self._at, self._wait = at, wait

    def started(self, running: Running) -> None:
        self._path = running.path

    def updated(self, update: Update) -> None:
        if update.weights.version == self._at:
            while self._wait and not list((self._path or Path()).glob("checkpoints/*.safetensors")):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    def ended(self) -> None:
        if self._at is None:
            os.kill(os.getpid(), signal.SIGKILL)


def run(cfg: TrainConfig, *watchers: Watcher, resume: str | None = None) -> Ended:
    return execute(cfg, watchers, record=RunRecord(cfg, resume=bool(resume)), resume=resume)


def killed(cfg: TrainConfig, at: int | None, *, wait: bool = False) -> None:
    """Run in another process, which is killed after update `at`."""
    killed_in(lambda: run(cfg, Kill(at, wait=wait)))


def killed_in(act: Callable[[], object]) -> None:
    """Act in another process, which is killed meanwhile. A fork needs no second for imports."""
    child = os.fork()
    if not child:
        act()
        os._exit(3)  # the run has ended before that update
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the run ended with {status}"


def contents(record: Path) -> dict[str, Any]:
    """Return all of a record that does not depend on the machine's speed."""
    summary = json.loads((record / "summary.json").read_text())
    files = ("updates.jsonl", "evals.jsonl", "faults.jsonl", "weights.npy")
    found = {file: (record / file).read_bytes() for file in files}
    return found | {field: value for field, value in summary.items() if field not in WALL}


def lines(record: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (record / file).read_text().splitlines()]


def versions(record: Path) -> list[int]:
    return [line["version"] for line in lines(record, "updates.jsonl")]


CASES = [(mode, variant) for mode in VARIANTS for variant in VARIANTS[mode]]


@pytest.mark.crossing
@pytest.mark.parametrize(("mode", "variant"), CASES, ids=[name(mode, variant) for mode, variant in CASES])
def test_a_killed_simulation_goes_on_bit_for_bit(
    mode: str, variant: Mapping[str, Any], tmp_path: Path
) -> None:
    """SIGKILL at random updates, of every mode and variant: the record is that of the run never killed."""

    def cfg(run_name: str) -> TrainConfig:
        return configured({**OPTIONS, "mode": mode, **variant, "out": str(tmp_path), "run_name": run_name})

    whole = run(cfg("whole"))
    assert whole.path
    draws = np.random.default_rng([len(mode), *mode.encode(), CASES.index((mode, variant))])
    for n, at in enumerate(draws.integers(1, whole.tally.updates, 3, endpoint=True)):
        killed(cfg(f"cut{n}"), int(at))
        ended = run(cfg(f"cut{n}"), resume="killed")
        assert not ended.error
        assert ended.path
        assert contents(ended.path) == contents(whole.path), f"killed at update {at}"


@pytest.mark.parametrize("goal", [{}, {"target_loss": 0.69}], ids=["budget", "target-loss"])
@pytest.mark.parametrize("mode", ["asgd", "diloco"])
def test_a_run_that_is_killed_after_its_last_checkpoint_makes_no_further_update(
    mode: str, goal: Mapping[str, Any], tmp_path: Path
) -> None:
    """Its record is completed, and is that of the run never killed."""

    def cfg(run_name: str) -> TrainConfig:
        return configured({**OPTIONS, "mode": mode, **goal, "out": str(tmp_path), "run_name": run_name})

    whole = run(cfg("whole"))
    assert whole.path
    assert whole.stopped_by == ("target-loss" if goal else "budget")
    killed(cfg("cut"), None)
    ended = run(cfg("cut"), resume="killed")
    assert ended.path
    assert contents(ended.path) == contents(whole.path)


def test_a_run_may_be_killed_again_and_again(tmp_path: Path) -> None:
    """Each attempt goes on where the one before was; meta.json lists them."""

    def cfg(run_name: str) -> TrainConfig:
        return configured({**OPTIONS, "mode": "asgd", "out": str(tmp_path), "run_name": run_name})

    whole = run(cfg("whole"))
    killed(cfg("cut"), 30)
    for at in (50, 70):
        child = os.fork()
        if not child:
            run(cfg("cut"), Kill(at), resume="killed")
            os._exit(3)
        os.waitpid(child, 0)
    ended = run(cfg("cut"), resume="killed")
    assert ended.path
    assert whole.path
    assert contents(ended.path) == contents(whole.path)
    attempts = json.loads((ended.path / "meta.json").read_text())["attempts"]
    assert [attempt["why"] for attempt in attempts] == ["killed"] * 3
    assert [attempt["from_version"] for attempt in attempts] == sorted(a["from_version"] for a in attempts)


BEGUN = (
    "--mode asgd --engine sim --num-workers 3 --steps 20 --checkpoint-every 2 --compute-time exponential:1"
)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return the record of a run that was killed in the middle."""
    from dsgd.show.terminal.cli import parse

    killed(parse([*BEGUN.split(), "--out", str(tmp_path / "runs"), "--run-name", "begun"]), 33, wait=True)
    return tmp_path / "runs" / "begun"


def resumed(cli: CommandLine, text: str) -> tuple[int, str]:
    ran = cli(f"--resume {text}")
    return ran.code, ran.err


def test_resume_takes_the_options_from_the_record(cli: CommandLine, begun: Path) -> None:
    """`--resume RUN` alone finishes the run; a second one is refused, unless it asks for more steps."""
    assert resumed(cli, str(begun)) == (0, "")
    assert json.loads((begun / "summary.json").read_text())["updates"] == 60
    code, said = resumed(cli, str(begun))
    assert (code, said.count("\n")) == (2, 1)
    assert "is finished (budget); give more --steps than 20" in said
    assert resumed(cli, f"{begun} --steps 30") == (0, "")
    assert versions(begun) == list(range(1, 91))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--lr 3", "--lr 3.0: the run has 0.1; leave it out. Only these may change: --steps, --max-seconds"),
        ("--steps 10", "--steps 10: the run has 20; steps may only grow"),
        ("--seed 4", "--seed 4: the run has 0"),
        ("--run-name other", "--out and --run-name name another folder; leave them out"),
        ("--config x.yaml", "the options are those of that run; leave --config out"),
    ],
)
def test_other_options_are_refused(cli: CommandLine, begun: Path, options: str, said: str) -> None:
    """One line names the option, what the run has, and what may change; nothing is written."""
    before = {file: file.read_bytes() for file in begun.iterdir() if file.is_file()}
    code, line = resumed(cli, f"{begun} {options}")
    assert (code, line.count("\n")) == (2, 1)
    assert said in line
    assert {file: file.read_bytes() for file in begun.iterdir() if file.is_file()} == before


def test_auto_takes_what_is_left_out_from_the_record(cli: CommandLine, begun: Path) -> None:
    """The name is enough; an option that is given must be the run's."""
    name = f"auto --out {begun.parent} --run-name {begun.name}"
    code, line = resumed(cli, f"{name} --num-workers 5")
    assert (code, line.count("\n")) == (2, 1)
    assert "--num-workers 5: the run has 3; leave it out" in line
    assert resumed(cli, f"{name} --num-workers 3 --steps 30") == (0, "")
    assert versions(begun) == list(range(1, 91))


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("before", [False, True], ids=["", "of an earlier version"])
def test_a_config_that_was_damaged_never_makes_another_run_of_it(
    before: bool, cli: CommandLine, begun: Path, tmp_path: Path
) -> None:
    """Cut after any line or with another value, config.yaml is refused in one line and nothing is touched; or
    the run ends as it would have, where only options are lost that may change.
    """
    assert resumed(cli, f"auto {BEGUN} --out {tmp_path} --quiet --run-name whole") == (0, "")
    meta = json.loads((begun / "meta.json").read_text())
    meta.pop("options_sha256", None)
    if before:
        (begun / "meta.json").write_text(json.dumps(meta))
    good = (begun / "config.yaml").read_text()
    lines = good.splitlines(keepends=True)
    damaged = {f"cut-after-{n}": "".join(lines[:n]) for n in range(1, len(lines), 9)}
    for was, now in (
        ("seed: 0", "seed: 1"),
        ("lr: 0.1", "lr: 0.2"),
        ("mode: asgd", "mode: ssgd"),
        ("xor", "digits"),
    ):
        damaged[now.replace(": ", "-")] = good.replace(was, now)
    code = 0
    for how, text in damaged.items():
        assert text != good
        copy = tmp_path / "copies" / how / "it"
        shutil.copytree(begun, copy)
        (copy / "config.yaml").write_text(text)
        untouched = _tree(copy)
        code, said = resumed(cli, str(copy))
        if code:
            assert (code, said.count("\n")) == (2, 1), how
            assert str(copy) in said, how
            assert _tree(copy) == untouched, how
        else:
            assert contents(copy) == contents(tmp_path / "whole"), how
    assert code == 2


def test_a_later_version_with_one_more_option_goes_on(cli: CommandLine, tmp_path: Path) -> None:
    """The option has its default; its name does not make a run of the earlier version another one, also when
    that goes on twice, from the same checkpoint.
    """
    file = tmp_path / "train_majority.py"
    code = (ROOT / "tests/own/train_majority.py").read_text()
    file.write_text(code)
    options = f"--mode {file} --engine sim --num-workers 3 --steps 20 --checkpoint-every 4"

    def parsed(name: str) -> TrainConfig:
        from dsgd.show.terminal.cli import parse

        return parse([*options.split(), "--out", str(tmp_path), "--run-name", name])

    def goes_on(at: int) -> None:
        from dsgd.show.terminal.resume_option import parse_run

        asked = parse_run(["--resume", str(tmp_path / "cut")])
        run(asked.cfg, Kill(at), resume=asked.resume)

    killed_in(lambda: run(parsed("cut"), Kill(7, wait=True)))  # of two, the second may not be written yet
    more = '    later: int = 1\n    "Is new."\n\n    quorum: int = 1\n'
    file.write_text(code.replace("    quorum: int = 1\n", more))
    killed_in(lambda: goes_on(7))
    assert "--later 2: the run has 1; leave it out" in resumed(cli, f"{tmp_path}/cut --later 2")[1]
    assert resumed(cli, f"{tmp_path}/cut") == (0, "")
    first, second = json.loads((tmp_path / "cut/meta.json").read_text())["attempts"]
    assert first["from_version"] == second["from_version"] > 0
    whole = run(parsed("whole"))
    assert whole.path
    assert contents(tmp_path / "cut") == contents(whole.path)


def test_what_is_no_record_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    """One line."""
    code, line = resumed(cli, str(tmp_path))
    assert (code, line.count("\n")) == (2, 1)
    assert "is not the folder of a run record" in line


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _a_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


DAMAGES: Mapping[str, Callable[[Path], object]] = {
    "removed": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "garbage": lambda file: file.write_bytes(b"\xd5" * 500),
    "a line less": lambda file: file.write_bytes(file.read_bytes().partition(b"\n")[2]),
    "junk at its end": lambda file: file.write_bytes(file.read_bytes() + b"junk\n"),
    "no field": lambda file: file.write_text("{}"),
    "deep": lambda file: file.write_text("[" * 50_000),
    "a folder": _a_folder,
    "a loop": _a_loop,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_goes_on_or_is_refused_and_left_alone(
    damage: str, cli: CommandLine, begun: Path, tmp_path: Path
) -> None:
    """Each file, damaged in any way: the run ends with the bytes of the one never killed, or one line says
    why it does not go on, and no checkpoint is lost.
    """
    assert resumed(cli, f"auto {BEGUN} --out {tmp_path} --quiet --run-name whole") == (0, "")
    newest = sorted((begun / "checkpoints").iterdir())[-1].relative_to(begun)
    for file in ("config.yaml", "meta.json", "updates.jsonl", "evals.jsonl", "faults.jsonl", str(newest)):
        copy = tmp_path / "copies" / file / "it"
        shutil.copytree(begun, copy)
        DAMAGES[damage](copy / file)
        before = {path.name for path in (copy / "checkpoints").iterdir()}
        code, said = resumed(cli, str(copy))
        if code:
            assert len(said.splitlines()) == 1
            assert file in said
            assert before <= {path.name for path in (copy / "checkpoints").iterdir()}
        else:
            assert contents(copy) == contents(tmp_path / "whole")


def test_a_run_that_is_going_on_is_refused(cli: CommandLine, begun: Path) -> None:
    """Two processes never write one record."""
    record = RunRecord(
        configured({**OPTIONS, "mode": "asgd", "out": str(begun.parent), "run_name": "begun"}), resume=True
    )
    code, line = resumed(cli, str(begun))
    assert (code, line.count("\n")) == (2, 1)
    assert "its run is still going on" in line
    record.release()
    assert resumed(cli, str(begun)) == (0, "")


def test_auto_begins_and_goes_on(cli: CommandLine, begun: Path) -> None:
    """The same command line begins a run, goes on with it, or finds it done: a job may be started again."""
    command = f"{BEGUN} --out {begun.parent} --quiet --run-name"
    assert resumed(cli, f"auto {command} new") == (0, "")
    assert resumed(cli, f"auto {command} begun") == (0, "")
    assert contents(begun) == contents(begun.parent / "new")
    assert resumed(cli, f"auto {command} new") == (0, "")
    assert contents(begun) == contents(begun.parent / "new")
    code, line = resumed(cli, f"auto {BEGUN} --out {begun.parent}")
    assert (code, line.count("\n")) == (2, 1)
    assert "goes on with the run of --run-name; give that too" in line


def test_a_process_that_is_killed_goes_on_from_the_command_line(tmp_path: Path) -> None:
    """Nobody in the process helps: main.py is killed from outside, whenever that is, and resumed."""
    command = f"main.py {BEGUN} --steps 400 --quiet --out {tmp_path} --run-name"
    cut = python(*command.split(), "cut")
    while not list(tmp_path.glob("cut/checkpoints/*.safetensors")):
        assert cut.poll() is None, cut.communicate()
        time.sleep(0.01)
    cut.kill()
    cut.communicate()
    assert cut.returncode == -signal.SIGKILL
    for arguments in (["--resume", str(tmp_path / "cut"), "--quiet"], [*command.split()[1:], "whole"]):
        ended = python("main.py", *arguments)
        assert ended.communicate()[1] == ""
        assert ended.returncode == 0
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_python_goes_on_too(begun: Path) -> None:
    """`dsgd.run(resume=...)` takes the options from the record, and refuses others in the same words."""
    with pytest.raises(ValueError, match=r"lr 3.0: the run has 0.1; leave it out"):
        dsgd.run(resume=begun, lr=3.0)
    result = dsgd.run(resume=begun, quiet=True)
    assert (result.path, result.summary["updates"]) == (begun, 60)
    again = dsgd.run("asgd", engine="sim", num_workers=3, steps=20, checkpoint_every="2",
                     compute_time="exponential:1", out=begun.parent, run_name="n", resume="auto")  # fmt: skip
    assert again.path
    assert contents(again.path) == contents(begun)


def test_a_lost_driver_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """In the simulator too: it loses the time since the checkpoint and until it is back, nothing else."""

    def cfg(run_name: str, **more: Any) -> TrainConfig:
        some = {
            **OPTIONS,
            "mode": "ssgd",
            "compute_time": "constant:1",
            "slowdown": "",
            "checkpoint_every": "4",
        }
        return configured({**some, **more, "out": str(tmp_path), "run_name": run_name})

    whole, lost = run(cfg("whole")), run(cfg("lost", faults="driver@t=6.5+3; driver@update=20"))
    assert lost.path
    assert lost.weights.vector.tobytes() == whole.weights.vector.tobytes()
    assert whole.tally.last_update_s == 24
    # Checkpoints at 4 s and, from 9.5 s on, each 4 s; the one at 25.5 s, of update 20, comes too late.
    assert lost.tally.last_update_s == 24 + (6.5 - 4 + 3) + 4
    assert versions(lost.path) == list(range(1, 25))
    faults = lines(lost.path, "faults.jsonl")
    seen = [(f["kind"], f["t_s"], f["repeated"], f["recovered_s"]) for f in faults]
    assert seen == [("driver", 6.5, 8, 3), ("driver", 25.5, 16, 0)]


@pytest.mark.parametrize("damage", ["torn", "rot"])
def test_a_lost_driver_skips_a_damaged_checkpoint(damage: str, tmp_path: Path) -> None:
    """It goes on from the one before, and faults.jsonl says which was skipped."""

    def cfg(run_name: str, faults: str = "") -> TrainConfig:
        some = {**OPTIONS, **EVEN, "checkpoint_every": "4", "faults": faults}
        return configured({**some, "out": str(tmp_path), "run_name": run_name})

    whole, lost = run(cfg("whole")), run(cfg("lost", f"{damage}@t=7; driver@t=10.5+3"))
    assert lost.path
    assert lost.weights.vector.tobytes() == whole.weights.vector.tobytes()
    # Its checkpoints are of 4 s and of 8 s.
    assert lost.tally.last_update_s == 24 + (10.5 - 4 + 3)
    assert versions(lost.path) == list(range(1, 25))
    seen = {fault["kind"]: fault for fault in lines(lost.path, "faults.jsonl")}
    assert set(seen) == {damage, "driver"}
    skipped = seen[damage]["text"].partition(":")[0]
    assert skipped.startswith("checkpoint 00000008-")
    assert f"the driver went on from version 4; {skipped} was skipped: " in seen["driver"]["text"]
    assert seen["driver"]["repeated"] == 24


def test_a_killed_run_with_faults_of_its_driver_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """What was lost in virtual time and what is really killed do not mix."""

    def cfg(run_name: str) -> TrainConfig:
        of_store = "torn@t=4; slow-disk=.5@t=9+6; full@update=30+2; rot@update=50"
        faults: dict[str, Any] = {"faults": f"driver@t=7.3+3; driver@update=25; kill:1@t=3; {of_store}"}
        faults |= {"checkpoint_cost_s": 0.25}
        return configured({**OPTIONS, "mode": "asgd", **faults, "out": str(tmp_path), "run_name": run_name})

    whole = run(cfg("whole"))
    assert whole.path
    assert not whole.error
    faults = lines(whole.path, "faults.jsonl")
    kinds = [fault["kind"] for fault in faults]
    assert sorted(kinds) == ["driver", "driver", "full", "kill", "rot", "slow-disk", "torn"]
    over_s = [fault["t_s"] + (fault["recovered_s"] or 0) for fault in faults]
    assert over_s == sorted(over_s)
    assert all(fault["came_in"] >= fault["update"] > 0 for fault in faults)
    for at in (5, 20, 24, 26, 40, 60, 90):
        killed(cfg(f"cut{at}"), at)
        ended = run(cfg(f"cut{at}"), resume="killed")
        assert ended.path
        assert contents(ended.path) == contents(whole.path), f"killed at update {at}"


def test_checkpoints_cost_virtual_time(tmp_path: Path) -> None:
    """The server stands still for each: a barrier of 1 s with a checkpoint of .5 s each 4 s of work."""

    def cfg(run_name: str, cost_s: float) -> TrainConfig:
        some = {**OPTIONS, "mode": "ssgd", "compute_time": "constant:1", "slowdown": ""}
        some |= {"checkpoint_every": "4", "checkpoint_cost_s": cost_s}
        return configured({**some, "out": str(tmp_path), "run_name": run_name})

    assert run(cfg("free", 0.0)).tally.last_update_s == 24
    assert run(cfg("dear", 0.5)).tally.last_update_s == 24 + 5 * 0.5


def test_a_run_that_diverges_rolls_back(tmp_path: Path) -> None:
    """It goes back before the loss blew up, halves its step size until it does not, and records each time."""
    options = {**OPTIONS, "mode": "ssgd", "workload": "quadratic", "lr": 30.0, "steps": 100}
    options |= {"on_divergence": "rollback", "out": str(tmp_path), "run_name": "it"}
    ended = run(configured(options))
    assert ended.path
    assert (ended.stopped_by, ended.tally.updates) == ("budget", 100)
    assert np.isfinite(ended.weights.vector).all()
    faults = lines(ended.path, "faults.jsonl")
    assert {fault["kind"] for fault in faults} == {"divergence"}
    assert faults[-1]["text"].endswith(f"step size {30.0 * 0.5 ** len(faults):g}")
    assert versions(ended.path) == list(range(1, 101))


def test_a_run_starts_from_another_runs_weights(cli: CommandLine) -> None:
    """`--init-from RUN` takes the last weights, RUN@VERSION a checkpoint's; what is not there is refused."""
    first = cli("--mode asgd --engine sim --num-workers 2 --steps 8 --checkpoint-every 2 --keep 99")
    second = cli(f"--mode ssgd --engine sim --num-workers 2 --steps 1 --init-from {first.record}")
    weights = np.load(first.record / "weights.npy")
    meta = json.loads((second.record / "meta.json").read_text())
    assert meta["init_sha256"] == hashlib.sha256(weights.tobytes()).hexdigest()
    for wrong, said in [
        (f"{first.record} --hidden 5", "weights and this run"),
        (f"{first.record}@7777", "has no checkpoint of that version; it has "),
        (f"{first.record.parent}", "has no weights.npy"),
    ]:
        refused = cli(f"--mode ssgd --engine sim --num-workers 2 --steps 1 --init-from {wrong}")
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert said in refused.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--checkpoint-every auto", "auto needs the mean time between two losses of the driver; give it"),
        ("--checkpoint-every auto,mtbf=9", "auto needs the cost of a checkpoint in virtual seconds"),
        ("--checkpoint-every 3,mtbf=9", "mtbf is for auto"),
        ("--checkpoint-every s3=3", "give --out s3://BUCKET/PREFIX too"),
        ("--checkpoint-every peer=3", "choose --engine ray, or the tier disk"),
    ],
)
def test_options_of_checkpoints_that_do_not_go_together(cli: CommandLine, options: str, said: str) -> None:
    """One line with the rule and the remedy."""
    refused = cli(f"--engine sim {options}")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert said in refused.err


def test_a_damaged_checkpoint_is_skipped_and_named(cli: CommandLine, begun: Path) -> None:
    """The next older one serves, and the run ends as if nothing had been damaged."""
    newest = sorted((begun / "checkpoints").glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    code, said = resumed(cli, str(begun))
    assert (code, said.count("\n")) == (0, 1)
    assert f"note: checkpoint {newest.name} was skipped: its" in said
    assert json.loads((begun / "summary.json").read_text())["updates"] == 60


def test_an_unwritable_folder_of_checkpoints_is_refused(cli: CommandLine, begun: Path) -> None:
    """One line; root may write everywhere, so there nothing is refused."""
    (begun / "checkpoints").chmod(0o500)
    code, line = resumed(cli, str(begun))
    (begun / "checkpoints").chmod(0o700)
    if os.geteuid():
        assert (code, line.count("\n")) == (2, 1)
        assert "cannot be written to; correct its permissions" in line
    else:
        assert code == 0


UNEVEN = 5  # local steps: the last round of a shorter run is shorter
GROWN: list[tuple[str, dict[str, Any]]] = [
    *((mode, {"schedule": "cosine,warmup=5"}) for mode in sorted(MODES)),
    ("ssgd", {"schedule": "linear,warmup=15", "optimizer": "adamw", "lr": 0.01}),
    ("diloco", {"schedule": "linear", "inner": "sgd"}),
    ("asgd", {"schedule": "constant,warmup=5"}),
    ("localsgd", {"schedule": "cosine", "local_steps": UNEVEN}),
]
# When all have taken 4 times 16 steps, a fast worker of these has taken more than 16 by its own count.
BY_OWN_COUNT = ("adpsgd", "dpsgd", "noloco", "sgp")


@pytest.mark.crossing
@pytest.mark.parametrize(("mode", "options"), GROWN, ids=[f"{mode}, {o['schedule']}" for mode, o in GROWN])
@pytest.mark.parametrize("cut", [None, 1], ids=["finished", "killed"])
def test_a_run_that_gets_more_steps_is_the_run_that_was_asked_for_them(
    mode: str, options: Mapping[str, Any], cut: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """16 steps, then 32, then 48: its schedule falls as it was to, and begins again where it was to end; one
    line says so each time. Nothing else depends on the budget, and a replay knows of all three.
    """

    def cfg(run_name: str, **others: Any) -> TrainConfig:
        asked = {"engine": "sim", "num_workers": 4, "steps": 16, "eval_every": 8, "checkpoint_every": "2"}
        own = {**asked, "compute_time": "exponential:1", "mode": mode, **options}
        return configured({**own, "out": str(tmp_path), "run_name": run_name, **others})

    falls = not options["schedule"].startswith("constant")
    schedule = options["schedule"] + ",restart=16+32" * falls
    whole = run(cfg("whole", steps=48, schedule=schedule))
    killed(cfg("grown"), cut) if cut else run(cfg("grown"))
    for steps in (32, 48):
        asked = going_on(str(tmp_path / "grown"), given={"steps": steps})
        ended = run(asked.cfg, resume=asked.resume)
    assert ended.path
    assert whole.path
    assert read_options(ended.path)["schedule"] == schedule
    if mode not in BY_OWN_COUNT and options.get("local_steps") != UNEVEN:
        for file in ("updates.jsonl", "weights.npy"):
            assert (ended.path / file).read_bytes() == (whole.path / file).read_bytes()
    replay = recorded_run(ended.path)
    assert [difference(*pair) for pair in replayed(replay)] == [None] * ended.tally.updates
    assert len([line for line in caplog.messages if "begins again" in line]) == 2 * falls
    again = {**all_options(cfg("grown")), "steps": 48}
    assert going_on_by_name(configured(again), (), again).finished == "budget"  # the same command, once more
    with pytest.raises(UsageError, match="the run has"):
        going_on(str(ended.path), given={"steps": 50, "schedule": "linear,restart=3"})
