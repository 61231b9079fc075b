"""What holds on a GPU: `make gpu` runs these tests, where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from torch import Tensor, nn

from dsgd.core.problem import Problem, ProblemError
from dsgd.data import make_workload
from dsgd.engines.ray.worker.collective import (
    GroupBroken,
    Meeting,
    Order,
    ReducingGroup,
    join_store,
    open_store,
)
from dsgd.models.objectives.module_objective import ModuleObjective, ProblemShard
from dsgd.running.execute import execute
from dsgd.running.quick_run import config

TINY = str(ROOT / "tests/workloads/tiny.py")
CARRYING = str(ROOT / "tests/workloads/carrying.py")
DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]


def gradient(device: str, step: int = 0, dropout: float = 0.0, **how: Any) -> Tensor:
    """Return the gradient of a small network on a device."""
    torch.manual_seed(0)
    x, y = torch.randn(32, 6), torch.arange(32) % 3
    module = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(64, 3))
    problem = Problem(module, lambda module, x, y: nn.functional.cross_entropy(module(x), y), (x, y), (x, y))
    objective = ModuleObjective(problem, **how)
    (shard,) = ProblemShard.on_device([ProblemShard(0, (x, y), np.arange(32), batch_size=32, seed=0)], device)
    objective.try_out(shard)
    w = torch.from_numpy(objective.initial_weights(0))[None].to(device)
    return objective.loss_and_gradient(w, [shard], [step])[1][0]


def test_a_gpu_gives_the_gradient_of_the_processor() -> None:
    """To rounding; it stays on the GPU."""
    found = gradient(DEVICE)
    assert found.device.type == DEVICE
    torch.testing.assert_close(found.cpu(), gradient("cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("how", "most"), [({"accumulate": 5}, 1e-4), ({"precision": "bf16"}, 3e-2)])
def test_parts_and_half_precision_are_near(how: dict[str, Any], most: float) -> None:
    """As on a processor."""
    whole = gradient(DEVICE)
    assert (gradient(DEVICE, **how) - whole).norm() < most * whole.norm()


def test_a_compiled_loss_is_near() -> None:
    """With weights that are views."""
    whole = gradient(DEVICE)
    assert (gradient(DEVICE, compiled=True) - whole).norm() < 1e-3 * whole.norm()


def test_dropout_on_a_gpu_repeats() -> None:
    """It is a function of the step there too."""
    once, again, other = (gradient(DEVICE, step, dropout=0.5) for step in (3, 3, 4))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_a_full_gpu_is_one_line() -> None:
    """With the sizes of the weights, the mini-batch and the GPU."""

    def loss(module: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = module(x).mean() + torch.ones(2**45, device=x.device).sum()
        return found

    x = torch.ones(8, 2)
    shard = ProblemShard(0, (x,), np.arange(8), batch_size=8, seed=0)
    (shard,) = ProblemShard.on_device([shard], DEVICE)
    with pytest.raises(ProblemError) as refused:
        ModuleObjective(Problem(nn.Linear(2, 1), loss, (x,), (x,))).try_out(shard)
    message = str(refused.value)
    assert message.startswith(
        "cuda is out of memory: 3 weights of 1.2e-08 GB in all, and 8 samples at once; it has "
    )
    assert "\n" not in message


def test_the_simulator_computes_on_a_gpu() -> None:
    """Gradients and evaluations; what comes out is what the processor gives, to rounding."""
    options: dict[str, Any] = {"workload": TINY, "num_workers": 3, "steps": 1}
    on_gpu, on_cpu = (execute(config("ssgd", **options, device=name)) for name in (DEVICE, "cpu"))
    assert on_gpu.cluster.device == DEVICE
    # Of one step: their generators differ, and so do the units that dropout leaves out.
    np.testing.assert_allclose(on_gpu.weights.vector, on_cpu.weights.vector, atol=0.05)
    assert on_gpu.evaluations[0].found.loss == pytest.approx(on_cpu.evaluations[0].found.loss, rel=1e-4)


@pytest.mark.parametrize("order", ["direct", "ring"])
def test_nccl_makes_the_mean(order: Order) -> None:
    """Of the values of one process, as there is one GPU; a group that is dropped makes none."""
    store = open_store("127.0.0.1")
    meeting = Meeting("127.0.0.1", store.port, 1, "127.0.0.1", DEVICE)
    group = ReducingGroup(join_store(meeting), meeting, 0, 1)
    values = [torch.arange(1001.0, device=DEVICE), torch.ones(1001, device=DEVICE)]
    torch.testing.assert_close(group.mean(values, [[0, 1]], order), sum(values) / 2)
    group.drop()
    with pytest.raises(GroupBroken):
        group.mean(values, [[0, 1]], order)


@pytest.mark.ray
def test_workers_that_share_a_gpu_all_reduce() -> None:
    """NCCL wants a GPU for each process, so they add on the processor: a server's weights, bit for bit."""
    options: dict[str, Any] = {"workload": TINY, "num_workers": 2, "steps": 5, "engine": "ray"}
    options |= {"device": DEVICE, "gpus_per_worker": 0.5}
    served, reduced = (execute(config("ssgd", **options, topology=t)) for t in ("server", "allreduce"))
    assert reduced.error is None
    assert reduced.weights.vector.tobytes() == served.weights.vector.tobytes()


@pytest.mark.ray
def test_two_workers_share_a_gpu() -> None:
    """They are placed on it, train, and are evaluated on it too."""
    options: dict[str, Any] = {"workload": TINY, "num_workers": 2, "steps": 20, "engine": "ray"}
    ended = execute(config("ssgd", **options, device=DEVICE, gpus_per_worker=0.5))
    assert ended.error is None
    assert not ended.notes
    assert ended.cluster.device == DEVICE
    first, last = ended.evaluations[0].found, ended.evaluations[-1].found
    assert last.loss < first.loss
    made = make_workload(config("ssgd", workload=TINY, num_workers=2))
    found = made.evaluate(ended.weights.vector)
    assert found
    assert last.loss == pytest.approx(found.loss, rel=1e-4)


@pytest.mark.ray
@pytest.mark.parametrize("compress", ["topk:.1", "powersgd:2", "int8"])
def test_results_from_a_gpu_travel_compressed(compress: str) -> None:
    """Codecs work on the processor, for gradients and memory of a GPU too: both engines send as much, and
    agree in the loss.
    """
    options: dict[str, Any] = {
        "workload": TINY, "device": DEVICE, "num_workers": 2, "steps": 6, "compress": compress,
    }  # fmt: skip
    ran = [
        execute(config("ssgd", **options)),
        execute(config("ssgd", engine="ray", gpus_per_worker=0.5, **options)),
    ]
    assert ran[0].cluster.device == DEVICE
    assert ran[0].cluster.traffic.by_direction == ran[1].cluster.traffic.by_direction
    losses = [one.evaluations[-1].found.loss for one in ran]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize("carries", ["frozen", "spectral", "average", "teacher"])
def test_a_module_carries_the_same_on_a_gpu(carries: str) -> None:
    """Weights and the loss of evaluations, to rounding: of workers whose tasks take turns on one GPU."""
    asked: dict[str, Any] = {
        "workload": CARRYING,
        "carries": carries,
        "num_workers": 3,
        "steps": 8,
        "lr": 0.005,
    }
    there, here = (execute(config("asgd", **asked, device=device)) for device in (DEVICE, "cpu"))
    np.testing.assert_allclose(there.weights.vector, here.weights.vector, rtol=1e-3, atol=1e-4)
    assert there.evaluations[-1].found.loss == pytest.approx(here.evaluations[-1].found.loss, rel=1e-3)
