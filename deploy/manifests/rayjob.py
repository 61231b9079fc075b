"""A RayJob, as Kubernetes gets it: the command line that the head runs, and the pods around it."""

from __future__ import annotations

from typing import Any

from deploy.manifests.job_table import JobDefinition
from deploy.manifests.settings import Settings
from deploy.project import GPU, NAMESPACE, pinned

SERVICE_ACCOUNT = "ray-jobs"
LABELS = {"app.kubernetes.io/name": "dsgd-lab"}

RAY_METRICS_PORT = 8080  # of every Ray node; KubeRay's own choice
DRIVER_METRICS_PORT = 9090
SCRAPE_INTERVAL_S = 15
LINGER_S = 3 * SCRAPE_INTERVAL_S  # a run that is over is scraped at least twice more

# A head that is deleted has this long. Its run ends between two updates and uploads its record in less.
GRACE_S = 90
STOP_WAIT_S = GRACE_S - 15
_DRIVER = "python main.py .*"

Json = dict[str, Any]


def entrypoint(job: JobDefinition, settings: Settings) -> str:
    """Return the command line that the head runs."""
    shared = job.gpus_per_worker is not None and settings.device == "cuda"
    share = {"gpus-per-worker": job.gpus_per_worker} if shared else {}
    options = {**share, "engine": "ray", "device": settings.device, "start-timeout-s": 300}
    if job.is_experiment:
        given = [f"--set {name.replace('-', '_')}={value}" for name, value in options.items()]
    else:
        given = [f"--{name} {value}" for name, value in options.items()]
    # A run's name contains the time. An experiment's does not, and records are never overwritten: so the
    # submitter's shell puts in the submission's own name, ray-job-NAME-xxxxx.
    folder = "experiments/$RAY_JOB_SUBMISSION_ID" if job.is_experiment else "runs"
    metrics = f"--metrics-port {DRIVER_METRICS_PORT} --metrics-host 0.0.0.0 --metrics-linger-s {LINGER_S}"
    return " ".join(
        ["python main.py", job.arguments, *given, f"--out s3://{settings.bucket}/{folder}", metrics]
    )


def manifest(job: JobDefinition, settings: Settings) -> Json:
    """Return the RayJob as Kubernetes gets it."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": f"ray-job-{job.name}",
            "namespace": NAMESPACE,
            "labels": dict(LABELS),
        },
        "spec": {
            "submissionMode": "K8sJobMode",
            "entrypoint": entrypoint(job, settings),
            "runtimeEnvYAML": 'env_vars:\n  RAY_ENABLE_UV_RUN_RUNTIME_ENV: "0"\n',
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 120,
            # A node with a GPU is found and gigabytes of image are pulled before the job runs.
            "preRunningDeadlineSeconds": 1200,
            "activeDeadlineSeconds": job.deadline_s,
            "backoffLimit": 0,
            "submitterConfig": {"backoffLimit": 2},
            "submitterPodTemplate": _submitter(settings),
            "rayClusterSpec": {
                "rayVersion": pinned("ray"),
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
                    "template": _head(settings),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": job.workers,
                        "minReplicas": job.workers,
                        "maxReplicas": job.workers,
                        "rayStartParams": {},
                        "template": _worker(settings),
                    }
                ],
            },
        },
    }


def _pod(container: Json, settings: Settings, **more: Any) -> Json:
    """Return a pod's template: no root, no privileges, no access to Kubernetes' API.

    It has no labels: by those that KubeRay gives its pods, its services find them.
    """
    return {
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            **more,
            "containers": [
                {
                    "name": container["name"],
                    "image": settings.image,
                    "imagePullPolicy": "IfNotPresent",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
        },
    }


def _head(settings: Settings) -> Json:
    # The whole command line, so that neither this shell nor the one in which Ray starts main.py matches.
    stop = f"pkill -TERM -x -f '{_DRIVER}'; while pgrep -x -f '{_DRIVER}' >/dev/null; do sleep 1; done"
    container = {
        "name": "ray-head",
        # Named one by one: once a head names a port, KubeRay's service has no others.
        "ports": [
            {"name": "gcs-server", "containerPort": 6379},
            {"name": "dashboard", "containerPort": 8265},
            {"name": "client", "containerPort": 10001},
            {"name": "metrics", "containerPort": RAY_METRICS_PORT},
            {"name": "driver-metrics", "containerPort": DRIVER_METRICS_PORT},
        ],
        "env": [{"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(STOP_WAIT_S)}],
        # Where S3 is not Amazon's: AWS_ENDPOINT_URL_S3 and keys. On EKS there is no such secret.
        "envFrom": [{"secretRef": {"name": "storage", "optional": True}}],
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", stop]}}},
        "resources": _resources(cpu="2", memory="8Gi"),
    }
    return _pod(
        container, settings, serviceAccountName=SERVICE_ACCOUNT, terminationGracePeriodSeconds=GRACE_S
    )


def _worker(settings: Settings) -> Json:
    # Before a pod is taken, its workers' processes are asked to end: each finishes its task, and the run goes
    # on without it (dsgd/cluster/ray_host.py).
    stop = "pkill -TERM -f '^ray::Host'; while pgrep -f '^ray::Host' >/dev/null; do sleep 1; done"
    container: Json = {
        "name": "ray-worker",
        "ports": [{"name": "metrics", "containerPort": RAY_METRICS_PORT}],
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", stop]}}},
        "resources": _resources(cpu="3", memory="12Gi"),
    }
    if settings.device == "cpu":
        return _pod(container, settings, serviceAccountName=SERVICE_ACCOUNT)
    container["resources"]["limits"][GPU] = 1
    tolerations = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    return _pod(container, settings, serviceAccountName=SERVICE_ACCOUNT, tolerations=tolerations)


def _submitter(settings: Settings) -> Json:
    resources = _resources(cpu="500m", memory="1Gi")
    container = {"name": "ray-job-submitter", "resources": resources}
    return _pod(container, settings, restartPolicy="Never")


def _resources(*, cpu: str, memory: str) -> Json:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}
