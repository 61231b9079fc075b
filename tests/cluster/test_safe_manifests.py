"""What a cluster refuses by default: connections, privileges, writes, and rights beyond a bucket's prefix."""

from __future__ import annotations

import ast
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml
from conftest import KUBERAY_CRD, ROOT, needs, needs_crd
from msgspec.structs import replace
from test_manifests import KUBERNETES, MINE, command_line, committed, each_job, kustomize, strict, templates

from deploy.jobs import bucket_check
from deploy.manifests.job_table import JOBS, JobDefinition
from deploy.manifests.rayjob import manifest
from deploy.manifests.tls import AUTHORITY_SECRET, ENVIRONMENT
from deploy.project import GPU, NAMESPACE

BASE = KUBERNETES / "base"
POLICIES: list[dict[str, Any]] = list(yaml.safe_load_all((BASE / "network-policy.yaml").read_text()))


# --- who may connect to whom


class Pod(NamedTuple):
    namespace: str
    labels: Mapping[str, str]


Peer = Pod | str  # the address of what is outside the cluster
INSIDE = "10.0.3.7"  # a pod's address, which an ipBlock may hold too
RAY = {"ray.io/is-ray-node": "yes", "ray.io/cluster": "ssp-x7k2p"}
HEAD = Pod(NAMESPACE, {**RAY, "ray.io/node-type": "head"})
WORKER = Pod(NAMESPACE, {**RAY, "ray.io/node-type": "worker"})
SERVING = Pod(NAMESPACE, {**WORKER.labels, "ray.io/serve": "true"})
SUBMITTER = Pod(NAMESPACE, {"ray.io/originated-from-crd": "RayJob", "job-name": "ssp"})
PROBE = Pod(NAMESPACE, {"app.kubernetes.io/name": "dsgd-lab"})  # of validate-setup
OPERATOR = Pod("kuberay-operator", {"app.kubernetes.io/name": "kuberay-operator"})
PROMETHEUS = Pod("monitoring", {"app.kubernetes.io/name": "prometheus"})
DNS = Pod("kube-system", {"k8s-app": "kube-dns"})
STRANGER = Pod("elsewhere", {**RAY, **OPERATOR.labels})
S3, POD_IDENTITY, NODE_IDENTITY = "52.216.0.1", "169.254.170.23", "169.254.169.254"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches, as Kubernetes says."""
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    for one in selector.get("matchExpressions", []):
        assert one["operator"] == "In", "no other is used"
        if labels.get(one["key"]) not in one["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def is_meant(peer: Mapping[str, Any], other: Peer) -> bool:
    """Whether a peer of a rule is this pod, or this address outside the cluster."""
    if block := peer.get("ipBlock"):
        address = ipaddress.ip_address(other if isinstance(other, str) else INSIDE)
        left_out = (address in ipaddress.ip_network(out) for out in block.get("except", []))
        return address in ipaddress.ip_network(block["cidr"]) and not any(left_out)
    if isinstance(other, str):
        return False
    namespace = {"kubernetes.io/metadata.name": other.namespace}
    own = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    return selects(peer.get("namespaceSelector", own), namespace) and selects(
        peer.get("podSelector", {}), other.labels
    )


def is_open(direction: str, own: Peer, other: Peer, port: int, protocol: str) -> bool:
    """Whether one side allows a connection: no policy selects it, or a rule of those that do allows it."""
    if isinstance(own, str) or own.namespace != NAMESPACE:
        return True
    selecting = [
        policy["spec"]
        for policy in POLICIES
        if direction in policy["spec"]["policyTypes"] and selects(policy["spec"]["podSelector"], own.labels)
    ]
    side = {"Ingress": "from", "Egress": "to"}[direction]
    rules = [rule for spec in selecting for rule in spec.get(direction.lower(), [])]
    return not selecting or any(
        (side not in rule or any(is_meant(peer, other) for peer in rule[side]))
        and ("ports" not in rule or {"protocol": protocol, "port": port} in rule["ports"])
        for rule in rules
    )


def may_connect(source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    given = (port, protocol)
    return is_open("Egress", source, target, *given) and is_open("Ingress", target, source, *given)


@pytest.mark.parametrize(
    ("source", "target", "port", "protocol"),
    [
        (WORKER, HEAD, 6379, "TCP"),
        (HEAD, WORKER, 34567, "TCP"),
        (WORKER, WORKER, 45678, "TCP"),
        (SUBMITTER, HEAD, 8265, "TCP"),
        (OPERATOR, HEAD, 8265, "TCP"),
        (PROMETHEUS, HEAD, 8080, "TCP"),
        (PROMETHEUS, HEAD, 9090, "TCP"),
        (PROMETHEUS, WORKER, 8080, "TCP"),
        *[(pod, SERVING, 8000, "TCP") for pod in (STRANGER, Pod("default", {}), S3)],
        (SERVING, S3, 443, "TCP"),
        (SERVING, HEAD, 6379, "TCP"),
        *[(pod, DNS, 53, "UDP") for pod in (HEAD, WORKER, SUBMITTER, PROBE)],
        *[(pod, S3, 443, "TCP") for pod in (HEAD, WORKER, PROBE)],
        *[(pod, POD_IDENTITY, 80, "TCP") for pod in (HEAD, PROBE)],
    ],
)
def test_what_a_job_needs_is_open(source: Peer, target: Peer, port: int, protocol: str) -> None:
    """Ray's nodes reach each other, S3, DNS and their identity; operator, submitter, Prometheus the head."""
    assert may_connect(source, target, port, protocol)


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        *[(STRANGER, HEAD, port) for port in (6379, 8265, 10001, 8080, 9090)],
        (Pod("default", {}), HEAD, 8265),
        *[(STRANGER, SERVING, port) for port in (8080, 8265, 10001, 45678)],
        *[(STRANGER, pod, 8000) for pod in (HEAD, WORKER)],
        (Pod("monitoring", {}), HEAD, 9090),
        (PROMETHEUS, HEAD, 6379),
        (PROMETHEUS, HEAD, 8265),
        (OPERATOR, HEAD, 6379),
        (OPERATOR, WORKER, 45678),
        (SUBMITTER, HEAD, 6379),
        (PROBE, HEAD, 6379),
        (HEAD, PROBE, 80),
        (S3, HEAD, 8265),
        (HEAD, S3, 80),
        (HEAD, NODE_IDENTITY, 80),
        (HEAD, NODE_IDENTITY, 443),
        (HEAD, Pod("elsewhere", {}), 443),
        (HEAD, "10.100.0.1", 443),  # Kubernetes' API
        (WORKER, PROMETHEUS, 9090),
    ],
)
def test_nothing_else_is_open(source: Peer, target: Peer, port: int) -> None:
    """No other pod, whatever its labels, reaches a head; no job reaches others, or a node's credentials."""
    assert not may_connect(source, target, port)


