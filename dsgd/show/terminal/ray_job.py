"""A job of Ray's whose command line is wrong is stopped by its own driver: KubeRay tries a job that failed
again, in a new cluster, whatever its exit code; one that was stopped it leaves alone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress

from dsgd.process.outcomes import one_line

ASKED = "DSGD_STOP_ON_USAGE_ERROR"
"""The environment variable by which a RayJob asks for it."""

_WITHIN_S = 30.0  # of importing ray, a call to the head's dashboard, and the signal that it sends


def stop_own_job() -> None:
    """Have Ray stop the job that this process is the driver of, if that was asked for: SIGTERM ends it here.

    If Ray does not, the process goes on after a while, to end with its own exit code.
    """
    job = _own_job() if os.environ.get(ASKED) == "1" else None
    if job is None:
        return
    print("the same again would fail the same way: the job is stopped, not tried again", file=sys.stderr)
    sys.stderr.flush()
    thread = threading.Thread(target=_stop, args=(job,), daemon=True)
    thread.start()
    thread.join(_WITHIN_S)


def _own_job() -> str | None:
    with suppress(KeyError, ValueError):
        job = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["job_submission_id"]
        return str(job)
    return None


def _stop(job: str) -> None:
    try:
        from ray.dashboard.utils import ray_address_to_api_server_url
        from ray.job_submission import JobSubmissionClient

        head = ray_address_to_api_server_url(os.environ.get("RAY_ADDRESS"))
        JobSubmissionClient(head).stop_job(job)
    except Exception as error:
        print(f"the job could not be stopped ({one_line(error)})", file=sys.stderr)
    else:
        time.sleep(_WITHIN_S)
