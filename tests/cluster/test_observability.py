"""Rules, alerts and dashboards: read by their own tools, and tried with real runs and real servers."""

from __future__ import annotations

import json
import math
import os
import queue
import re
import shutil
import signal
import subprocess
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import PATIENCE_S, ROOT, needs, python, wait_for

from deploy.observability.dashboards import panel_of, render
from deploy.observability.local_servers import (
    ALERTMANAGER_PORT,
    FOLDER,
    PROMETHEUS_PORT,
    RECEIVER_PORT,
    NotStarted,
    alertmanager,
    alertmanager_config,
    free_port,
    prometheus,
    prometheus_config,
    receiver,
)
from deploy.observability.observe import describe
from deploy.project import DOCS_URL
from dsgd.metrics import families
from dsgd.running.predict.predictions import staleness_bound
from dsgd.running.quick_run import config
from dsgd.running.quick_run import run as simulate
from dsgd.show.live.server import Response, listen, serving
from dsgd.show.terminal.examples import OF_COMMANDS
from dsgd.show.terminal.resume_option import parse_run
from dsgd.strategies import modes

RECORDED = Path(__file__).parents[1] / "recorded"
RULES = sorted((FOLDER / "rules").glob("*.yaml"))
RULE_TESTS = sorted((FOLDER / "rules" / "tests").glob("*.yaml"))
DASHBOARDS = {name: json.loads(text) for name, text in render().items()}


