"""One frame of a scenario: the objects, logs and answers of a cluster, recorded in objects.yaml.

Imports little: the stand-in for kubectl is started a thousand times in the tests.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Body = dict[str, Any]

FINALIZER = "ray.io/rayjob-finalizer"


class Frame:
    """What there is of a RayJob at one moment.

    recorded: objects.yaml. shown: a frame of a scenario. job: as it was applied. number: which of the jobs it
    is; names differ by it.
    """

    def __init__(self, recorded: Body, shown: Body, job: Body, number: int) -> None:
        self._recorded, self._shown, self._job = recorded, shown, job
        self._name = job["metadata"]["name"]
        self.cluster = f"{self._name}-x{number}k2p"

    @property
    def status(self) -> Body | None:
        """The RayJob's status; None if no operator has taken it up."""
        if not self._shown["job"]:
            return None
        status = self._recorded["ray_job_status"][self._shown["job"]] | self._shown.get("status", {})
        found: Body = filled(status, NAME=self._name, CLUSTER=self.cluster)
        return found

    def pods(self) -> list[tuple[Body, list[Body]]]:
        """Return the pods, each with its events."""
        spec = self._job["spec"]["rayClusterSpec"]
        group = spec["workerGroupSpecs"][0]
        workers = self._shown.get(
            "workers", []
        )  # states: one for all, a list, or by the end of the pod's name
        if isinstance(workers, str):
            workers = [workers] * group["replicas"]
        if isinstance(workers, list):
            workers = dict(enumerate(workers))
        ray = {
            "ray.io/cluster": self.cluster,
            "ray.io/is-ray-node": "yes",
            "app.kubernetes.io/created-by": "kuberay-operator",
        }
        of_head, of_group = (
            ray | {"ray.io/node-type": "head"},
            ray | {"ray.io/node-type": "worker", "ray.io/group": group["groupName"]},
        )
        submitter = {"batch.kubernetes.io/job-name": self._name, "job-name": self._name}
        wanted = [
            (f"{self.cluster}-head", spec["headGroupSpec"]["template"], of_head, self._shown.get("head")),
            *(
                (f"{self.cluster}-{group['groupName']}-worker-{end}", group["template"], of_group, state)
                for end, state in workers.items()
            ),
            (
                f"{self._name}-s7q4z",
                self._job["spec"]["submitterPodTemplate"],
                submitter,
                self._shown.get("submitter"),
            ),
        ]
        return [self.pod(name, template, labels, state) for name, template, labels, state in wanted if state]

    def pod(self, name: str, template: Body, labels: dict[str, str], state: str) -> tuple[Body, list[Body]]:
        """Return a pod that a template describes, in one of the recorded states, and its events."""
        container = template["spec"]["containers"][0]
        fill = {"POD": name, "CONTAINER": container["name"], "IMAGE": container["image"]}
        spec = copied(template["spec"])
        if state != "unschedulable":
            spec["nodeName"] = "node-gpu-0" if "-worker-" in name else "node-cpu-0"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "ray-jobs",
                "uid": f"uid-of-{name}",
                "creationTimestamp": "2026-11-20T10:00:05Z",
                "labels": template.get("metadata", {}).get("labels", {}) | labels,
            },
            "spec": spec,
            "status": filled(self._recorded["pod_status"][state], **fill),
        }
        events = self._recorded["pod_events"].get(state, ())
        return pod, [event_about("v1", "Pod", name, filled(event, **fill)) for event in events]

    def cluster_events(self) -> list[Body]:
        """Return the events about the RayCluster."""
        events = self._recorded["cluster_events"].get(self._shown.get("event"), ())
        return [
            event_about("ray.io/v1", "RayCluster", self.cluster, filled(event, CLUSTER=self.cluster))
            for event in events
        ]

    def refusal(self, why: str) -> Body:
        """Return the event about a worker's pod that the API server did not take."""
        (event,) = self._recorded["cluster_events"]["quota"]
        message = f"Failed to create worker Pod for the cluster ray-jobs/{self.cluster}, err: {why}"
        return event_about("ray.io/v1", "RayCluster", self.cluster, event | {"message": message})

    def log(self, pod: Body) -> str:
        """Return what a pod has printed."""
        out = self._job["spec"]["entrypoint"].rpartition("--out ")[2].partition(" ")[0]
        container = self._job["spec"]["submitterPodTemplate"]["spec"]["containers"][0]
        # what is not given by value is a label of the submitter's pod
        environment = {one["name"]: one.get("value", self._name) for one in container["env"]}
        for name, value in (environment | {"DSGD_IMAGE_TAG": "c0ffee"}).items():  # as a shell does
            out = out.replace(f"${name}", value)
        return str(self._shown.get("logs", {}).get(role_of(pod), "").replace("OUT", out))

    def answer(self, pod: Body, program: list[str]) -> tuple[int, str, str]:
        """Return exit code, output and errors of a program in a running pod."""
        role = role_of(pod)
        if program[0] == "wget" and ":8080/" in program[-1]:
            return 0, (self._recorded | self._shown)["ray_metrics"][role], ""
        if program[0] == "wget":
            assert program[-1] == "http://127.0.0.1:9090/metrics", program
            assert role == "head"
            # 4: the driver does not run, and wget cannot connect
            return (0, metrics(self._shown["runs"]), "") if "runs" in self._shown else (4, "", "")
        if program[0] == "find" and "sed" in program:
            assert role == "head"
            if "records" not in self._shown:
                return 1, "", "find: 'runs': No such file or directory\n"
            return 0, "".join(evaluations(*record) for record in self._shown["records"].items()), ""
        if program[:3] == ["python", "main.py", "evaluate"]:
            assert role == "head"
            url = program[3]
            bucket = self._shown.get("bucket", {"loss": 0.24})
            if bucket["loss"] == "lost":
                return 2, "", f"main.py: evaluate {url}: holds no records; give the URL of --out\n"
            answer = {"run": url, "version": 3200, "ended": True, "on": None, "loss": bucket["loss"]}
            answer |= {"damaged_checkpoints": bucket.get("damaged", 0)}
            return 0, json.dumps(answer | {"score_name": "accuracy", "accuracy": 0.9}), ""
        if program[0] == "find" and "nccl" in program:
            return 0, self._shown.get("ray_logs", {}).get(role, "") + "\n", ""
        return 126, "", f"OCI runtime exec failed: {program[0]}: executable file not found\n"


