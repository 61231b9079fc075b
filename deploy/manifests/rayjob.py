"""A RayJob, as Kubernetes gets it: the command line that the head runs, and the cluster that runs it."""

from __future__ import annotations

import math
import re
from typing import Any

from deploy.manifests.job_table import CORPUS_IN_IMAGE, GPU_WORKLOAD, JobDefinition
from deploy.manifests.read_only import read_only
from deploy.manifests.settings import Capacity, Settings
from deploy.manifests.tls import with_tls
from deploy.project import (
    BUCKET_VARIABLE,
    GPU,
    NAME_VARIABLE,
    NAMESPACE,
    STOP_VARIABLE,
    TAG_VARIABLE,
    pinned,
)

SERVICE_ACCOUNT, OF_WORKERS = "ray-jobs", "ray-workers"  # only the first may use the bucket
LABELS = {"app.kubernetes.io/name": "dsgd-lab"}

RAY_METRICS_PORT = 8080  # of every Ray node; KubeRay's own choice
DRIVER_METRICS_PORT = 9090
SCRAPE_INTERVAL_S = 15
LINGER_S = 3 * SCRAPE_INTERVAL_S  # a run that is over is scraped at least twice more

# A head that is deleted has this long. Its run ends between two updates and uploads its record in less.
GRACE_S = 90
STOP_WAIT_S = GRACE_S - 15
_NODE_HEALTH = "http://127.0.0.1:52365/api/healthz"  # what KubeRay's own probe of Ray 2.60 asks
_ARCHITECTURE = {"kubernetes.io/arch": "amd64"}
_EKS = {"spot": "SPOT", "on-demand": "ON_DEMAND"}  # managed node groups' words; Karpenter has ours
_DRIVER = "python main.py .*"

RETRIES = 2
"""How often a job that failed is tried again, each time in a new cluster; it goes on from the bucket."""
CHECKPOINT_S = 60

# The second has a driver whose command line is wrong stop the job: if it failed, KubeRay would try it again.
_RUNTIME_ENV = f'env_vars:\n  RAY_ENABLE_UV_RUN_RUNTIME_ENV: "0"\n  {STOP_VARIABLE}: "1"\n'

_SPILL, _SPILL_SIZE = "/spill", "8Gi"  # objects that the store has no room for
_DISK = "10Gi"  # requested: the above, Ray's logs and its session
# Without these, what a worker prints fills the disk: Ray lets its file grow for ever. 128 MiB a process now.
_ROTATION = {"RAY_ROTATION_MAX_BYTES": str(64 << 20), "RAY_ROTATION_BACKUP_COUNT": "1"}
_EFA_DEVICES = "vpc.amazonaws.com/efa"  # of AWS's device plugin
# NCCL's plugin sets the rest by itself. Without huge pages, for which a pod would have to ask, a process that
# has registered memory can still fork: torch.compile does. NCCL's own connections must not take the interface
# of the pod identity agent, which other nodes cannot reach.
_EFA = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_HUGE_PAGE": "0",
    "NCCL_SOCKET_IFNAME": "^lo,docker,veth,pod-id-link",
}
# Neither Karpenter nor the cluster autoscaler may move such a pod to save a node.
_STAYS = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}

Json = dict[str, Any]

STORAGE: list[Json] = [{"secretRef": {"name": "storage", "optional": True}}]
"""Where S3 is not Amazon's: AWS_ENDPOINT_URL_S3 and keys. On EKS there is no such secret."""


def entrypoint(job: JobDefinition, settings: Settings) -> str:
    """Return the command line that the head runs. Raises ValueError if its workers do not fit on the pods."""
    share = _share(job, settings)
    shared = {"gpus-per-worker": f"{share:g}"} if share is not None and settings.device == "cuda" else {}
    options = {**shared, "engine": "ray", "device": settings.device, "start-timeout-s": 300}
    arguments = job.arguments
    on_gpus = settings.device == "cuda" and settings.workload is None and not job.names_workload
    workload = None if job.names_workload else GPU_WORKLOAD if on_gpus else settings.workload
    corpus = {"data": CORPUS_IN_IMAGE} if workload == "gpt" else {}
    if job.is_experiment:
        options |= {"workload": workload, **corpus} if workload else {}
        given = [f"--set {name.replace('-', '_')}={value}" for name, value in options.items()]
        # Evaluations are computed by the head, which has no GPU.
        given += [f"--set {setting}" for setting in (*job.on_gpus, "eval_samples=2000")] if on_gpus else []
    else:
        given = [f"--{name} {value}" for name, value in options.items()]
        given += ["--eval-samples 2000"] if on_gpus else []
        if job.names_workload and settings.device == "cuda":
            pairs = (setting.split("=", 1) for setting in job.on_gpus)
            given += [f"--{name.replace('_', '-')} {value}" for name, value in pairs]
        if job.ranks > 1 and settings.device == "cuda" and settings.tls == "off":
            given += ["--topology allreduce"]  # rank by rank, past the head; between machines, TLS refuses it
        if workload:
            given += [f"--{name} {value}" for name, value in corpus.items()]
            arguments = arguments.replace("--workload digits", f"--workload {workload}")
        if settings.workers:
            arguments = re.sub(r"--num-workers \d+", f"--num-workers {settings.workers}", arguments)
    # The submitter's shell puts in the bucket and the name, from its environment. The name is the same each
    # time that the job is tried, so that it goes on; another job or image has another.
    name, bucket = f"${NAME_VARIABLE}-${TAG_VARIABLE}", f"s3://${BUCKET_VARIABLE}"
    if job.is_experiment:
        place = f"--set checkpoint_every={CHECKPOINT_S} --out {bucket}/experiments/{name}"
    else:
        place = f"--checkpoint-every s3={CHECKPOINT_S} --out {bucket}/runs --run-name {name} --resume auto"
    metrics = f"--metrics-port {DRIVER_METRICS_PORT} --metrics-host 0.0.0.0 --metrics-linger-s {LINGER_S}"
    return " ".join(["python main.py", arguments, *given, place, metrics])


