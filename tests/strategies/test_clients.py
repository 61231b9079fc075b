"""Rounds in which some of the workers take part: federated averaging."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import dsgd
from dsgd.data import make_workload
from dsgd.running.quick_run import config, run, same_bytes

FEW: dict[str, Any] = {"num_workers": 6, "steps": 24, "local_steps": 4, "sample_clients": 2, "momentum": 0.0}


def clients(ran: Any) -> list[tuple[int, ...]]:
    return [tuple(done.worker for done in update.dones) for update in ran.updates]


@pytest.mark.parametrize("mode", ["localsgd", "diloco"])
def test_each_round_has_k_clients_drawn_from_the_seed(mode: str) -> None:
    """The budget is spent exactly; another seed draws others, another machine's speed does not."""
    ran = run(mode, **FEW)
    assert [len(set(some)) for some in clients(ran)] == [2] * (6 * 24 // (2 * 4))
    assert sum(done.batches for update in ran.updates for done in update.dones) == 6 * 24
    assert clients(ran) == clients(run(mode, compute_time="exponential:1", slowdown="1=9", **FEW))
    assert clients(ran) != clients(run(mode, seed=1, **FEW))


def test_the_last_rounds_spend_what_is_left_exactly() -> None:
    """After a round of 4 clients with 2 steps, 7 of 15 mini-batches are left: one of each, and of three."""
    ran = run("localsgd", num_workers=5, steps=3, local_steps=2, sample_clients=4)
    assert [[done.batches for done in update.dones] for update in ran.updates] == [[2] * 4, [1] * 4, [1] * 3]


def test_all_workers_are_drawn_equally_often() -> None:
    """Over 3,000 rounds of 2 of 6 each takes part in a third, within four standard deviations."""
    ran = run("localsgd", **{**FEW, "steps": 1000, "local_steps": 1}, workload="none")
    counts = Counter(worker for some in clients(ran) for worker in some)
    assert len(clients(ran)) == 3000
    assert all(abs(counts[worker] - 1000) < 4 * (3000 * 2 / 9) ** 0.5 for worker in range(6))


def test_all_clients_are_plain_local_sgd() -> None:
    plain = {name: value for name, value in FEW.items() if name != "sample_clients"}
    for mode in ("localsgd", "diloco"):
        assert same_bytes(run(mode, **plain), run(mode, **{**FEW, "sample_clients": 6}))


def test_with_samples_it_is_federated_averaging() -> None:
    """McMahan et al. 2017, algorithm 1: the clients' weights, by their shares of the clients' samples, after
    plain steps from the server's; each goes on in its data where it was when it last took part.
    """
    options = FEW | {"workload": "digits", "partition": "iid,uneven=8", "aggregate": "mean,samples"}
    ran = run("localsgd", **options)
    workload = make_workload(ran.cfg)
    shards = workload.shards[0].on_device(workload.shards, "cpu")
    sizes = [len(shard) for shard in cast("list[Any]", workload.shards)]
    assert max(sizes) > 4 * min(sizes)
    w, seen = ran.updates[0].dones[0].origin.vector, Counter[int]()
    for update in ran.updates:
        ends = []
        for done in update.dones:
            x = torch.from_numpy(w.copy())
            for step in range(seen[done.worker], seen[done.worker] + 4):
                shard = shards[done.worker]
                x -= ran.cfg.lr * workload.objective.loss_and_gradient(x[None], [shard], [step])[1][0]
            seen[done.worker] += 4
            ends.append(x.numpy())
        w = np.average(ends, axis=0, weights=[sizes[done.worker] for done in update.dones])
        assert update.weights.vector == pytest.approx(w, abs=1e-4)
        w = update.weights.vector


@pytest.mark.parametrize("mode", ["localsgd", "diloco"])
def test_a_run_that_goes_on_draws_the_same_clients(mode: str, tmp_path: Path) -> None:
    options = FEW | {"engine": "sim", "out": tmp_path, "checkpoint_every": "disk=1000"}
    whole = dsgd.run(mode, **options, run_name="whole")
    dsgd.run(mode, **{**options, "steps": 8}, run_name="parts")
    parts = dsgd.run(resume=tmp_path / "parts", steps=24)
    assert whole.summary["weights_sha256"] == parts.summary["weights_sha256"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sample_clients": 9}, "--sample-clients 9: must be at most --num-workers 6"),
        ({"topology": "allreduce:ring"}, "needs a mode in which every update waits for all workers"),
        ({"aggregate": "krum:1"}, "needs 5 results an update, and gets 2"),
    ],
)
def test_what_a_round_of_some_cannot_do_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"^--") as refused:
        config(mode="localsgd", **{**FEW, **options})
    assert words in str(refused.value)