@each_job
def test_policies_know_the_ports_and_labels_of_the_jobs(job: JobDefinition) -> None:
    """Every port that a head names is open to the other nodes, its metrics' ports to Prometheus."""
    head = list(templates(committed(job)))[1]["spec"]["containers"][0]
    for port in head["ports"]:
        assert may_connect(WORKER, HEAD, port["containerPort"])
        assert may_connect(PROMETHEUS, HEAD, port["containerPort"]) == port["name"].endswith("metrics")


@needs_crd
def test_policies_are_valid_strictly() -> None:
    """Each rule has the fields of Kubernetes' NetworkPolicy, which KubeRay's CRD repeats, and no others."""
    (version,) = (v for v in json.loads(KUBERAY_CRD.read_text())["spec"]["versions"] if v["name"] == "v1")
    cluster = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["rayClusterSpec"]
    rules = strict(cluster["properties"]["networkPolicy"]["properties"]["head"])
    for policy in POLICIES:
        spec = policy["spec"]
        given = {f"{side}Rules": spec[side] for side in ("ingress", "egress") if side in spec}
        assert [error.message for error in jsonschema.Draft202012Validator(rules).iter_errors(given)] == []
        assert spec.keys() <= {"podSelector", "policyTypes", "ingress", "egress"}
        assert {side.lower() for side in spec["policyTypes"]} >= given.keys() & {"ingress", "egress"}


