"""What the nodes of a job use: CPUs, memory, network, GPUs, as Ray's agents and NVIDIA's exporter say it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import mean, median

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

_NOT_KNOWN = 1e18  # DCGM's blank values lie just below 2^63


class NodeUsage(Struct, frozen=True, kw_only=True):
    """What one Ray node uses at one moment, in shares of 1; None: not exported."""

    cpu_share: float | None = None
    """Of all its cores."""
    memory_bytes: float | None = None
    memory_share: float | None = None
    gpu_share: float | None = None
    """The mean over its GPUs."""
    gpu_memory_bytes: float | None = None
    """Of all its GPUs."""
    gpu_memory_share: float | None = None
    sent_bytes_per_s: float | None = None
    received_bytes_per_s: float | None = None

    def __str__(self) -> str:
        shown = (
            ("CPU {:.0%}", self.cpu_share, 1),
            ("memory {:.1f} GiB", self.memory_bytes, 2**30),
            ("GPU {:.0%}", self.gpu_share, 1),
            ("GPU memory {:.1f} GiB", self.gpu_memory_bytes, 2**30),
            ("{:.1f} MB/s sent", self.sent_bytes_per_s, 1e6),
            ("{:.1f} MB/s received", self.received_bytes_per_s, 1e6),
        )
        parts = [text.format(value / unit) for text, value, unit in shown if value is not None]
        return ", ".join(parts) or "nothing exported"


class GpuUsage(Struct, frozen=True, kw_only=True):
    """What one GPU does at one moment, as NVIDIA's DCGM exporter says it; the shares may be unknown."""

    node: str
    pod: str
    """Which uses it; empty where the exporter does not say."""
    share: float | None
    memory_bytes: float | None
    memory_share: float | None


class UsageSample(Struct, frozen=True, kw_only=True):
    """What all nodes of a job used at one moment."""

    elapsed_s: float
    """Since the job was applied."""
    trains: bool
    """Whether updates had been made by then."""
    samples: int
    """Training samples of all runs so far."""
    heads: Sequence[NodeUsage]
    workers: Mapping[str, NodeUsage]
    """By the pod's name."""


