"""What a test asks of a job's nodes: each criterion with its value, and why a value cannot be known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kubectl_standin.play import objects, scenario
from played_jobs import CHECKS, CRITERIA, Case, ToolsHere, held, played

from deploy.jobs.node_usage import (
    GpuUsage,
    NodeUsage,
    UsageSample,
    gpus_in_metrics,
    plot,
    second_half,
    usage_in_metrics,
)
from deploy.jobs.thresholds import DEFAULT, read_thresholds

RECORDED = Path(__file__).with_name("recorded_metrics")
DCGM = (RECORDED / "dcgm-exporter-4.5.3-4.8.2.prom").read_text(encoding="utf-8")
RAY = objects()["ray_metrics"]
NO_GPUS = RAY | {"worker": "".join(line for line in RAY["worker"].splitlines(True) if "_g" not in line)}
EVERY_LIMIT = {"group_formed_s": 5, "gpu_share_min": 0.8, "head_cpu_share_max": 0.2, "memory_share_max": 0.5}
PERFORMANCE = {"ssp": {mode: {"idle_share_max": 1} for mode in ("ssgd", "localsgd", "ssp", "asgd")}}


@pytest.fixture
def tools(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> ToolsHere:
    return ToolsHere(tmp_path, capfd, monkeypatch)


def always(**changes: Any) -> dict[str, Any]:
    """Return a job that succeeds, with changes in each of its moments, and `setup` of what stands around."""
    setup = changes.pop("setup", {})
    return played("success", frames=[one | changes for one in scenario("success")["frames"]], setup=setup)


def criterion(name: str, check: str, limit: dict[str, Any], *words: str, **changes: Any) -> tuple[Case, Any]:
    return Case(
        name, always(**changes), "perf-test", 1 if words else 0, {check: words} if words else {}
    ), limit


GPUS = {"gpu_share_min": 0.8}
FAILING = [
    criterion("the group formed late", "group", {"group_formed_s": 4}, "4.5 s in ssgd-s0; at most 4 s"),
    criterion("the GPUs are idle", "gpu", {"gpu_share_min": 0.9}, "80% busy, the median of", "at least 90%"),
    criterion("nobody exports GPUs", "gpu", GPUS, "not known: no GPU metrics: DCGM exporter not found",
              ray_metrics=NO_GPUS),
    criterion("the exporter says it", "gpu", GPUS, "55% busy", ray_metrics=NO_GPUS,
              setup={"dcgm": {"node-gpu-0": DCGM}}),
    criterion("the exporter is out of reach", "gpu", GPUS, "no GPU metrics: the DCGM exporter cannot be read",
              "is forbidden", ray_metrics=NO_GPUS, setup={"refused": ["list pods --all-namespaces"]}),
    criterion("the exporter is elsewhere", "gpu", GPUS, "exporter not found", ray_metrics=NO_GPUS,
              setup={"dcgm": {"node-gpu-7": DCGM}}),
    criterion("memory is short", "memory", {"memory_share_max": 0.2}, "25% of", "2.0 GiB", "at most 20%"),
    criterion("the network is full", "network", {"network_bytes_per_s_max": 5e7}, "the head sent 80 MB/s",
              "at most 5e+07 bytes/s"),
    criterion("the driver is what they wait for", "cpu", {"head_cpu_share_max": 0.1}, "12% of the head's"),
    criterion("the bucket lost the weights", "checkpoint", {}, "asgd-s0@newest cannot be read back",
              "holds no records", bucket={"loss": "lost"}),
    criterion("what is read back is not finite", "checkpoint", {}, "version 3200, loss not finite",
              bucket={"loss": None}),
    criterion("a newer checkpoint is damaged", "checkpoint", {}, "version 3200, loss 0.24",
              "checkpoints that cannot be read: 2", bucket={"loss": 0.24, "damaged": 2}),
    criterion("nothing is asked for", "gpu", {"gpu_share_min": None}, ray_metrics=NO_GPUS),
]  # fmt: skip


@pytest.mark.parametrize(("case", "limit"), FAILING, ids=[case.name for case, _ in FAILING])
def test_each_criterion_fails_by_its_value_or_says_why_it_has_none(
    tools: ToolsHere,
    case: Case,
    limit: dict[str, Any],
) -> None:
    tools.performance, tools.criteria = PERFORMANCE, {"all": {"gpu_share_min": 0.7}, "ssp": limit}
    held(tools, case)


def test_perf_test_plots_what_the_nodes_use_and_judges_it(tools: ToolsHere) -> None:
    tools.performance, tools.criteria = PERFORMANCE, {"all": EVERY_LIMIT}
    tools.limit()
    ran = tools("perf-test")
    assert ran.code == 0, ran.out
    assert list(ran.checks) == [*CHECKS, *CRITERIA, "cpu", "performance"]
    assert "80% busy, the median of" in ran.checks["gpu"][1]
    assert ran.checks["checkpoint"][1].endswith("the last weights, version 3200, loss 0.24 when read back")
    rows = {line[:20].strip(): line[20:] for line in ran.out.splitlines() if re.search("[▁-▇]", line)}
    assert {"head CPU", "head memory", "workers GPU", "workers GPU memory", "workers received"} <= rows.keys()
    assert rows["workers GPU"].split()[-4:] == ["80.0", "80.0", "80.0", "%"]
    tools.play({"based_on": "success"})
    usage = json.loads(tools("perf-test", "--json").out)["usage"]
    assert {node["gpu_share"] for sample in usage for node in sample["workers"].values()} == {0.8}


def test_the_runs_of_a_test_take_as_long_as_one_says(tools: ToolsHere) -> None:
    """--monitor-duration is --duration, and --action COMMAND the command; what contradicts is refused."""
    ran = tools("--action", "test-cluster", "--monitor-duration", "300")
    assert ran.code == 0, ran.out + ran.err
    (applied,) = (line for line in ran.out.splitlines() if "is applied" in line)
    assert applied.endswith("--max-seconds 300")
    limits = read_thresholds(DEFAULT).limits
    assert limits.lasting(300).job_over_s - limits.job_over_s == 300 - limits.runs_s
    assert "give one COMMAND" in tools("stop", "--action", "run").err
    assert "give one COMMAND" in tools("--yes").err
    assert "test-quick ends by itself" in tools("test-quick", "--duration", "9").err


def test_a_shell_is_opened_in_the_heads_container(
    tools: ToolsHere,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[list[str]] = []

    def call(command: list[str], **_: Any) -> int:
        called.append(command)
        return 7

    monkeypatch.setattr("deploy.jobs.show_cluster.subprocess.call", call)
    tools.play(played("endless"))
    assert tools("run").code == 0
    assert tools("shell").code == 7
    (command,) = called
    assert command[-4:] == ["--container", "ray-head", "--", "bash"]
    assert command[1] == "exec"
    assert command[-5].startswith("ssp-x1k2p-head")


def test_what_ray_and_the_exporter_serve_is_read_as_it_was_recorded() -> None:
    """Ray 2.60.0's agent on a node without GPUs; dcgm-exporter 4.5.3-4.8.2's form, with a blank value."""
    assert usage_in_metrics((RECORDED / "ray-2.60.0.prom").read_text(encoding="utf-8")) == NodeUsage(
        cpu_share=0.017,
        memory_bytes=392802304,
        memory_share=392802304 / 25276510208,
        sent_bytes_per_s=0.0017592901902027688,
        received_bytes_per_s=2.0928502410962997,
    )
    used = GpuUsage(node="n", pod="POD", share=0.55, memory_bytes=18 * 2**30, memory_share=0.75)
    idle = GpuUsage(node="n", pod="other-5kq2z", share=0.0, memory_bytes=0.0, memory_share=0.0)
    assert gpus_in_metrics(DCGM, "n") == [used, idle]
    parted = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a",GPU_I_ID="3",pod="p"} 0.4\n'
    assert [gpu.share for gpu in gpus_in_metrics(parted, "n")] == [0.4]
    blank = 'DCGM_FI_DEV_GPU_UTIL{UUID="a"} 9223372036854775794\n' + parted.replace("GPU_I_ID", "I")
    assert gpus_in_metrics(blank.replace('pod="p"', 'pod=""'), "n")[0].share == 0.4


def sample(elapsed_s: float, *, trains: bool = True, samples: int = 0) -> UsageSample:
    node = NodeUsage(cpu_share=elapsed_s / 100)
    return UsageSample(elapsed_s=elapsed_s, trains=trains, samples=samples, heads=[node], workers={})


def test_the_second_half_is_of_the_time_in_which_updates_were_made() -> None:
    taken = [sample(t, trains=t >= 20) for t in (0, 10, 20, 30, 40, 55, 60)]
    assert [one.elapsed_s for one in second_half(taken)] == [40, 55, 60]
    assert list(second_half(taken[:2])) == []


def test_the_plot_has_as_many_bars_as_fit_and_rates_from_differences() -> None:
    lines = list(plot([sample(t, samples=20 * t) for t in range(0, 101)], columns=10))
    assert lines[1] == f"{'head CPU':20}{'▁▂▂▃▄▄▅▅▆▇':12}{0:9}{50:9}{100:9} %"
    assert lines[2] == f"{'all samples':20}{'▇' * 10:12}{20.0:9}{20.0:9}{20.0:9} a second"
