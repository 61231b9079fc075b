"""Runs with mixtures of experts: every mode trains them, and evaluations say how the experts are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dsgd
from dsgd.core.routing import ExpertUse, agreement, dropped, max_violation
from dsgd.data import make_workload
from dsgd.models.moe.domains import DomainClassifier, domain_loss
from dsgd.models.moe.mixture import active_weights, mixtures
from dsgd.models.networks.transformer import flops_per_token
from dsgd.models.objectives.module_objective import ModuleObjective
from dsgd.records.reader import read_record
from dsgd.records.writer import RunRecord
from dsgd.running.execute import Ended, execute
from dsgd.running.quick_run import config
from dsgd.show.report.build import build_report
from dsgd.strategies import modes

SMALL: dict[str, Any] = {
    "workload": "moe",
    "experts": 4,
    "layers": 2,
    "width": 8,
    "num_workers": 3,
    "lr": 0.2,
}
SPLIT = {"partition": "label"}


def used(ended: Ended) -> ExpertUse:
    """Return how the experts are used by the last weights."""
    found = ended.evaluations[-1].found.experts
    assert found is not None
    return found


def gradient(options: dict[str, Any], of: Any = None, **objective: Any) -> dict[str, Tensor]:
    """Return a worker's gradient at the initial weights, by the names of the parameters."""
    made = make_workload(config("ssgd", **(SMALL | options)))
    assert isinstance(made.objective, ModuleObjective)
    problem = made.objective.problem
    if of is not None:
        problem = problem._replace(loss=of)
    w = torch.from_numpy(made.objective.initial_weights(0))[None]
    _, g = ModuleObjective(problem, **objective).loss_and_gradient(w, made.shards[:1], [0])
    sizes = {name: p.numel() for name, p in problem.module.named_parameters()}
    return dict(zip(sizes, torch.split(g[0], list(sizes.values())), strict=True))


@pytest.mark.parametrize("parts", [2, 5])
def test_accumulation_counts_each_token_once(parts: int) -> None:
    """A mini-batch in parts has the gradient of the whole, the balance's and the z-loss's too."""
    whole = gradient({"router_z": 0.1})
    for name, g in gradient({"router_z": 0.1}, accumulate=parts).items():
        torch.testing.assert_close(g, whole[name], rtol=1e-5, atol=1e-6)
    assert whole["layers.0.balance"].any()


def recomputed(module: nn.Module, x: Tensor, domain: Tensor, y: Tensor) -> Tensor:
    """Return the loss with layers whose activations are computed again in the backward pass."""
    assert isinstance(module, DomainClassifier)
    kept = [layer.forward for layer in mixtures(module)]
    try:
        for layer, forward in zip(mixtures(module), kept, strict=True):
            layer.forward = lambda rows, again=forward: checkpoint(again, rows, use_reentrant=False)  # type: ignore[method-assign,misc]
        return domain_loss(module, x, domain, y)
    finally:
        for layer in mixtures(module):
            del layer.forward


def test_activation_checkpointing_counts_each_token_once() -> None:
    """Layers that are computed again in the backward pass give the same gradients, bit for bit."""
    plain = gradient({"router_z": 0.1})
    for name, g in gradient({"router_z": 0.1}, of=recomputed).items():
        assert torch.equal(g, plain[name]), name