def _values(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return labels and values in a page of metrics, by name. Raises ValueError if it is not one."""
    found: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name].append((sample.labels, sample.value))
    return found


def usage_in_metrics(text: str) -> NodeUsage:
    """Return the usage in a page of Ray's metrics. Raises ValueError if it is not one."""
    values = {name: [value for _, value in found] for name, found in _values(text).items()}

    def total(name: str) -> float | None:
        return sum(values[f"ray_node_{name}"]) if f"ray_node_{name}" in values else None

    def mean_share(name: str) -> float | None:
        return mean(values[f"ray_node_{name}"]) / 100 if f"ray_node_{name}" in values else None

    memory, gpu_memory, free = total("mem_used"), total("gram_used"), total("gram_available")  # GPUs': MiB
    return NodeUsage(
        cpu_share=mean_share("cpu_utilization"),
        memory_bytes=memory,
        memory_share=_share(memory, total("mem_total")),
        gpu_share=mean_share("gpus_utilization"),
        gpu_memory_bytes=None if gpu_memory is None else gpu_memory * 2**20,
        gpu_memory_share=None
        if free is None or gpu_memory is None
        else _share(gpu_memory, gpu_memory + free),
        sent_bytes_per_s=total("network_send_speed"),
        received_bytes_per_s=total("network_receive_speed"),
    )


def gpus_in_metrics(text: str, node: str) -> list[GpuUsage]:
    """Return the GPUs in a page of a node's DCGM exporter. Raises ValueError if it is not one.

    Its label Hostname may be the name of the exporter's pod, so that says nothing. Of a GPU's instances (MIG)
    only the profiling field is there, else the utilisation.
    """
    of_gpu: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for name, found in _values(text).items():
        for labels, value in found:
            if name.startswith("DCGM_FI_") and value < _NOT_KNOWN:
                key = tuple(labels.get(label, "") for label in ("pod", "UUID", "GPU_I_ID"))
                of_gpu[key][name.removeprefix("DCGM_FI_")] = value
    gpus = []
    for (pod, *_), values in of_gpu.items():
        percent, engine = values.get("DEV_GPU_UTIL"), values.get("PROF_GR_ENGINE_ACTIVE")
        used, free = values.get("DEV_FB_USED"), values.get("DEV_FB_FREE")  # MiB
        gpus.append(
            GpuUsage(
                node=node,
                pod=pod,
                share=engine if percent is None else percent / 100,
                memory_bytes=None if used is None else used * 2**20,
                memory_share=None if used is None or free is None else _share(used, used + free),
            )
        )
    return gpus


def second_half(samples: Sequence[UsageSample]) -> Sequence[UsageSample]:
    """Return the later half, by time, of the samples that were taken while updates were made."""
    training = [sample for sample in samples if sample.trains]
    if not training:
        return ()
    middle_s = (training[0].elapsed_s + training[-1].elapsed_s) / 2
    return [sample for sample in training if sample.elapsed_s >= middle_s]


def mean_gpu_share(sample: UsageSample) -> float | None:
    """Return the mean over the workers' pods; None where none says it."""
    shares = [node.gpu_share for node in sample.workers.values() if node.gpu_share is not None]
    return mean(shares) if shares else None


def series(samples: Sequence[UsageSample]) -> Iterator[tuple[str, str, list[float]]]:
    """Yield what was used over time: a name, a unit, and a value a sample; what nobody exports is left out.

    Of workers it is the mean over the pods, of memory and network the largest.
    """
    rows: tuple[tuple[str, str, str, float], ...] = (
        ("CPU", "%", "cpu_share", 100),
        ("memory", "GiB", "memory_bytes", 2**-30),
        ("GPU", "%", "gpu_share", 100),
        ("GPU memory", "GiB", "gpu_memory_bytes", 2**-30),
        ("sent", "MB/s", "sent_bytes_per_s", 1e-6),
        ("received", "MB/s", "received_bytes_per_s", 1e-6),
    )
    for whose in ("head", "workers"):
        for name, unit, field, scale in rows:
            values = []
            for sample in samples:
                nodes = sample.heads if whose == "head" else sample.workers.values()
                found = [x * scale for node in nodes if (x := getattr(node, field)) is not None]
                if found:
                    values.append(mean(found) if unit == "%" else max(found))
            if values:
                yield f"{whose} {name}", unit, values
    if len(samples) > 1:
        yield "all samples", "a second", [*_rates(samples)]


def _rates(samples: Sequence[UsageSample]) -> Iterator[float]:
    for before, after in pairwise(samples):
        yield max(0, after.samples - before.samples) / max(after.elapsed_s - before.elapsed_s, 1e-9)


def plot(samples: Sequence[UsageSample], columns: int = 40) -> Iterator[str]:
    """Yield the lines of a plot for a terminal: of each series a bar a moment, lowest, median, highest."""
    if not samples:
        return
    seconds = samples[-1].elapsed_s - samples[0].elapsed_s
    title = f"{len(samples)} samples in {seconds:.0f} s"
    yield f"{title:20}{'':{columns + 2}}{'lowest':>9}{'median':>9}{'highest':>9}"
    for name, unit, values in series(samples):
        places = 0 if max(values) >= 100 else 1
        ends = "".join(f"{x:9,.{places}f}" for x in (min(values), median(values), max(values)))
        yield f"{name:20}{bars(values, columns, 100 if unit == '%' else None):{columns + 2}}{ends} {unit}"


def bars(values: Sequence[float], columns: int, top: float | None = None) -> str:
    """Return values as bars of seven heights, from 0 to `top`; of many, means of as many as are equal.

    top: None: the highest. No bar fills its line, so that those of two lines never touch.

    >>> bars([0, 1, 2, 4], 40), bars([1, 1, 3, 3], 2), bars([30, 30], 2, 100)
    ('▁▃▄▇', '▃▇', '▃▃')
    """
    if len(values) > columns:
        cuts = [len(values) * i // columns for i in range(columns + 1)]
        values = [mean(values[a:b]) for a, b in pairwise(cuts)]
    top = top or max(values) or 1.0
    return "".join("▁▂▃▄▅▆▇"[round(6 * min(max(0.0, x) / top, 1.0))] for x in values)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def shares_of(gpus: Iterable[GpuUsage], node: str, pod: str) -> NodeUsage:
    """Return what the GPUs of a pod do; where the exporter does not say whose they are, those of its node."""
    own = [gpu for gpu in gpus if gpu.pod == pod or (not gpu.pod and gpu.node == node)]
    shares = [gpu.share for gpu in own if gpu.share is not None]
    memory = [gpu.memory_bytes for gpu in own if gpu.memory_bytes is not None]
    full = [gpu.memory_share for gpu in own if gpu.memory_share is not None]
    return NodeUsage(
        gpu_share=mean(shares) if shares else None,
        gpu_memory_bytes=sum(memory) if memory else None,
        gpu_memory_share=max(full) if full else None,
    )