def succeeds(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def rules(kind: str) -> list[dict[str, Any]]:
    """Return the rules of all files that are of a kind: record, or alert."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules("record") + rules("alert"))
    for dashboard in DASHBOARDS.values():
        yield from (target["expr"] for panel in panels(dashboard) for target in panel["targets"])
        yield from (
            variable["definition"]
            for variable in dashboard["templating"]["list"]
            if variable["type"] == "query"
        )


# Rules


@needs("promtool")
@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_promtool_accepts_the_rules(path: Path) -> None:
    """Each rule file is valid."""
    succeeds("promtool", "check", "rules", path)


@needs("promtool")
@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.name)
def test_the_rules_give_the_values_and_alerts_that_their_tests_say(path: Path) -> None:
    """Recording rules have the values worked out by hand; alerts fire when they should, and only then."""
    succeeds("promtool", "test", "rules", path)


@needs("promtool")
def test_promtool_accepts_the_configuration() -> None:
    """prometheus.yaml is valid, as it is and as it is written for another folder."""
    succeeds("promtool", "check", "config", FOLDER / "prometheus.yaml")


@needs("amtool")
def test_amtool_accepts_the_configuration() -> None:
    """alertmanager.yaml is valid."""
    succeeds("amtool", "check-config", FOLDER / "alertmanager.yaml")


def test_every_rule_has_a_test() -> None:
    """Each recording rule has an expected value; each alert one test in which it fires, one in which not."""
    tests = [test for path in RULE_TESTS for test in yaml.safe_load(path.read_text())["tests"]]
    expected = " ".join(case["expr"] for test in tests for case in test.get("promql_expr_test", []))
    for rule in rules("record"):
        assert rule["record"] in expected
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    for rule in rules("alert"):
        fires = {bool(case.get("exp_alerts")) for case in cases if case["alertname"] == rule["alert"]}
        assert fires == {True, False}, rule["alert"]


def test_every_alert_leads_to_its_entry_in_the_runbook() -> None:
    """An alert has severity, summary, description and the runbook's URL, which has just these entries."""
    text = (ROOT / "docs" / "runbook.md").read_text()
    headings = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert headings == [rule["alert"] for rule in rules("alert")]
    for rule in rules("alert"):
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"{DOCS_URL}/runbook.md#{rule['alert'].lower()}"
        entry = text.split(f"### {rule['alert']}\n")[1]
        assert entry.strip().startswith(f"*{rule['labels']['severity']}.*")


def test_every_metric_in_rules_and_dashboards_is_exported() -> None:
    """No rule and no panel names a metric that the exporter or a recording rule does not have."""
    series = {"histogram": ("_bucket", "_sum", "_count")}
    exported = {name + end for name, family in families().items() for end in series.get(family.kind, ("",))}
    known = exported | {rule["record"] for rule in rules("record")}
    named = {name for text in expressions() for name in re.findall(r"(?:\w+:)?dsgd_\w+(?::\w+)?", text)}
    assert named <= known, named - known
    of_node = set(re.findall(r"^(\w+)\{", (RECORDED / "ray-node.prom").read_text(), re.MULTILINE))
    assert {name for text in expressions() for name in re.findall(r"\b(?:ray_|DCGM_)\w+", text)} <= of_node
    recorded = {name for name in named if ":" in name}
    assert recorded == known - exported, "a recording rule that nothing uses"


@pytest.mark.parametrize("mode", modes())
def test_no_gradient_is_staler_than_the_exported_bound(mode: str) -> None:
    """The bound of the alert holds in every mode that has one, with a slow worker and random times."""
    outcome = simulate(mode, num_workers=4, steps=40, compute_time="exponential:1", slowdown="0=5")
    bound = staleness_bound(outcome.cfg)
    assert bound is None or max(outcome.staleness) <= bound


def test_a_bound_is_exported_where_theory_has_one() -> None:
    """Synchronous modes: 0. SSP: (P - 1)(2 slack + 1). Ringmaster: R - 1. ASGD, SSP with slack inf: none."""
    assert staleness_bound(config("ssgd")) == 0
    assert staleness_bound(config("ssp", num_workers=3, slack=2.0)) == 2 * 5
    assert staleness_bound(config("ringmaster", delay_bound=6)) == 5
    assert staleness_bound(config("asgd")) is None
    assert staleness_bound(config("ssp", slack=math.inf)) is None


# Dashboards


def test_the_committed_dashboards_are_current() -> None:
    """dashboards/*.json are what `make dashboards` writes."""
    files = {path.name: path.read_text() for path in (FOLDER / "dashboards").glob("*.json")}
    assert files == render(), "run `make dashboards` and commit"


def test_what_a_row_of_a_panel_cannot_have_is_refused() -> None:
    """A misspelled kind or option of a row is an error that names the panel, not a panel without it."""
    rest = {"query": "up", "text": "Of the run."}
    with pytest.raises(ValueError, match="panel 'Loss': logarithmic"):
        panel_of({"lines": ["Loss", "none", 8], **rest, "logarithmic": True})
    for row in ({"line": ["Loss", "none", 8], **rest}, {"lines": ["Loss", "none", 8], "query": "up"}):
        with pytest.raises(ValueError, match=r"Loss.*: a row begins with its kind \(lines, bars"):
            panel_of(row)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_read_back_by_grafanas_models(name: str) -> None:
    """Nothing is lost on the way through the classes that Grafana generates from its own schema."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from grafana_foundation_sdk.models.dashboard import Dashboard
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    again = Dashboard.from_json(DASHBOARDS[name])
    assert json.loads(json.dumps(again, cls=JSONEncoder)) == DASHBOARDS[name]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_says_what_it_shows_and_how_to_read_it(name: str) -> None:
    """Each panel has its own title, a unit and a description, and asks the variable's data source."""
    shown = panels(DASHBOARDS[name])
    titles = [panel["title"] for panel in shown]
    assert len(set(titles)) == len(titles)
    for panel in shown:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        refs = [target["refId"] for target in panel["targets"]]
        assert refs == ["A", "B", "C"][: len(refs)], panel["title"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_their_own_number_and_place(name: str) -> None:
    """Ids are unique, and no panel lies over another or outside the 24 columns."""
    placed = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in placed}) == len(placed)
    boxes = [panel["gridPos"] for panel in placed]
    for box in boxes:
        assert 0 <= box["x"] < box["x"] + box["w"] <= 24
    for a, b in combinations(boxes, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, (a, b)


def test_dashboards_are_found_and_lead_to_each_other() -> None:
    """Uids are fixed, links lead to them, and all have the variables that their queries use."""
    uids = {dashboard["uid"] for dashboard in DASHBOARDS.values()}
    assert uids == {"dsgd-compare-modes", "dsgd-one-run", "dsgd-trends", "dsgd-nodes"}
    for dashboard in DASHBOARDS.values():
        assert {link["url"] for link in dashboard["links"]} == {
            f"/d/{uid}" for uid in uids - {dashboard["uid"]}
        }
        variables = {variable["name"] for variable in dashboard["templating"]["list"]}
        used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard)))
        assert used == variables
        assert variables >= {"datasource"}


