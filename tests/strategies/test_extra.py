"""What a strategy hands over in `Update.extra` is seen everywhere, and changes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine

from dsgd import run
from dsgd.core.update_counts import MOST_EXTRA
from dsgd.metrics import Tally
from dsgd.records.reader import read_summary
from dsgd.running.quick_run import run as simulated
from dsgd.running.replaying import compared, recorded_run
from dsgd.show.live.followed_run import FollowedRun
from dsgd.show.report.frames import read_folder
from dsgd.show.report.tables import results

SIM = "--engine sim --mode adacomm --num-workers 2 --steps 24 --compute-time exponential:1 --eval-every 4"
ADACOMM = f"{SIM} --local-steps 8 --interval-s 6"


def taus(lines: list[dict[str, Any]]) -> list[float]:
    return [line["extra"]["tau"] for line in lines]


def test_it_is_in_the_record_the_report_and_on_the_live_page(cli: CommandLine) -> None:
    """AdaComm's tau: each update's in updates.jsonl, then in summary, page and report."""
    ran = cli(ADACOMM)
    found = taus(ran.lines("updates.jsonl"))
    assert found[0] == 8
    assert len(set(found)) > 1
    of = {"mean": sum(found) / len(found), "last": found[-1]}
    assert ran.summary["extra"] == {"tau": of}
    assert f"tau          mean {of['mean']:.4g}, last {of['last']:.4g}" in ran.out
    followed = FollowedRun(ran.record)
    while followed.read():
        pass
    assert followed.view()["extra"] == {"tau": found[-1]}
    table = results(read_folder(ran.record))
    assert f"{of['mean']:.3g}" in table.rows[0][table.headings.index("tau")]


def test_it_survives_a_resume_and_a_replay_knows_it(cli: CommandLine, tmp_path: Path) -> None:
    """A run that went on from a checkpoint has the same as one that never stopped; a replay compares it."""
    whole = cli(f"{ADACOMM} --checkpoint-every 5")
    cut = tmp_path / "runs" / "cut"
    shutil.copytree(whole.record, cut)
    for name in ("summary.json", "weights.npy", "trace.json"):
        (cut / name).unlink(missing_ok=True)
    for path in sorted((cut / "checkpoints").iterdir())[1:]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run(resume=cut)
    assert (cut / "updates.jsonl").read_bytes() == (whole.record / "updates.jsonl").read_bytes()
    again = read_summary(cut)
    assert again.extra == read_summary(whole.record).extra
    lines = (cut / "updates.jsonl").read_text().splitlines()
    changed = json.loads(lines[2]) | {"extra": {"tau": 99}}
    (cut / "updates.jsonl").write_text("\n".join([*lines[:2], json.dumps(changed), *lines[3:]]) + "\n")
    assert compared(recorded_run(whole.record)).differs is None
    differs = compared(recorded_run(cut)).differs
    assert differs == f"update 3: has tau {taus(whole.lines('updates.jsonl'))[2]}, in the record 99.0"


def test_where_nobody_uses_it_no_file_has_it(cli: CommandLine) -> None:
    """Lines and summaries of other modes are what they were."""
    ran = cli(SIM.replace("adacomm", "localsgd"))
    for name in ("updates.jsonl", "summary.json"):
        assert '"extra"' not in (ran.record / name).read_text()


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"Tau 1": 1.0}, "Update.extra has 'Tau 1': a name has small letters, digits and _; rename it"),
        ({f"x{n}": 1.0 for n in range(MOST_EXTRA + 1)}, f"Update.extra has 'x16', beyond {MOST_EXTRA} other"),
    ],
)
def test_names_are_few_and_plain(extra: dict[str, float], words: str) -> None:
    """Each name is a series and a column: others are refused in one line that says what to do."""
    outcome = simulated("ssgd", num_workers=2, steps=1)
    update = outcome.updates[0]._replace(extra=extra)
    tally = Tally(2, 1, outcome.cluster.clocks)
    with pytest.raises(ValueError, match=words.split(";")[0]):
        tally.add(update)
