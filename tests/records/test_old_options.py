"""A config.yaml of an older version means what it meant, and stays as it is when its run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from old_records import KEPT

from dsgd.core.old_options import OF_ALL, OLD, OldConfig, recorded, renewed
from dsgd.core.option_rules import option_fields
from dsgd.models.workloads import file_of, names
from dsgd.records.fixed_options import options_digest, options_written
from dsgd.records.workload_copy import digest
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.quick_run import config
from dsgd.running.replaying import compared, recorded_run
from dsgd.strategies import configured

DEFAULTS = {name: option.default for name, option in option_fields(OldConfig).items() if name in OF_ALL}
PLAIN: dict[str, Any] = {
    "mode": "adacomm", "engine": "sim", "hidden": "16", "data": None, "topology": "server", "racks": 1,
    "checkpoint_every": None, "schedule": "constant", "partition": "iid", "aggregate": "mean",
}  # fmt: skip
WRITTEN = DEFAULTS | PLAIN | {"workload": None, "parallel": "fsdp", "balance": "bias"}
"""What older versions wrote of every run: all options, most at their defaults."""

MEANS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"dataset": "digits", "model": "logistic"}, {"workload": "digits", "hidden": "none"}),
    ({"workload": "gpt", "corpus": "python"}, {"workload": "gpt", "data": "python"}),
    ({"workload": "gpt", "eval_tokens": 9}, {"workload": "gpt", "eval_samples": 9}),
    ({"workload": "fashion", "eval_images": 9}, {"workload": "fashion", "eval_samples": 9}),
    (
        {"workload": "moe", "balance": "loss", "balance_weight": 0.5},
        {"workload": "moe", "balance": "loss:0.5"},
    ),
    ({"workload": "mine.py", "corpus": "x"}, {"workload": "mine.py", "corpus": "x"}),
    ({"first_local_steps": 4}, {"local_steps": 4}),
    ({"checkpoint_activations": True}, {"recompute_activations": True}),
    ({"parallel": "hsdp:2", "expert_parallel": True}, {"parallel": "hsdp:2,experts"}),
    ({"rank_latency_s": 0.5}, {"rank_link": "inf,0.5"}),
    ({"rank_bytes_per_s": 1.5e9, "rank_latency_s": 1e-5}, {"rank_link": "1.5e+09,1e-05"}),
    ({"topology": "sharded:2", "replicas": 2}, {"topology": "sharded:2,replicas=2"}),
    ({"racks": 2, "rack_bytes_per_s": 12345678.9}, {"racks": "2,12345678.9"}),
    ({"checkpoint_every": "auto", "mtbf": 60.0}, {"checkpoint_every": "auto,mtbf=60"}),
    ({"max_restarts": 0}, {"restarts": "0"}),
    ({"max_restarts": 7, "restart_window_s": 30.0}, {"restarts": "7,within=30"}),
    ({"schedule": "cosine", "warmup": 5}, {"schedule": "cosine,warmup=5"}),
    (
        {"partition": "label", "uneven": 4.0, "weights": "samples"},
        {"partition": "label,uneven=4", "aggregate": "mean,samples"},
    ),
    ({"aggregate": "krum:2", "mix": "nnm:2"}, {"aggregate": "nnm:2+krum:2"}),
]


@pytest.mark.parametrize(("was", "now"), MEANS, ids=[" ".join(was) or "defaults" for was, _ in MEANS])
def test_an_old_config_means_today_what_it_says(was: dict[str, Any], now: dict[str, Any]) -> None:
    """Beside the defaults that it wrote, which mean nothing; a user's workload may have such a name."""
    today = {name: value for name, value in WRITTEN.items() if name not in OLD and name != "workload"}
    assert renewed(WRITTEN | was) == today | {"racks": "1"} | now


@pytest.mark.parametrize("was", [was for was, _ in MEANS[1:2] + MEANS[12:17]], ids=lambda was: " ".join(was))
def test_a_run_that_goes_on_leaves_its_config_as_it_was(was: dict[str, Any]) -> None:
    """What may change is written as today's option in place of the old ones; the digest stays what it was."""
    before = {"mode": "ssgd", "engine": "sim", "steps": 100, "racks": 1, "restart_window_s": 600.0} | was
    before |= {"checkpoint_cost_s": 1.0}
    cfg = configured(recorded(before) | {"steps": 200})
    assert options_written(cfg, before) == before | {"steps": 200}
    cfg = configured(recorded(before) | {"restarts": "5,within=9"})
    written = options_written(cfg, before)
    assert written["restarts"] == "5,within=9"
    assert not written.keys() & {"max_restarts", "restart_window_s"}
    assert options_digest(written) == options_digest(before)
    assert configured(recorded(written)) == cfg


def test_a_record_without_an_edition_is_of_the_first(tmp_path: Path) -> None:
    """It is computed again as then, and zeros were sent as positive numbers."""
    assert recorded({"compress": "sign"}) == {"compress": "sign:positive", "edition": 1}
    assert recorded({"compress": "sign", "edition": 2}) == {"compress": "sign", "edition": 2}
    options = {"workload": "digits", "steps": 30, "error_feedback": "none", "out": str(tmp_path)}
    for name, codec, edition in (("then", "sign:positive", 1), ("now", "sign", 2)):
        cfg = config("ssgd", **options, compress=codec, edition=edition, run_name=name)
        assert execute(cfg, record=RunRecord(cfg)).error is None
        file = tmp_path / name / "config.yaml"
        without = file.read_text().replace(f"edition: {edition}\n", "").replace(codec, "sign")
        file.write_text(without)
        meta = json.loads(file.with_name("meta.json").read_text()) | {"options_sha256": None}
        file.with_name("meta.json").write_text(json.dumps(meta))
    same = [compared(recorded_run(tmp_path / name)).same_weights for name in ("then", "now")]
    assert same == [True, False]


def test_a_workload_that_ships_is_known_by_each_digest_that_it_had() -> None:
    """Who changes its file, and not what it trains, adds the digest from here to those of before: without it
    older records of the workload do not go on.
    """
    shipped = json.loads((KEPT / "workloads.json").read_text())
    assert {name: digest(file_of(name).read_bytes()) for name in names()} == shipped
