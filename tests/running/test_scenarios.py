"""`--scenario NAME` stands for options: on the command line, in experiments and in the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, CommandLine

from dsgd.compare.experiment_command import experiment_of
from dsgd.compare.experiment_file import read
from dsgd.core.option_rules import options
from dsgd.process.outcomes import UsageError
from dsgd.show.terminal.cli import parse
from dsgd.show.terminal.scenario_option import names, options_of_scenario, scenarios_page
from dsgd.strategies import modes

FOLDER = ROOT / "experiments" / "scenarios"


@pytest.mark.parametrize("mode", modes())
@pytest.mark.parametrize("name", names())
def test_a_scenario_is_the_options_of_its_file(name: str, mode: str) -> None:
    """In every mode, in the simulator."""
    given = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    del given["about"]
    spelled = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
    run = ["--mode", mode, "--engine", "sim"]
    assert parse([*run, "--scenario", name]) == parse([*run, *spelled]) != parse(run)


def test_those_that_people_mean_are_there() -> None:
    """By name, each with a sentence, on `--help scenarios`."""
    assert names() == ["heavy-tail", "one-slow", "spot", "thin-link", "wan"]
    page = "\n".join(scenarios_page(80))
    for name in names():
        about = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["about"]
        assert f"\n{name}:\n" in page
        assert about in " ".join(page.split())


def test_other_options_override_it_wherever_they_stand(cli: CommandLine, tmp_path: Path) -> None:
    """Those of the command line do; a scenario overrides those of --config, and two are joined."""
    ran = cli("--engine sim --latency-s 3 --scenario wan --steps 2 --num-workers 2 --workload none")
    config = yaml.safe_load((ran.record / "config.yaml").read_text())
    assert (config["latency_s"], config["racks"], "scenario" in config) == (3.0, "2,1e6", False)
    again = parse(["--config", str(ran.record / "config.yaml"), "--scenario=wan"])
    assert (again.timing.latency_s, again.steps) == (0.1, 2)
    assert options_of_scenario("wan,one-slow") == options_of_scenario("wan") | options_of_scenario("one-slow")
    mine = tmp_path / "mine.yaml"
    mine.write_text("latency-s: 0.25\n")
    assert parse(["--scenario", f"{mine},heavy-tail"]).timing.latency_s == 0.25
    resumed = cli(f"--resume {ran.record} --scenario thin-link")
    assert "--padding-mb 1.0: the run has" not in resumed.err  # it has 1 MB, too
    assert "--bytes-per-s 1000000.0: the run has inf" in resumed.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("won", "--scenario won: is no scenario; did you mean wan?, or give a file"),
        ("x", "choose from heavy-tail, one-slow, spot, thin-link, wan, or give a file"),
        ("", "--scenario : is no scenario"),
        ("wan,", "--scenario : is no scenario"),
        ("../wan", "--scenario ../wan: is no scenario"),
        ("heavy-tail,one-slow", "--scenario heavy-tail,one-slow: both set compute_time, and not alike"),
        ("{0}/none.yaml", "cannot be read (No such file or directory); give a scenario's file"),
        ("{0}/list.yaml", "must be a mapping"),
        ("{0}/lr.yaml", "lr is no option of a scenario; it may set times, the network and faults"),
        ("{0}/near.yaml", "latency is no option of a scenario; did you mean latency_s?"),
    ],
)
def test_what_is_no_scenario_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    """With the name and a remedy."""
    for name, content in {"list": "[wan]", "lr": "lr: 3", "near": "latency: 3"}.items():
        (tmp_path / f"{name}.yaml").write_text(content)
    with pytest.raises(UsageError) as refused:
        parse([f"--scenario={text.format(tmp_path)}"])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def of_file(settings: list[str], **content: Any) -> dict[str, dict[str, Any]]:
    """Return the options of each variant of an experiment."""
    whole = {"title": "t", "question": "q", "seeds": 1, **content}
    return {v.name: options(v.cfg) for v in read(whole, "e", "e.yaml", settings, "runs").variants}


def test_an_experiment_has_scenarios_wherever_it_has_options() -> None:
    """Under base:, variants:, grid: and --set; what is nearer to a run overrides it."""
    base = {"engine": "sim", "workload": "none", "scenario": "wan"}
    found = of_file([], base=base, variants={"a": {}, "b": {"latency_s": 2}, "c": {"scenario": "spot"}})
    assert [found[v]["latency_s"] for v in "abc"] == [0.1, 2.0, 0.1]
    assert [found[v]["restarts"] for v in "abc"] == ["3", "3", "1000,within=60"]
    grid = {"scenario": ["one-slow", "heavy-tail"], "mode": ["ssgd", "asgd"]}
    found = of_file([], base={"engine": "sim", "workload": "none"}, grid=grid)
    assert found["scenario=heavy-tail mode=asgd"]["compute_time"] == "pareto:1.5,.333333"
    assert found["scenario=one-slow mode=ssgd"]["slowdown"] == "0=4"
    found = of_file(["scenario=spot"], base=base, grid={"mode": ["ssgd", "asgd"]})
    assert found["mode=ssgd"]["faults"] == "spot:mtbf=600,back=60"


def test_an_experiment_of_an_older_version_asks_for_the_same() -> None:
    """Old options stand wherever options do; --set replaces what the file says under either name."""
    base = {"engine": "sim", "dataset": "digits", "model": "logistic", "mode": "ssgd"}
    asked: dict[str, Any] = {"base": base, "grid": {"replicas": [1, 2]}, "compare": "replicas"}
    found = of_file([], **asked)
    assert [found[f"replicas={n}"]["topology"] for n in (1, 2)] == ["server", "server,replicas=2"]
    assert {(v["workload"], v["hidden"]) for v in found.values()} == {("digits", "none")}
    for setting in ("dataset=xor", "workload=xor"):
        assert {v["workload"] for v in of_file([setting], **asked).values()} == {"xor"}
    assert {v["workload"] for v in of_file(["workload=moe"], **asked).values()} == {"moe"}


def test_modes_are_compared_in_a_scenario() -> None:
    """The file that is printed has the options, and not the name."""
    _, asked, file = experiment_of(["ssgd", "asgd", "--scenario", "one-slow", "--workload", "none"])
    assert yaml.safe_load(file)["base"]["slowdown"] == "0=4"
    assert {v.cfg.timing.slowdown for v in asked.variants} == {"0=4"}