def role_of(pod: Body) -> str:
    """Return head, worker or submitter."""
    return str(pod["metadata"]["labels"].get("ray.io/node-type", "submitter"))


def event_about(version: str, kind: str, name: str, event: Body) -> Body:
    """Return an event as the API has it."""
    about = {
        "apiVersion": version,
        "kind": kind,
        "name": name,
        "namespace": "ray-jobs",
        "uid": f"uid-of-{name}",
    }
    metadata = {"name": f"{name}.18a{len(event['message']):x}", "namespace": "ray-jobs"}
    event = {key: value for key, value in event.items() if key != "kind"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata | {"creationTimestamp": "2026-11-20T10:00:06Z"},
        "involvedObject": about,
        "type": "Warning",
        "reportingInstance": "",
        **event,
    }


def evaluations(name: str, losses: list[float]) -> str:
    """Return what the tools' `find` prints of a record: its path, and a line an evaluation."""
    rest = {"t_s": 0.0, "gradients": 0}
    lines = [
        json.dumps({"version": version, **rest, "loss": loss, "accuracy": 0.5})
        for version, loss in enumerate(losses)
    ]
    return "\n".join([f"runs/s3/bucket/{name}/evals.jsonl", *lines, ""])


def metrics(runs: list[Body]) -> str:
    """Return what the driver exports of runs, as Prometheus reads it."""
    lines = []
    for run in runs:
        labels = f'mode="{run["mode"]}",run_id="{run["run_id"]}"'
        for worker in range(run.get("workers", 4)):
            one = f'{labels},worker="{worker}"'
            gradients = run["updates"] / 4
            lines += [
                f'dsgd_staleness_updates_bucket{{{one},le="+Inf"}} {gradients}',
                f"dsgd_staleness_updates_count{{{one}}} {gradients}",
                f"dsgd_staleness_updates_sum{{{one}}} {gradients * run.get('staleness', 0)}",
                f"dsgd_compute_seconds_sum{{{one}}} {run.get('compute_s', 1)}",
                f"dsgd_wait_seconds_sum{{{one}}} {run.get('wait_s', 0.2)}",
                f"dsgd_worker_restarts_total{{{one}}} {run.get('restarts', 0) if worker == 0 else 0}",
            ]
        lines += [
            f'dsgd_startup_seconds{{{labels},until="workers"}} {run.get("workers_s", 4.5)}',
            f'dsgd_startup_seconds{{{labels},until="first_update"}} {run.get("workers_s", 4.5) + 1}',
            f"dsgd_updates_total{{{labels}}} {run['updates']}",
            f"dsgd_samples_total{{{labels}}} {run.get('samples', 128 * run['updates'])}",
            f"dsgd_update_seconds_sum{{{labels}}} {run.get('seconds', 1)}",
            f"dsgd_staleness_max_updates{{{labels}}} {run.get('staleness_max', 0)}",
        ]
        if run.get("staleness_bound") is not None:
            lines.append(f"dsgd_staleness_bound_updates{{{labels}}} {run['staleness_bound']}")
        if "loss" in run:
            lines.append(f"dsgd_train_loss{{{labels}}} {run['loss']}")
            lines.append(f"dsgd_eval_loss{{{labels}}} {run['loss']}")
    typed = [f"# TYPE {line.partition('{')[0]} untyped" for line in lines]
    order = dict.fromkeys(typed)
    return "".join(
        f"{head}\n" + "".join(f"{line}\n" for line, of in zip(lines, typed, strict=True) if of == head)
        for head in order
    )


def copied(content: Any) -> Any:
    """Return a copy that may be changed."""
    return json.loads(json.dumps(content))


def filled(content: Any, **words: str) -> Any:
    """Return a copy with the words of objects.yaml replaced."""
    text = json.dumps(content)
    for word, value in words.items():
        text = text.replace(word, value)
    return json.loads(text)