def _share(job: JobDefinition, settings: Settings) -> float | None:
    """Return the GPUs of each worker, None for a whole one."""
    pods = settings.workers or job.workers
    if job.ranks > 1:  # each has whole GPUs
        return None
    if settings.gpus_per_worker is None:
        return None if job.gpus_per_worker is None else job.gpus_per_worker * pods / job.workers
    most = round(job.workers / job.gpus_per_worker) if job.gpus_per_worker else pods
    room = pods * int(_gpus_per_pod(settings, job) / settings.gpus_per_worker)
    if most > room:
        raise ValueError(
            f"--gpus-per-worker {settings.gpus_per_worker:g}: {job.name} has {most} workers, {pods} pods "
            f"have room for {room}; give a smaller share or more --workers"
        )
    return settings.gpus_per_worker


def _gpus_per_pod(settings: Settings, job: JobDefinition) -> int:
    return job.ranks if job.ranks > 1 else max(1, math.ceil(settings.gpus_per_worker or 1))


def manifest(job: JobDefinition, settings: Settings) -> Json:
    """Return the RayJob as Kubernetes gets it."""
    rayjob: Json = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": job.name,
            "namespace": NAMESPACE,
            "labels": LABELS | ({"kueue.x-k8s.io/queue-name": settings.queue} if settings.queue else {}),
        },
        "spec": {
            # Kueue lets it begin, once there is room for all its pods.
            **({"suspend": True} if settings.queue else {}),
            "submissionMode": "K8sJobMode",
            "entrypoint": entrypoint(job, settings),
            "runtimeEnvYAML": _RUNTIME_ENV,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 120,
            # A node with a GPU is found and gigabytes of image are pulled before the job runs.
            "preRunningDeadlineSeconds": 1200,
            "activeDeadlineSeconds": job.deadline_s,
            "backoffLimit": RETRIES,
            "submitterConfig": {"backoffLimit": 2},
            "submitterPodTemplate": _submitter(settings),
            "rayClusterSpec": ray_cluster(job, settings),
        },
    }
    return with_tls(read_only(rayjob), settings.tls)


def ray_cluster(job: JobDefinition, settings: Settings) -> Json:
    """Return the specification of a RayCluster: a head that computes nothing, and the job's pods."""
    pods = settings.workers or job.workers
    return {
        "rayVersion": pinned("ray"),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "num-gpus": "0", **_objects(job.head_gib // 4)},
            "template": _head(settings, job.head_gib),
        },
        "workerGroupSpecs": [
            {
                "groupName": "workers",
                "replicas": pods,
                "minReplicas": pods,
                "maxReplicas": pods,
                "rayStartParams": _objects(3 * job.ranks),
                "template": _worker(settings, job),
            }
        ],
    }


def _objects(gib: int) -> Json:
    """Return how large a node's object store is, about a quarter of its memory, and where it spills."""
    return {"object-store-memory": str(gib << 30), "object-spilling-directory": _SPILL}


def _pod(container: Json, settings: Settings, *, stays: bool = False, **more: Any) -> Json:
    """Return a pod's template: no root, no privileges, no access to Kubernetes' API.

    stays: whether it is not moved to another node to save one. It has no labels: by those that KubeRay gives
    its pods, its services find them.
    """
    if settings.pull_secret:
        more["imagePullSecrets"] = [{"name": settings.pull_secret}]
    return {
        **({"metadata": {"annotations": dict(_STAYS)}} if stays else {}),
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "nodeSelector": dict(_ARCHITECTURE),
            **more,
            "containers": [
                {
                    "name": container["name"],
                    "image": settings.image,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
        },
    }


def _head(settings: Settings, gib: int) -> Json:
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
        "env": _env(_ROTATION | {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}),
        "envFrom": STORAGE,
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", stop]}}},
        # A driver that has hung for ten minutes is started again. One without workers for a minute shows in
        # `kubectl get pods`; the head's service names it all the same, so neither KubeRay nor a worker minds.
        "livenessProbe": _probe("healthz", initialDelaySeconds=30, failureThreshold=120),
        "readinessProbe": _probe("readyz", initialDelaySeconds=10, failureThreshold=12),
        "resources": _resources(cpu="2", memory=f"{gib}Gi"),
        "volumeMounts": [{"name": "spill", "mountPath": _SPILL}],
    }
    more: Json = {"serviceAccountName": SERVICE_ACCOUNT, "terminationGracePeriodSeconds": GRACE_S}
    more |= _of_both(settings)
    if settings.capacity != "any":  # a head that is lost ends the job
        more["affinity"] = _on("on-demand")
    return _pod(container, settings, stays=True, **more)


