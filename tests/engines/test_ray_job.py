"""main.py as a job that is submitted to a Ray head, as KubeRay's submitter does."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile

import pytest
import yaml
from conftest import PATIENCE_S, ROOT, python

pytestmark = pytest.mark.ray

# A head with the dashboard, which takes jobs, submits them to itself and says how they ended.
HEAD = """
import json, os, socket, sys, time

# Where it notes its address, too: a job might find another's head, and the usual folder may not be there.
os.environ["RAY_TMPDIR"] = sys.argv[1]
import dsgd.engines.ray.connection.connect
from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]  # with port 0 Ray for a while names another than it has
# The agent, which starts jobs, would not find its usual port free beside another cluster, and do without one.
asked = {"num_cpus": 1, "dashboard_agent_listen_port": 0}
cluster = Cluster(
    initialize_head=True, head_node_args=asked | {"include_dashboard": True, "dashboard_port": port}
)
client, until = JobSubmissionClient(f"http://127.0.0.1:{port}"), time.monotonic() + 200


def submitted(variables):
    while True:
        try:
            return client.submit_job(entrypoint=sys.argv[3], runtime_env={"env_vars": variables})
        except RuntimeError:  # the node's agent starts after the dashboard
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


jobs = [submitted(variables) for variables in json.loads(sys.argv[2])]
while any(not client.get_job_status(job).is_terminal() for job in jobs) and time.monotonic() < until:
    time.sleep(0.1)
print(json.dumps([[client.get_job_status(job).value, client.get_job_logs(job)] for job in jobs]))
cluster.shutdown()
"""


@pytest.mark.thorough
def test_a_job_whose_command_line_is_wrong_is_stopped_and_so_not_tried_again() -> None:
    """With the variables of a RayJob, a usage error ends as STOPPED, which KubeRay does not repeat, else as
    FAILED. Either way its line is in the log.
    """
    rayjob = yaml.safe_load((ROOT / "ray-job-ssp.yaml").read_text())
    asked = yaml.safe_load(rayjob["spec"]["runtimeEnvYAML"])["env_vars"]
    plain = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    folder = tempfile.mkdtemp(prefix="dsgd-ray-", dir="/tmp")
    entrypoint = f"{sys.executable} {ROOT / 'main.py'} --mode ssp --slak 4"
    with python("-c", HEAD, folder, json.dumps([asked, plain]), entrypoint) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    shutil.rmtree(folder, ignore_errors=True)
    assert process.returncode == 0, err
    (stopped, log), (failed, other) = json.loads(out.splitlines()[-1])
    assert (stopped, failed) == ("STOPPED", "FAILED"), log
    for said in (log, other):
        assert "main.py: --slak: " in said
    assert "the job is stopped, not tried again" in log
    assert "stopped" not in other
