"""The table of jobs: one entry is one RayJob, and so one file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class JobDefinition:
    """One RayJob: what it runs, on how many pods, for how long at most."""

    name: str
    shows: str
    """One sentence."""
    arguments: str
    """Of main.py: the run or the experiment; the service has none. Engine, device, output and metrics are the
    same for all."""
    on_gpus: tuple[str, ...] = ()
    """Options, like steps=20, that fit what is trained on GPUs: `GPU_WORKLOAD` in an experiment on digits, a
    larger model in a job that names its workload."""
    gpus_per_worker: float | None = None
    """Share of a GPU that each worker takes, where there are GPUs. None: a whole one."""
    workers: int = 4
    """Pods, of one GPU each, among which a run's workers are shared out."""
    ranks: int = 1
    """Ranks of each worker, which share its pod and have a GPU each."""
    head_gib: int = 8
    """Memory of the head: it has the weights, what strategies and workers keep, and a checkpoint of all."""
    deadline_s: int = 3600
    """From its creation to its end, starting up included."""

    @property
    def file(self) -> str:
        return f"ray-job-{self.name}.yaml" if self.arguments else "ray-service.yaml"

    @property
    def is_experiment(self) -> bool:
        return self.arguments.startswith("compare ")

    @property
    def names_workload(self) -> bool:
        """Whether it trains what it says, whatever the others train."""
        return "--workload digits" not in self.arguments and "--workload" in self.arguments


GPU_WORKLOAD = "fashion"
"""A convolutional network of 207,000 weights: digits, of 1,200, would leave a GPU idle.

Its step sizes and targets (`on_gpus`, below) are those of CPUs: after so many gradients the loss is the same
on any device, up to rounding. Measured in the simulator with the jobs' own options, `--eval-samples 2000` and
seed 0, for some variants of each job (November 2026): a comment says after how many gradients of how many the
target was reached.
"""

CORPUS_IN_IMAGE = "python"
"""What a language model is trained on: the image has torch's own sources, and no extra packages of texts."""

# Some three minutes, so that there is something to see in Grafana.
_RUN = "--num-workers 4 --steps 2000 --workload digits --eval-every 20 --compute-time exponential:0.05"

_GPT = f"--workload gpt --data {CORPUS_IN_IMAGE}"
# Two workers of four ranks: on GPUs a model of GPT-2's size, of which a step is a third of a second on A10Gs.
_ISLANDS = (
    "--num-workers 2 --ranks-per-worker 4 --steps 1000 --batch-size 32 --schedule cosine,warmup=100 "
    "--eval-every 250 --eval-samples 4096"
)
_ISLANDS_ON_GPUS = ("size=124m", "precision=bf16")


def _experiment(
    name: str,
    shows: str,
    *settings: str,
    gpus_per_worker: float,
    on_gpus: tuple[str, ...],
    file: str = "",
) -> JobDefinition:
    """Return the job of experiments/NAME.yaml, unless the file has another name.

    settings: what makes it fit for real workers, whose seconds are not simulated, like shorter compute times;
    seeds are six in any case.
    """
    given = (f"--set {setting}" for setting in ("seeds=6", *settings))
    return JobDefinition(
        name=name,
        shows=shows,
        arguments=" ".join([f"compare experiments/{file or name}.yaml", *given]),
        gpus_per_worker=gpus_per_worker,
        on_gpus=on_gpus,
        deadline_s=4 * 3600,
    )


JOBS = (
    JobDefinition(
        name="ssgd",
        shows="Synchronous SGD: every update waits for all workers.",
        arguments=f"--mode ssgd {_RUN}",
    ),
    JobDefinition(
        name="asgd",
        shows="Asynchronous SGD: each gradient is applied as it comes.",
        arguments=f"--mode asgd --lr-scaling workers {_RUN}",
    ),
    JobDefinition(
        name="ssp",
        shows="Stale-synchronous parallel: no worker runs more than 4 steps ahead.",
        arguments=f"--mode ssp --slack 4 --lr-scaling workers {_RUN}",
    ),
    JobDefinition(
        name="localsgd",
        shows="Local SGD: weights are averaged every 8 local steps.",
        arguments=f"--mode localsgd --local-steps 8 {_RUN}",
    ),
    JobDefinition(
        name="islands",
        shows="DiLoCo between two workers of four GPUs each, and FSDP within.",
        arguments=f"--mode diloco {_GPT} --local-steps 32 --lr 0.001 --outer-momentum 0.6 {_ISLANDS}",
        on_gpus=_ISLANDS_ON_GPUS,
        workers=2,
        ranks=4,
        head_gib=32,
    ),
    JobDefinition(
        name="moe",
        shows="DiLoCo between two workers that train a mixture of eight experts, two on each of their GPUs.",
        arguments=(
            f"--mode diloco {_GPT} --experts 8 --top-k 2 --balance loss --parallel fsdp,experts "
            f"--local-steps 32 --lr 0.001 --outer-momentum 0.6 {_ISLANDS}"
        ),
        on_gpus=("size=30m", "precision=bf16"),
        workers=2,
        ranks=4,
        head_gib=32,
    ),
    _experiment(
        "compare-modes",
        "Which of four modes reaches a loss first under one slow worker?",
        "compute_time=exponential:0.05",
        gpus_per_worker=0.5,
        on_gpus=("lr=0.4", "target_loss=0.7"),  # 400 to 640 of 3,200 gradients
    ),
    _experiment(
        "compare-ssgd",
        "What does a barrier cost, and do backup workers make up for it?",
        "compute_time=exponential:0.05",
        gpus_per_worker=0.25,
        # 960 of 3,200 gradients; SSGD's step size of 0.8 learns nothing for half of the run without clipping
        on_gpus=("clip_norm=1", "target_loss=0.7"),
    ),
    _experiment(
        "compare-asgd",
        "What to do about stale gradients?",
        "compute_time=exponential:0.05",
        gpus_per_worker=0.25,
        on_gpus=("lr=1.6", "target_loss=0.7"),  # 320 to 640 of 3,200 gradients
    ),
    _experiment(
        "compare-ssp",
        "From which slack on does no worker wait, and how stale do gradients get?",
        "compute_time=markov:0.025,0.15,0.025,0.1",
        gpus_per_worker=0.5,
        on_gpus=("lr=0.4", "target_loss=0.7"),  # 480 to 560 of 3,200 gradients
    ),
    _experiment(
        "compare-localsgd",
        "How many local steps between two averagings?",
        "compute_time=exponential:0.05",
        "latency_s=0.1",  # two mini-batches, as in the file: results are held back
        gpus_per_worker=0.5,
        # 700 to 3,600 of 4,096 gradients; at the file's 0.4 it diverges with 64 local steps
        on_gpus=("lr=0.2", "target_loss=0.8"),
    ),
    _experiment(
        "stragglers",
        "Which mode keeps its speed under which kind of straggler?",
        "steps=40",  # of about a second: the laws of compute times are what is compared
        gpus_per_worker=0.5,
        # 160 to 320 of 320 gradients; without clipping only ASGD learns at these step sizes
        on_gpus=("clip_norm=1", "target_loss=1"),
    ),
    _experiment(
        "scaling",
        "How far does adding real workers help, from 1 to 16?",
        gpus_per_worker=0.25,
        on_gpus=("lr=0.4", "target_loss=0.7"),  # 190 to 640 of 2,048 gradients
        file="scaling-real",  # scaling.yaml goes to a thousand
    ),
)

SERVICE = JobDefinition(name="runs", shows="Answers with what jobs have trained.", arguments="", workers=2)