# --- pods


def test_the_namespace_takes_only_restricted_pods_by_a_pinned_version() -> None:
    labels = yaml.safe_load((BASE / "namespace.yaml").read_text())["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert re.fullmatch(r"v1\.\d+", labels["pod-security.kubernetes.io/enforce-version"])


def test_a_pod_writes_only_to_volumes_of_its_own() -> None:
    """The image is read-only; the pod has /tmp, where Ray works, the home, the records' folder, and where
    Ray's nodes spill objects.
    """
    for template in templates(committed(JOBS[0])):
        (container,) = template["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounted.values()) >= {"/tmp", "/home/ray", "/app/runs"}
        volumes = {volume["name"]: set(volume) - {"name"} for volume in template["spec"]["volumes"]}
        assert volumes == {name: {"emptyDir"} for name in mounted}


def test_ray_asks_for_a_token() -> None:
    """Every RayJob has the operator make a token, which its pods show each other."""
    for job in JOBS:
        assert committed(job)["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}


# --- disks


def test_what_workers_print_does_not_fill_a_disk() -> None:
    """Ray turns its logs over: those of ten processes are less than the disk that spilling leaves."""
    for job in JOBS:
        _, *pods = templates(committed(job))
        for pod in pods:
            (ray,) = pod["spec"]["containers"]
            environment = {one["name"]: one["value"] for one in ray["env"]}
            kept = int(environment["RAY_ROTATION_MAX_BYTES"]) * (
                1 + int(environment["RAY_ROTATION_BACKUP_COUNT"])
            )
            (spill,) = (one["emptyDir"] for one in pod["spec"]["volumes"] if one["name"] == "spill")
            disk = ray["resources"]["requests"]["ephemeral-storage"]
            assert 10 * kept < amount(disk) - amount(spill["sizeLimit"])


# --- TLS


def test_with_cert_manager_the_operator_makes_the_certificates() -> None:
    """--tls cert-manager sets the operator's switch, and nothing that the operator sets itself."""
    with_tls = manifest(JOBS[0], replace(MINE["cpu"], tls="cert-manager"))
    cluster = with_tls["spec"]["rayClusterSpec"]
    assert cluster.pop("tlsOptions") == {"enabled": True}
    assert with_tls == manifest(JOBS[0], MINE["cpu"])


def test_with_a_secret_only_the_first_step_sees_the_key_of_the_authority() -> None:
    """--tls secret: a step before Ray makes the pod's certificate; Ray's container has that alone."""
    _, *pods = templates(manifest(JOBS[0], replace(MINE["cpu"], tls="secret")))
    for pod in pods:
        (first,), (ray,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
        seen = {mount["name"] for mount in first["volumeMounts"]}
        assert seen == {"authority", "tls"}
        assert "authority" not in {mount["name"] for mount in ray["volumeMounts"]}
        assert first["securityContext"] == ray["securityContext"]
        (secret,) = (one["secret"] for one in pod["spec"]["volumes"] if "secret" in one)
        assert secret == {"secretName": AUTHORITY_SECRET}
        environment = {one["name"]: one["value"] for one in ray["env"]}
        assert environment.items() >= ENVIRONMENT.items()


# --- a cluster on EKS


def test_the_cluster_of_the_docs_has_room_keeps_policies_and_gives_pods_their_role() -> None:
    """Its nodes hold the image and what Ray spills; its GPU nodes have the taint that workers tolerate."""
    cluster = yaml.safe_load((KUBERNETES / "aws/eks-cluster.yaml").read_text())
    addons = {one["name"]: one for one in cluster["addons"]}
    assert json.loads(addons["vpc-cni"]["configurationValues"]) == {"enableNetworkPolicy": "true"}
    assert "eks-pod-identity-agent" in addons
    groups = {one["name"]: one for one in cluster["managedNodeGroups"]}
    assert all(one["volumeSize"] >= 60 for one in groups.values())
    (taint,) = groups["gpu"]["taints"]
    (toleration,) = list(templates(manifest(JOBS[0], MINE["cuda"])))[2]["spec"]["tolerations"]
    assert (taint["key"], taint["effect"]) == (toleration["key"], toleration["effect"])
    assert groups["gpu"]["maxSize"] >= max(job.workers for job in JOBS)
    minor = int(cluster["metadata"]["version"].removeprefix("1."))
    labels = yaml.safe_load((BASE / "namespace.yaml").read_text())["metadata"]["labels"]
    assert minor >= int(labels["pod-security.kubernetes.io/enforce-version"].removeprefix("v1."))


# --- a course


@needs("kubectl")
def test_each_group_of_a_course_has_a_namespace_with_a_share_and_rights_of_its_own() -> None:
    """Quota, limits, policies, account and role are the group's; rules and dashboards are there once."""
    built = kustomize(KUBERNETES / "overlays/course")
    by_namespace: dict[str, set[str]] = {}
    for one in built:
        by_namespace.setdefault(one["metadata"].get("namespace", ""), set()).add(one["kind"])
    named = {one["metadata"]["name"] for one in built if one["kind"] == "Namespace"}
    groups = named - {NAMESPACE}
    assert groups
    assert by_namespace.keys() == named | {""}
    assert by_namespace[""] == {"Namespace"}
    for group in groups:
        assert by_namespace[group] >= {
            *("LimitRange", "NetworkPolicy", "PodMonitor", "ResourceQuota"),
            *("Role", "RoleBinding", "ServiceAccount"),
        }
        assert not by_namespace[group] & {"ConfigMap", "PrometheusRule"}
        (binding,) = (
            one for one in built if one["kind"] == "RoleBinding" and one["metadata"]["namespace"] == group
        )
        assert binding["subjects"] == [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}
        ]
    labels = [one["metadata"]["labels"] for one in built if one["kind"] == "Namespace"]
    assert {one["pod-security.kubernetes.io/enforce"] for one in labels} == {"restricted"}


def test_a_group_has_room_for_the_largest_job_and_not_for_two() -> None:
    """The quota holds all pods of any job with a GPU a worker, each within the limits of a container."""
    group = KUBERNETES / "components/group"
    hard = yaml.safe_load((group / "quota.yaml").read_text())["spec"]["hard"]
    (largest,) = yaml.safe_load((group / "limit-range.yaml").read_text())["spec"]["limits"]
    for job in (job for job in JOBS if job.ranks == 1):
        rayjob = manifest(job, MINE["cuda"])
        pods = list(templates(rayjob))
        (workers,) = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        count = [1, 1, workers["replicas"]]
        limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods]
        assert sum(count) <= int(hard["pods"]) < 2 * sum(count)
        for name in ("cpu", "memory"):
            asked = sum(n * amount(one[name]) for n, one in zip(count, limits, strict=True))
            assert asked <= amount(hard[f"limits.{name}"]) < 2 * asked
            assert all(amount(one[name]) <= amount(largest["max"][name]) for one in limits)
        gpus = sum(n * int(one.get(GPU, 0)) for n, one in zip(count, limits, strict=True))
        assert gpus <= int(hard[f"requests.{GPU}"]) < 2 * gpus


def test_the_queue_counts_all_that_jobs_ask_for() -> None:
    """Kueue never admits a job that asks for a resource which its queue does not name."""
    objects = list(yaml.safe_load_all((KUBERNETES / "overlays/course/kueue/queues.yaml").read_text()))
    (queue,) = (one for one in objects if one["kind"] == "ClusterQueue")
    (group,) = queue["spec"]["resourceGroups"]
    asked = {
        name
        for job in JOBS
        for pod in templates(manifest(job, MINE["cuda"]))
        for name in pod["spec"]["containers"][0]["resources"]["limits"]
    }
    assert set(group["coveredResources"]) >= asked
    (flavor,) = group["flavors"]
    assert [one["name"] for one in flavor["resources"]] == group["coveredResources"]
    flavors = {one["metadata"]["name"] for one in objects if one["kind"] == "ResourceFlavor"}
    assert flavor["name"] in flavors
    for one in objects:
        if one["kind"] == "LocalQueue":
            assert one["spec"]["clusterQueue"] == queue["metadata"]["name"]
            assert (KUBERNETES / "overlays/course" / one["metadata"]["namespace"]).is_dir()


def amount(text: str) -> float:
    """Return a quantity of Kubernetes as a number: cores, or bytes."""
    number, unit = re.fullmatch(r"([\d.]+)(m|Mi|Gi|)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"": 1.0, "m": 1e-3, "Mi": 2.0**20, "Gi": 2.0**30}[unit]


# --- what the service account may do in AWS

ACTIONS = {
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "complete_multipart_upload": "s3:PutObject",
    "create_multipart_upload": "s3:PutObject",
    "delete_object": "s3:DeleteObject",
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "download_file": "s3:GetObject",
    "download_fileobj": "s3:GetObject",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_objects_v2": "s3:ListBucket",
    "put_object": "s3:PutObject",
    "upload_file": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "upload_part_copy": "s3:PutObject",  # and of what it copies, s3:GetObject
}


def calls_to_s3() -> Iterator[str]:
    """Yield what the project calls of boto3's S3 client; a paginator has the name of its call as a text."""
    for path in [*(ROOT / "dsgd").rglob("*.py"), Path(bucket_check.__file__)]:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(r"client|boto3", text) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                client, name = ast.unparse(node.func.value), node.func.attr
                if client in ("self._client", "client", "s3"):
                    yield ast.literal_eval(node.args[0]) if name == "get_paginator" else name


def policy(name: str) -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = json.loads((KUBERNETES / f"aws/{name}.json").read_text())["Statement"]
    assert {one["Effect"] for one in statements} == {"Allow"}
    return statements


def test_the_role_may_do_what_the_project_asks_of_s3_and_no_more() -> None:
    """Each action of the policy is one that some call needs, and the other way round; none has a wildcard."""
    needed = {ACTIONS[call] for call in calls_to_s3()}
    assert "s3:PutObject" in needed
    allowed = [action for one in policy("bucket-policy") for action in listed(one["Action"])]
    assert sorted(allowed) == sorted(needed)


def test_the_role_is_for_the_prefixes_of_the_jobs_alone() -> None:
    """Objects are those under the entrypoints' folders and the set-up check's; nothing is for all buckets."""
    lines = [command_line(job, MINE["cpu"]) for job in JOBS]
    places = {line[line.index("--out") + 1].split("/")[3] for line in lines} | {"validate-setup"}
    for one in policy("bucket-policy"):
        resources = set(listed(one["Resource"]))
        assert resources in ({"arn:aws:s3:::BUCKET"}, {f"arn:aws:s3:::BUCKET/{place}/*" for place in places})
    (listing,) = (one for one in policy("bucket-policy") if one["Action"] == "s3:ListBucket")
    seen = listing["Condition"]["StringLike"]["s3:prefix"]
    assert {prefix.partition("/")[0] for prefix in seen} == places - {"validate-setup"}
    (key,) = policy("kms-policy")
    assert key["Action"] == ["kms:GenerateDataKey", "kms:Decrypt"]
    assert key["Resource"] == "KEY_ARN"


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