@pytest.mark.crossing(one_in=6)
@pytest.mark.parametrize("mode", modes())
def test_every_mode_trains_a_mixture(mode: str) -> None:
    """The loss on held-out data falls from that of a uniform guess, and evaluations have the loads."""
    own = {"easgd": {"moving_rate": 0.3}, "diloco": {"lr": 0.01}, "noloco": {"lr": 0.003}}.get(mode, {})
    own |= {"streaming": {"lr": 0.003}}.get(mode, {})
    cfg = config(mode, **(SMALL | own | {"layers": 1}), steps=24, compute_time="exponential:1")
    ended = execute(cfg)
    assert ended.error is None
    first, last = ended.evaluations[0].found, ended.evaluations[-1].found
    assert first.loss == pytest.approx(np.log(4))
    assert last.loss < first.loss
    for layer in used(ended).load:
        assert sum(layer) == pytest.approx(1, abs=1e-5)


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("localsgd", {"local_steps": 4, "capacity": 1.0}),
        ("localsgd", {"local_steps": 4, "topology": "allreduce"}),
        ("ssgd", {"topology": "sharded:2"}),
    ],
)
def test_both_engines_see_the_same_experts(mode: str, options: dict[str, Any]) -> None:
    """On Ray and in the simulator the weights have the same bytes, and evaluations the same numbers, of the
    workers, too; what is fetched for them is in the bytes of both.
    """
    all_options = SMALL | SPLIT | {"steps": 8, "eval_every": 4, "num_workers": 2} | options
    real, simulated = (execute(config(mode, **all_options, engine=name)) for name in ("ray", "sim"))
    assert real.weights.vector.tobytes() == simulated.weights.vector.tobytes()
    assert [e.found.experts for e in real.evaluations] == [e.found.experts for e in simulated.evaluations]
    assert [e.bytes for e in real.evaluations] == [e.bytes for e in simulated.evaluations]
    assert used(simulated).workers.keys() == {0, 1}
    star = execute(config(mode, **all_options | {"topology": "server"}, engine="sim"))
    assert used(simulated) == used(star)


def test_evaluations_count_what_the_weights_choose() -> None:
    """Loads, entropy and MaxVio are those of one pass of the module with these weights over the test data."""
    ended = execute(config("ssgd", **SMALL, steps=6))
    made = make_workload(ended.cfg)
    assert isinstance(made.objective, ModuleObjective)
    module = made.objective.module_at(ended.weights.vector)
    assert made.objective.problem.test is not None
    module(made.objective.problem.test[0])
    for layer, load, entropy in zip(mixtures(module), used(ended).load, used(ended).entropy, strict=True):
        assert layer.last is not None
        assert load == pytest.approx((layer.load / layer.load.sum()).tolist(), abs=1e-6)
        assert entropy == pytest.approx(float(layer.last.entropy), abs=1e-5)
    assert used(ended).max_violation == max(max(load) * 4 - 1 for load in used(ended).load)


@pytest.mark.parametrize("balance", ["bias", "loss"])
def test_a_gradient_shows_the_loads_of_its_mini_batch(balance: str) -> None:
    """Where workers return gradients, each one's loads are those of its last mini-batch."""
    ended = execute(config("ssgd", **SMALL, **SPLIT, steps=3, balance=balance))
    before = execute(config("ssgd", **SMALL, **SPLIT, steps=2, balance=balance)).weights.vector
    made = make_workload(ended.cfg)
    assert isinstance(made.objective, ModuleObjective)
    module = made.objective.module_at(before)
    shares = used(ended).workers
    assert set(shares) == {0, 1, 2}
    for worker, loads in shares.items():
        shard: Any = made.shards[worker]
        module(shard.batch(2)[0])
        for layer, load in zip(mixtures(module), loads, strict=True):
            assert load == pytest.approx((layer.load / layer.load.sum()).tolist(), abs=2e-6)


def test_workers_with_the_same_weights_agree() -> None:
    """Without learning all choose alike; with unequal data and own steps they do so less and less."""
    options = SMALL | SPLIT | {"local_steps": 8, "steps": 8}
    same = used(execute(config("localsgd", **options | {"lr": 1e-9})))
    assert (same.agreement, same.agreement_with_server) == (1.0, 1.0)
    apart = used(execute(config("localsgd", **options | {"lr": 0.5})))
    assert apart.agreement is not None
    assert apart.agreement_with_server is not None
    assert apart.agreement < 0.95
    assert apart.agreement < apart.agreement_with_server  # the mean is nearer to each than they are
    groups = used(execute(config("localsgd", **options | {"lr": 0.5, "ranks_per_worker": 2})))
    assert groups.agreement == pytest.approx(apart.agreement, abs=0.02)


def test_agreement_is_of_sets() -> None:
    """The order of a token's experts does not count; each layer counts the same."""
    a = torch.tensor([[0, 1], [2, 3]])
    assert agreement([a], [a.flip(1)]) == 1
    assert agreement([a, a], [torch.tensor([[1, 2], [0, 1]]), a]) == (0.25 + 1) / 2