def _probe(path: str, **times: int) -> Json:
    """Return a probe that asks the Ray node and, where a driver listens, the driver too."""
    ask = "wget -q -O /dev/null -T 2 --tries 1"
    # Without -T, as then a driver that does not answer is no different from none: wget ends with 4 for both.
    driver = f"timeout 2 wget -q -O /dev/null --tries 1 http://127.0.0.1:{DRIVER_METRICS_PORT}/{path}"
    command = f"{ask} {_NODE_HEALTH} && {{ {driver} || [ $? -eq 4 ]; }}"
    return {
        "exec": {"command": ["/bin/sh", "-c", command]},
        "timeoutSeconds": 5,
        "periodSeconds": 5,
        **times,
    }


def _worker(settings: Settings, job: JobDefinition) -> Json:
    # Before a pod is taken, its workers' processes are asked to end: each finishes its task, and the run goes
    # on without it (dsgd/engines/ray/worker/host.py).
    stop = "pkill -TERM -f '^ray::Host'; while pgrep -f '^ray::Host' >/dev/null; do sleep 1; done"
    container: Json = {
        "name": "ray-worker",
        "env": _env(_ROTATION),
        "ports": [{"name": "metrics", "containerPort": RAY_METRICS_PORT}],
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", stop]}}},
        "resources": _resources(cpu=str(3 * job.ranks), memory=f"{12 * job.ranks}Gi"),
        "volumeMounts": [{"name": "spill", "mountPath": _SPILL}],
    }
    more: Json = {"serviceAccountName": OF_WORKERS, **_of_both(settings)}
    more["affinity"] = _near_each_other(must=settings.efa > 0)
    tolerations = [_toleration(taint) for taint in settings.toleration]
    if settings.node_selector:
        labels = (label.partition("=") for label in settings.node_selector)
        more["nodeSelector"] = _ARCHITECTURE | {name: value for name, _, value in labels}
    if settings.capacity != "any":
        more["affinity"] |= _on(settings.capacity)
    if settings.device == "cuda":
        container["resources"]["limits"][GPU] = _gpus_per_pod(settings, job)
        tolerations.append({"key": GPU, "operator": "Exists", "effect": "NoSchedule"})
    if settings.efa:
        container["env"] = _env(_ROTATION | _EFA)
        container["resources"]["limits"][_EFA_DEVICES] = settings.efa
    if tolerations:
        more["tolerations"] = tolerations
    return _pod(container, settings, stays=settings.keep_workers, **more)


def _of_both(settings: Settings) -> Json:
    """Return what head and workers have in common."""
    priority = {"priorityClassName": settings.priority_class} if settings.priority_class else {}
    return {**priority, "volumes": [{"name": "spill", "emptyDir": {"sizeLimit": _SPILL_SIZE}}]}


def _env(values: dict[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _toleration(taint: str) -> Json:
    key, equals, value = taint.partition("=")
    return {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}


def _near_each_other(*, must: bool) -> Json:
    """Return the wish of a cluster's workers to be in one zone: bytes between zones are slow, and cost.

    must: it is no wish. EFA's traffic does not leave a zone.
    """
    term = {
        "topologyKey": "topology.kubernetes.io/zone",
        "labelSelector": {"matchLabels": {"ray.io/node-type": "worker"}},
        "matchLabelKeys": ["ray.io/cluster"],
    }
    if must:
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    wish = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}


def _on(capacity: Capacity) -> Json:
    """Return the affinity to nodes that are paid for in this way: one of the terms must hold."""
    labels = {"karpenter.sh/capacity-type": capacity, "eks.amazonaws.com/capacityType": _EKS[capacity]}
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        for key, value in labels.items()
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _submitter(settings: Settings) -> Json:
    resources = _resources(cpu="500m", memory="1Gi", disk="1Gi")
    container = {
        "name": "ray-job-submitter",
        "env": [
            {"name": BUCKET_VARIABLE, "value": settings.bucket},
            # KubeRay gives the submitter's Job the RayJob's name, and Kubernetes its pod this label.
            {"name": NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['job-name']"}}},
        ],
        "resources": resources,
    }
    return _pod(container, settings, restartPolicy="Never")


def _resources(*, cpu: str, memory: str, disk: str = _DISK) -> Json:
    """Return what a pod gets and no more, so that no neighbour can take it away."""
    each = {"cpu": cpu, "memory": memory, "ephemeral-storage": disk}
    return {"requests": each, "limits": dict(each)}
