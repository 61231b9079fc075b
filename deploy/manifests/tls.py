"""TLS between Ray's processes: who makes each pod a certificate that names its address, as Ray wants it.

    off           Ray's calls are not encrypted; its token and NetworkPolicies guard them.
    cert-manager  KubeRay's operator has cert-manager make them (its feature gate RayClusterMTLS).
    secret        Each pod makes its own before Ray starts, signed by the authority in the secret `ray-ca`,
                  whose key no other container sees.

Pods get their addresses when they start, so no certificate that was made before can name them.
"""

from __future__ import annotations

from typing import Any

from deploy.manifests.read_only import cluster_of, nodes

AUTHORITY_SECRET = "ray-ca"  # noqa: S105 - its name
_AUTHORITY, _OWN = "/etc/ray-ca", "/etc/ray-tls"
ENVIRONMENT = {
    "RAY_USE_TLS": "1",
    "RAY_TLS_SERVER_CERT": f"{_OWN}/tls.crt",
    "RAY_TLS_SERVER_KEY": f"{_OWN}/tls.key",
    "RAY_TLS_CA_CERT": f"{_OWN}/ca.crt",
}
# The names are the pod's, and the head's service. A month is longer than any job.
MAKE_CERTIFICATE = f"""\
set -eu
cp {_AUTHORITY}/tls.crt {_OWN}/ca.crt
openssl req -x509 -days 30 -subj /CN=ray -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \\
  -CA {_AUTHORITY}/tls.crt -CAkey {_AUTHORITY}/tls.key -keyout {_OWN}/tls.key -out {_OWN}/tls.crt \\
  -addext "subjectAltName=IP:$POD_IP,IP:127.0.0.1,DNS:localhost,DNS:*.$POD_NAMESPACE.svc.cluster.local" \\
  -addext basicConstraints=critical,CA:FALSE -addext extendedKeyUsage=serverAuth,clientAuth
"""


def with_tls(resource: dict[str, Any], tls: str) -> dict[str, Any]:
    """Return a RayJob or RayService with what its nodes need for these certificates; submitters use HTTP."""
    if tls == "cert-manager":
        cluster_of(resource)["tlsOptions"] = {"enabled": True}
    if tls == "secret":
        for pod in nodes(resource):
            _make_certificate_first(pod)
    return resource


def _make_certificate_first(pod: dict[str, Any]) -> None:
    (ray,) = pod["containers"]
    own = {"name": "tls", "mountPath": _OWN}
    small = {"cpu": "100m", "memory": "64Mi"}
    pod["initContainers"] = [
        {
            "name": "certificate",
            "image": ray["image"],
            "securityContext": ray["securityContext"],
            "command": ["/bin/sh", "-c", MAKE_CERTIFICATE],
            "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            ],
            "volumeMounts": [own, {"name": "authority", "mountPath": _AUTHORITY, "readOnly": True}],
            "resources": {"requests": small, "limits": small},
        }
    ]
    ray["volumeMounts"] = [*ray["volumeMounts"], {**own, "readOnly": True}]
    ray["env"] = [
        *ray.get("env", ()),
        *({"name": name, "value": value} for name, value in ENVIRONMENT.items()),
    ]
    pod["volumes"] += [
        {"name": "tls", "emptyDir": {}},
        {"name": "authority", "secret": {"secretName": AUTHORITY_SECRET}},
    ]