def test_what_is_dropped_follows_from_the_loads() -> None:
    """The share of the choices that a training pass drops is what its loads have beyond the capacity."""
    torch.manual_seed(0)
    made = make_workload(config("ssgd", **SMALL, capacity=0.75))
    assert isinstance(made.objective, ModuleObjective)
    module = made.objective.problem.module.train()
    module(made.objective.problem.train[0][:64])  # T K / E = 32: the capacity is a whole number
    for layer in mixtures(module):
        assert layer.last is not None
        share = tuple((layer.load / 128).tolist())
        assert dropped((share,), 0.75) == pytest.approx(float(layer.last.dropped) / 128)
    assert max_violation(((0.25, 0.25, 0.25, 0.25),)) == 0


def test_the_record_and_the_report_show_the_experts(tmp_path: Path) -> None:
    """Lines of evals.jsonl, summary.json, the table and a figure have them; other models have none of it."""
    for name, mode in (("a", "localsgd"), ("b", "ssgd")):
        cfg = config(mode, **SMALL, capacity=1.0, steps=8, eval_every=4, out=str(tmp_path), run_name=name)
        execute(cfg, record=RunRecord(cfg))
    record = read_record(tmp_path / "a")
    last = record.evals[-1].experts
    assert last is not None
    assert record.summary.eval.experts is not None
    assert record.summary.eval.experts.max_violation == last.max_violation
    assert set(last.workers) == {0, 1, 2}
    assert record.eval_frame()["agreement"][-1] == last.agreement
    page = build_report(tmp_path).read_text()
    assert "How are the experts used?" in page
    assert (tmp_path / "figures/experts-2.svg").is_file()
    assert "MaxVio</th>" in page
    table = (tmp_path / "results.csv").read_text().splitlines()[0].split(",")
    assert {"max_violation", "router_entropy", "idle_experts", "dropped", "agreement"} <= set(table)
    other = config("ssgd", steps=2, out=str(tmp_path / "other"), run_name="c")
    execute(other, record=RunRecord(other))
    assert "experts" not in json.loads((tmp_path / "other/c/summary.json").read_text())["eval"]
    assert "How are the experts used?" not in build_report(tmp_path / "other").read_text()


def test_a_run_that_goes_on_evaluates_as_one_that_never_stopped(tmp_path: Path) -> None:
    """Evaluations of experts before and after a driver's loss are those of a run without it."""
    options = SMALL | {"steps": 8, "local_steps": 2, "eval_every": 2}
    whole = execute(config("localsgd", **options))
    lost = {"faults": "driver@update=3+1", "checkpoint_every": "1"}
    cfg = config("localsgd", **options, **lost, out=str(tmp_path), run_name="a")
    broken = execute(cfg, record=RunRecord(cfg))
    assert [e.found for e in broken.evaluations] == [e.found for e in whole.evaluations]


TEXT = b"".join(b"%d bottles of beer on the wall. " % n for n in range(400))


def test_gpt_with_experts_is_used_like_gpt(tmp_path: Path) -> None:
    """It is sampled, evaluated and exported; a token's flops are those of the experts that it is given to."""
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT)
    run = dsgd.run(
        "ssgd", workload="gpt", data=str(file), context=16, eval_samples=512, experts=4, top_k=2, steps=30,
        num_workers=2, batch_size=2, optimizer="adamw", lr=3e-3, out=str(tmp_path / "runs"), run_name="a",
        engine="sim",
    )  # fmt: skip
    found = run.summary["eval"]
    assert found["bits_per_byte"] < 7.5
    loaded = dsgd.load(tmp_path / "runs/a")
    assert loaded.evaluate().loss == pytest.approx(found["loss"])
    assert loaded.sample("9", tokens=8, seed=1) == loaded.sample("9", tokens=8, seed=1)
    module: Any = loaded.module()
    of_experts = sum(p.numel() for layer in mixtures(module) for p in layer.expert_parameters())
    weights = sum(p.numel() for p in module.parameters())
    assert active_weights(module) == weights - of_experts // 2 - 2 * 4  # of two layers, 4 biases each
    assert flops_per_token(module, 16) == 6 * active_weights(module) + 12 * 2 * 64 * 16