# What is provisioned


def test_the_compose_file_fits_the_rest() -> None:
    """Images are pinned and named without a registry, mounted files exist, and addresses agree everywhere."""
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    for service in compose["services"].values():
        assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (FOLDER / source).exists(), volume
    told = json.dumps(compose)
    assert f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}" in told
    assert f"--web.listen-address=127.0.0.1:{ALERTMANAGER_PORT}" in told
    provisioning = FOLDER / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert [source["url"].rpartition(":")[2] for source in sources] == [
        str(PROMETHEUS_PORT),
        str(ALERTMANAGER_PORT),
    ]
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert sources[0]["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    provider = yaml.safe_load((provisioning / "dashboards" / "dsgd.yaml").read_text())["providers"][0]
    mounts = dict(volume.split(":")[:2] for volume in compose["services"]["grafana"]["volumes"])
    assert mounts["./dashboards"] == provider["options"]["path"]


def test_the_lab_in_containers_is_that_of_the_command_line() -> None:
    """Its image is of the project's version, its commands are valid, and Prometheus scrapes its runs."""
    lab = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert [ROOT / file for file in lab["include"]] == [FOLDER / "compose.yaml"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {service["image"] for service in lab["services"].values()} == {f"dsgd-lab:${{TAG:-{version}}}"}
    port = parse_run(lab["services"]["run"]["command"]).cfg.live.metrics_port
    targets = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"]
    assert f"127.0.0.1:{port}" in targets[0]["targets"]
    assert lab["services"]["watch"]["command"][0] in OF_COMMANDS


def test_prometheus_configurations_differ_in_addresses_only() -> None:
    """A copy for another folder has the rules' whole path and the ports asked for; all else is committed."""
    committed = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    copy = yaml.safe_load(prometheus_config(alertmanager_port=1, targets=["127.0.0.1:2"]))
    assert copy["rule_files"] == [f"{FOLDER}/rules/*.yaml"]
    assert copy["alerting"]["alertmanagers"][0]["static_configs"] == [{"targets": ["127.0.0.1:1"]}]
    assert copy["scrape_configs"][0]["static_configs"] == [{"targets": ["127.0.0.1:2"]}]
    assert copy["global"] == committed["global"]
    routing = yaml.safe_load(alertmanager_config(receiver_port=3))
    assert routing["receivers"][0]["webhook_configs"][0]["url"] == "http://127.0.0.1:3/"
    assert f":{RECEIVER_PORT}/" in (FOLDER / "alertmanager.yaml").read_text()


# Alertmanager


Message = dict[str, Any]


# A real Prometheus


class Client:
    """Asks Prometheus, as Grafana does."""

    def __init__(self, url: str) -> None:
        self.url = url

    def _ask(self, path: str, **parameters: object) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=PATIENCE_S) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def over(self, expr: str, start_s: float, end_s: float) -> list[dict[str, Any]]:
        """Return the series over a range, every second."""
        return self._ask("query_range", query=expr, start=start_s, end=end_s, step=1)

    def at(self, expr: str, time_s: float) -> dict[tuple[str, ...], float]:
        """Return the values at a time, by the values of the labels that distinguish a run's series."""
        return {
            tuple(
                value
                for label, value in sorted(series["metric"].items())
                if label not in ("__name__", "job", "instance", "mode", "run_id")
            ): float(series["value"][1])
            for series in self._ask("query", query=expr, time=time_s)
        }


def substituted(expr: str, run: str) -> str:
    """Return a panel's query as Grafana sends it, with all modes, and one run or (with .+) all."""
    values = {
        "$__rate_interval": "4s", "$mode": ".+", "$run": run, "$experiment": "compared", "$node": ".+",
    }  # fmt: skip
    for variable, value in values.items():
        expr = expr.replace(variable, value)
    assert "$" not in expr
    return expr


@contextmanager
def exposing(text: Callable[[], str], port: int) -> Iterator[None]:
    """Serve what `text` returns as metrics."""
    server = listen("--port", "127.0.0.1", port)
    answer = {"/metrics": lambda: Response("text/plain; version=0.0.4", text().encode())}
    with serving(server, answer):
        yield


@pytest.mark.thorough
@pytest.mark.ray
@needs("prometheus")
def test_real_runs_answer_every_panel_and_agree_with_their_records(ray_cluster: str, tmp_path: Path) -> None:
    """Two real runs under a real Prometheus: all panels have data, no alert fires, ends are the records'."""
    options = "--num-workers 2 --eval-every 5 --compute-time constant:.02 --slowdown 0=3 --steps 60"
    commands = {
        "ssp": f"--mode ssp --slack 2 --workload digits {options}",
        "adacomm": f"--mode adacomm --local-steps 4 {options} --faults pause:0=.2@t=.2 --workload moe "
        "--capacity 1",
    }
    ports = {name: free_port() for name in commands}
    node = free_port()
    targets = [f"127.0.0.1:{port}" for port in (*ports.values(), node)]
    with (
        exposing((RECORDED / "ray-node.prom").read_text, node),
        prometheus(prometheus_config(targets=targets), tmp_path, free_port()) as url,
    ):
        client = Client(url)
        began = time.time()
        runs = {
            name: python(
                *f"main.py {command} --metrics-port {ports[name]} --quiet".split(),
                *f"--metrics-linger-s {2 * PATIENCE_S:g} --out {tmp_path}/compared --run-name {name}".split(),
                env=os.environ | {"RAY_ADDRESS": ray_cluster},
            )
            for name, command in commands.items()
        }
        try:
            wait_for(lambda: client.at("count(dsgd_run_active == 0) == 2", time.time()), "both runs to end")
            ended = time.time()
            rules_ran = f"min(timestamp(run:dsgd_staleness_updates:mean)) > {ended + 1}"
            wait_for(lambda: client.at(rules_ran, time.time()), "the rules to see that")
            end = time.time()
            check_panels(client, began, end)
            assert client.over('ALERTS{alertstate="firing"}', began, end) == []
            for name in runs:
                summary = json.loads((tmp_path / "compared" / name / "summary.json").read_text())
                check_values(client, end, name, summary)
        finally:
            for run in runs.values():
                run.send_signal(signal.SIGINT)  # ends the lingering
            results = [(*run.communicate(timeout=PATIENCE_S), run.returncode) for run in runs.values()]
    assert [(err, code) for _, err, code in results] == [("", 0), ("", 0)]


def check_panels(client: Client, began: float, end: float) -> None:
    """Each query has at least one finite value; a panel is left empty only where its description says so."""
    without = {"Drift of local weights", "Time to recover from a fault", "Numbers of the strategy"}
    without |= {"Load of each expert", "Most loaded expert", "Routers", "Idle experts"}
    for run, empty in ((".+", set()), ("adacomm", set()), ("ssp", without)):
        for dashboard in DASHBOARDS.values():
            for panel in panels(dashboard):
                for target in panel["targets"]:
                    expr = substituted(target["expr"], run)
                    expr = expr.replace('run_id=".+"', 'run_id=~".+"')
                    values = [
                        float(value)
                        for series in client.over(expr, began, end)
                        for _, value in series["values"]
                        if math.isfinite(float(value))
                    ]
                    assert bool(values) == (panel["title"] not in empty), (panel["title"], expr)


def check_values(client: Client, end: float, name: str, summary: dict[str, Any]) -> None:
    """Hold what Prometheus has last of a run to what the run's record says."""

    def last(metric: str) -> dict[tuple[str, ...], float]:
        return client.at(f'{metric}{{run_id="{name}"}}', end)

    def alone(value: float) -> dict[tuple[str, ...], float]:
        return {(): value}

    staleness, workers = summary["staleness"], summary["workers"]
    assert last("dsgd_updates_total") == alone(summary["updates"])
    assert sum(last("dsgd_gradients_total").values()) == summary["gradients"]
    assert last("dsgd_samples_total") == alone(summary["samples"])
    assert last("dsgd_bytes_total") == {(way,): count for way, count in summary["bytes"].items()}
    assert last("dsgd_train_loss") == alone(summary["loss"]["last"])
    assert last("dsgd_eval_loss") == alone(summary["eval"]["loss"])
    assert last("dsgd_eval_accuracy") == alone(summary["eval"]["accuracy"])
    assert last("dsgd_staleness_max_updates") == alone(staleness["max"])
    assert last("run:dsgd_staleness_updates:mean") == alone(staleness["mean"])
    assert last("worker:dsgd_staleness_updates:mean") == {
        (worker,): mean for worker, mean in staleness["by_worker"].items()
    }
    buckets = client.at(f'sum by (le) (dsgd_staleness_updates_bucket{{run_id="{name}"}})', end)
    assert buckets == {
        (bound,): sum(n for value, n in staleness["counts"].items() if float(value) <= float(bound))
        for (bound,) in buckets
    }
    assert last("dsgd_worker_restarts_total") == {(worker,): w["restarts"] for worker, w in workers.items()}
    counted = {(kind,): count for kind, count in summary["faults"].items()}
    assert {kind: n for kind, n in last("dsgd_faults_total").items() if n} == counted
    assert last("dsgd_repeated_gradients_total") == alone(summary["repeated"])
    assert last("dsgd_fault_recovery_seconds_count") == alone(sum(counted.values()))
    counted = {(kind,): count for kind, count in summary["faults"].items()}
    assert {kind: n for kind, n in last("dsgd_faults_total").items() if n} == counted
    assert last("dsgd_repeated_gradients_total") == alone(summary["repeated"])
    assert last("dsgd_fault_recovery_seconds_count") == alone(sum(counted.values()))
    assert last("dsgd_update_seconds_sum") == alone(summary["clock_s"])
    assert last("run:dsgd_update_seconds:mean") == alone(summary["clock_s"] / summary["updates"])
    assert last("run:dsgd_updates_per_second:ratio") == alone(summary["updates"] / summary["clock_s"])
    assert last("run:dsgd_samples_per_second:ratio") == alone(summary["samples"] / summary["clock_s"])
    if name == "adacomm":
        assert last("dsgd_extra") == {("tau",): summary["extra"]["tau"]["last"]}
        assert counted == {("pause",): 1}
        assert last("dsgd_staleness_bound_updates") == alone(0)
        assert last("dsgd_localsgd_drift") == alone(summary["drift"])
        # At a barrier nobody computes after the last update, so that idle is exactly what is not busy.
        idle = {(worker,): w["idle_s"] / summary["clock_s"] for worker, w in workers.items()}
        assert last("worker:dsgd_idle:ratio") == pytest.approx(idle, abs=1e-6)
    else:
        assert last("dsgd_staleness_bound_updates") == alone(summary["theory"]["staleness_max"]["theory"])
        assert last("dsgd_localsgd_drift") == {}


# From a run's numbers to a webhook


def native(config: dict[str, Any], namespace: str, secrets: dict[str, str]) -> str:
    """Return an AlertmanagerConfig as the operator writes it for Alertmanager.

    It names receivers after namespace and object, reads secrets, and has route and inhibitions concern the
    alerts of the namespace alone.
    """

    def snake(value: Any) -> Any:
        if isinstance(value, list):
            return [snake(one) for one in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {"name", "matchType", "value"}:
            return f"{value['name']}{value['matchType']}{json.dumps(value['value'])}"
        plain = {
            re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", name): snake(one) for name, one in value.items()
        }
        if url := plain.pop("url_secret", None):
            plain["url"] = secrets[url["key"]]
        return plain

    assert namespace == "ray-jobs"
    own = f'namespace="{namespace}"'
    spec = snake(config["spec"])
    for rule in spec["inhibit_rules"]:
        rule["source_matchers"] = [*rule.pop("source_match"), own]
        rule["target_matchers"] = [*rule.pop("target_match"), own]
    first = spec["route"] | {"matchers": [own], "continue": True}
    route = {"receiver": "null", "routes": [first]}
    return yaml.safe_dump({**spec, "route": route, "receivers": [{"name": "null"}, *spec["receivers"]]})


def component(folder: Path, *names: str) -> dict[str, Any]:
    """Return the AlertmanagerConfig of these components, as kubectl builds it in a folder."""
    shutil.copytree(ROOT / "deploy" / "kubernetes" / "components", folder / "components", dirs_exist_ok=True)
    overlay = folder / "overlay"
    overlay.mkdir(exist_ok=True)
    kinds = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    folders = [f"../components/{name}" for name in names]
    text = yaml.safe_dump(kinds | {"namespace": "ray-jobs", "components": folders})
    (overlay / "kustomization.yaml").write_text(text)
    built = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, check=True)
    quoted = built.stdout.replace("matchType: =\n", 'matchType: "="\n')  # PyYAML has a special type for =
    found: dict[str, Any] = yaml.safe_load(quoted)
    return found


@needs("kubectl")
@needs("amtool")
def test_receivers_on_a_cluster_are_references_to_a_secret(tmp_path: Path) -> None:
    """Each component adds its receiver, with secrets by reference, and Alertmanager takes the result."""
    config = component(tmp_path, "alerts", "alerts/slack", "alerts/email")
    assert config["metadata"]["namespace"] == "ray-jobs"
    (receivers,) = config["spec"]["receivers"]
    assert receivers["webhookConfigs"][0]["urlSecret"] == {"name": "alert-receivers", "key": "webhook-url"}
    assert receivers["slackConfigs"][0]["apiURL"] == {"name": "alert-receivers", "key": "slack-url"}
    assert receivers["emailConfigs"][0]["authPassword"] == {
        "name": "alert-receivers",
        "key": "email-password",
    }
    local = yaml.safe_load((FOLDER / "alertmanager.yaml").read_text())
    made = yaml.safe_load(
        native(component(tmp_path, "alerts"), "ray-jobs", {"webhook-url": "http://127.0.0.1:1/"})
    )
    (route,) = made["route"]["routes"]
    for name in ("group_by", "group_wait", "group_interval", "repeat_interval"):
        assert route[name] == local["route"][name]
    assert [r["repeat_interval"] for r in route["routes"]] == [
        r["repeat_interval"] for r in local["route"]["routes"]
    ]
    for here, there in zip(made["inhibit_rules"], local["inhibit_rules"], strict=True):
        assert here["equal"] == there["equal"]
    (tmp_path / "made.yaml").write_text(yaml.safe_dump(made))
    succeeds("amtool", "check-config", tmp_path / "made.yaml")


@pytest.mark.thorough
@needs("prometheus")
@needs("prometheus-alertmanager")
@needs("kubectl")
def test_alerts_of_a_run_reach_a_webhook_and_resolve(tmp_path: Path) -> None:
    """A run's numbers make alerts fire by the real rules; they arrive grouped, with their severity; the
    critical one silences the warning; and when the numbers are right again, the webhook learns it.
    """
    restarts, staleness = [0, 0], 1

    def text() -> str:
        of = 'namespace="ray-jobs", mode="ssp", run_id="a"'
        rows = [f'dsgd_worker_restarts_total{{{of}, worker="{w}"}} {n}' for w, n in enumerate(restarts)]
        rows += [f"dsgd_run_active{{{of}}} 1", f"dsgd_staleness_bound_updates{{{of}}} 4"]
        return "\n".join([*rows, f"dsgd_staleness_max_updates{{{of}}} {staleness}", ""])

    ports, arrived = [free_port() for _ in range(4)], queue.Queue[Message]()
    routing = native(
        component(tmp_path, "alerts"), "ray-jobs", {"webhook-url": f"http://127.0.0.1:{ports[0]}/"}
    )
    routing = routing.replace("group_wait: 10s", "group_wait: 1s").replace("interval: 1m", "interval: 1s")
    scraped = prometheus_config(alertmanager_port=ports[1], targets=[f"127.0.0.1:{ports[2]}"])
    scraped = scraped.replace("_interval: 1s", "_interval: 250ms")

    def names(message: Message) -> list[tuple[str, str, str]]:
        return sorted(
            (one["labels"]["alertname"], one["labels"]["severity"], one["status"])
            for one in message["alerts"]
        )

    with (
        receiver(arrived.put, ports[0]),
        exposing(text, ports[2]),
        alertmanager(routing, tmp_path, ports[1]) as alerts,
        prometheus(scraped, tmp_path, ports[3]) as url,
    ):
        wait_for(
            lambda: Client(url).at("count_over_time(dsgd_run_active[1m]) >= 2", time.time()), "two scrapes"
        )
        restarts = [1, 2]
        first = arrived.get(timeout=PATIENCE_S)
        lost = ("DsgdWorkerRestarting", "warning", "firing")
        assert names(first) == [lost, lost]
        assert first["groupLabels"] == {"namespace": "ray-jobs", "mode": "ssp", "run_id": "a"}
        for worker, said in enumerate(sorted(describe(first))):
            page = f"{DOCS_URL}/runbook.md#dsgdworkerrestarting"
            assert said == f"firing, warning: ssp run a: worker {worker} was lost ({page})"
        staleness = 9
        stale = "DsgdStalenessAboveBound", "critical"
        second = arrived.get(timeout=PATIENCE_S)
        while names(second) in ([lost], [lost, lost]):
            second = arrived.get(timeout=PATIENCE_S)
        assert names(second) == [(*stale, "firing")]
        with urllib.request.urlopen(
            f"{alerts}/api/v2/alerts?inhibited=true&active=false", timeout=PATIENCE_S
        ) as page:
            inhibited = json.load(page)
        assert {one["labels"]["alertname"] for one in inhibited} == {lost[0]}
        staleness = 4
        third = arrived.get(timeout=PATIENCE_S)
        assert (*stale, "resolved") in names(third)


# make observe


@needs("prometheus")
@needs("prometheus-alertmanager")
def test_observe_starts_both_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """`make observe` loads the rules and starts Alertmanager; ctrl-C ends both, and their folder goes."""
    ports = {name: free_port() for name in ("prometheus", "alertmanager", "receiver")}
    arguments = [f"--{name}-port={port}" for name, port in ports.items()]
    observing = python(
        "-m", "deploy.observability.observe", *arguments, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert observing.stdout
    try:
        said = [observing.stdout.readline() for _ in range(4)]
        url = f"http://127.0.0.1:{ports['prometheus']}"
        assert f"{url}/alerts" in said[0]
        assert f"http://127.0.0.1:{ports['alertmanager']}" in said[1]
        with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=PATIENCE_S) as response:
            groups = json.load(response)["data"]["groups"]
        assert {group["name"] for group in groups} == {
            "dsgd_run_so_far", "dsgd_recent", "dsgd_health", "dsgd_alerts",
        }  # fmt: skip
        assert [path.name[:12] for path in tmp_path.iterdir()] == ["dsgd-observe"]
    finally:
        os.killpg(observing.pid, signal.SIGINT)
        _, err = observing.communicate(timeout=PATIENCE_S)
    assert (observing.returncode, err) == (0, "")
    assert list(tmp_path.iterdir()) == []
    for port in ports.values():
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=5)


@needs("prometheus")
def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    """Neither a traceback nor a server half started: the port, the program, the remedy."""
    port = free_port()
    with (
        receiver(lambda _: None, port),
        pytest.raises(NotStarted, match=f"port {port} for prometheus: .*; choose another port"),
        prometheus(prometheus_config(), tmp_path, port),
    ):
        pass


@needs("prometheus")
def test_a_program_that_does_not_start_says_why(tmp_path: Path) -> None:
    """The last line of its log is passed on."""
    with (
        pytest.raises(NotStarted, match=r"prometheus did not start: .*mistake"),
        prometheus("mistake: 1\n", tmp_path, free_port()),
    ):
        pass


def test_a_missing_program_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Prometheus, `make observe` says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotStarted, match="apt-get install prometheus"), prometheus("", tmp_path, 1):
        pass
