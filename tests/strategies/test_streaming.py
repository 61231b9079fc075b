"""Streaming DiLoCo: its fragments, its bytes, and what it is where it is DiLoCo.

Its limits and the laws of all strategies are held in tests/strategies/test_conformance.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd.running.quick_run import config, run, same_bytes

PLAIN: dict[str, Any] = {"inner": "sgd", "outer_lr": 0.5, "outer_momentum": 0.5}
DYADIC: dict[str, Any] = {
    **PLAIN, "workload": "quadratic", "optima": "0,.5,-.25,1", "dim": 7, "lr": 0.5, "num_workers": 4,
}  # fmt: skip


@pytest.mark.parametrize("pattern", ["strided", "sequential"])
@pytest.mark.parametrize(("count", "num_weights"), [(1, 5), (3, 10), (4, 4), (5, 3)])
def test_each_weight_is_in_one_fragment(pattern: str, count: int, num_weights: int) -> None:
    """N fragments have all weights, each once, and the largest at most ceil(D/N)."""
    cfg: Any = config("streaming", fragments=count, pattern=pattern)
    parts = [np.arange(num_weights)[cfg.parts.part(number, num_weights)] for number in range(count)]
    assert sorted(np.concatenate(parts)) == list(range(num_weights))
    assert [len(part) for part in parts] == [cfg.parts.size(number, num_weights) for number in range(count)]
    assert max(map(len, parts)) <= -(-num_weights // count)
    assert cfg.parts.part(0, num_weights) == cfg.parts.part(count, num_weights)


def followed(updates: int, *, count: int, overlap: int, share: float, strided: bool) -> list[Any]:
    """Return the server's weights after each update of DYADIC with H = 6, by plain loops over the rule."""
    optima = np.array([0, 0.5, -0.25, 1])[:, None]
    w, m, x = np.ones(7), np.zeros(7), np.ones((4, 7))
    length, seen, came = 6 // count, [], np.array([], int)
    for number in range(updates):
        f = number % count
        part = np.arange(7)[f::count] if strided else np.arange(f * 7 // count, (f + 1) * 7 // count)
        x[:, came] = share * x[:, came] + (1 - share) * w[came]
        for step in range(length):
            if step == length - overlap:
                sent = x[:, part].copy()
            x -= 0.5 * (x - optima)
        if not overlap:
            sent = x[:, part].copy()
        d = (w[part] - sent).mean(0)
        m[part] = 0.5 * m[part] + d
        w[part] -= 0.5 * (d + 0.5 * m[part])
        came = part
        seen.append(w.copy())
    return seen


@pytest.mark.parametrize("strided", [True, False])
@pytest.mark.parametrize(
    ("count", "overlap", "share"), [(1, 0, 0.0), (2, 1, 0.5), (3, 1, 0.25), (2, 2, 0.0), (3, 0, 0.5)]
)
def test_it_is_its_rule(count: int, overlap: int, share: float, strided: bool) -> None:
    """The weights are those of the rule, written as plain loops."""
    options: dict[str, Any] = {"fragments": count, "overlap": overlap, "local_share": share, "local_steps": 6}
    pattern = "strided" if strided else "sequential"
    ran = run("streaming", **DYADIC, **options, pattern=pattern, steps=24)
    expected = followed(len(ran.updates), count=count, overlap=overlap, share=share, strided=strided)
    assert len(ran.updates) == 24 // (6 // count)
    for update, w in zip(ran.updates, expected, strict=True):
        np.testing.assert_allclose(update.weights.vector, w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compress", ["none", "fp4", "topk:.3"])
def test_bytes_are_those_of_fragments(compress: str) -> None:
    """Each exchange sends a fragment up, encoded by itself, and one down; the first task all weights. In N
    exchanges as much is sent as by DiLoCo in one.
    """
    ran = run("streaming", fragments=3, local_steps=6, steps=24, num_workers=2, compress=compress)
    num_weights, cfg = len(ran.w), ran.cfg
    sizes = [cfg.parts.size(number, num_weights) for number in range(len(ran.updates))]  # type: ignore[attr-defined]
    of_results = cfg.compression.of_results(2)
    for number, update in enumerate(ran.updates):
        size = sizes[number]
        up = of_results.codec.num_bytes(size) if of_results else 4 * size
        down = 4 * (sizes[number - 1] if number else num_weights)
        assert {(d.bytes_to_worker, d.bytes_to_server) for d in update.dones} == {(down, up)}
    if compress == "none":
        diloco = run("diloco", local_steps=6, steps=24, num_workers=2)
        assert sum(d.bytes_to_server for d in ran.dones) == sum(d.bytes_to_server for d in diloco.dones)
        assert max(d.bytes_to_server for d in ran.dones) == 4 * -(-num_weights // 3)


def test_a_worker_that_keeps_all_of_its_own_trains_alone() -> None:
    """With a = 1 what comes back changes no worker: each goes where it would go by itself."""
    options: dict[str, Any] = {**DYADIC, "local_share": 1.0, "fragments": 2, "local_steps": 4, "steps": 16}
    together = run("streaming", **options)
    states = together.cluster.state().states
    for worker, optimum in enumerate([0, 0.5, -0.25, 1]):
        x = np.float32(1)
        for _ in range(16):
            x = x - np.float32(0.5) * (x - np.float32(optimum))
        np.testing.assert_array_equal(states[worker][0], np.full(7, x, np.float32))


def test_compression_remembers_each_fragment_by_itself() -> None:
    """What was not sent of a fragment is remembered where the fragment is, until its turn comes again."""
    ran = run("streaming", fragments=2, local_steps=4, steps=4, num_workers=1, compress="topk:.1")
    memory = ran.cluster.state().states[0][-1]
    assert len(ran.updates) == 2
    assert memory[::2].any()
    assert memory[1::2].any()


@pytest.mark.parametrize("pattern", ["strided", "sequential"])
def test_lost_processes_change_nothing(pattern: str) -> None:
    """A worker's own weights survive its process."""
    options: dict[str, Any] = {
        "fragments": 3, "local_steps": 6, "overlap": 1, "pattern": pattern, "compress": "powersgd:1",
        "num_workers": 3, "steps": 18, "compute_time": "exponential:1",
    }  # fmt: skip
    lost = run("streaming", **options, faults="kill:1@t=3; kill:0@update=4")
    assert sum(lost.cluster.restarts) == 2
    assert same_bytes(run("streaming", **options), lost)


@pytest.mark.parametrize("options", [{}, {"compress": "fp4"}], ids=str)
def test_who_takes_the_wrong_classes_sends_fragments_too(options: dict[str, Any]) -> None:
    """A worker whose labels are flipped exchanges as the others do: only its numbers differ."""
    common: dict[str, Any] = {"fragments": 2, "local_steps": 4, "steps": 8, "num_workers": 3, **options}
    honest, lied = run("streaming", **common), run("streaming", **common, faults="lie:1=labelflip")
    parts = honest.cfg.parts  # type: ignore[attr-defined]
    for a, b in zip(honest.dones, lied.dones, strict=True):
        assert (a.bytes_to_worker, a.bytes_to_server) == (b.bytes_to_worker, b.bytes_to_server)
        part = parts.part(a.read, len(a.value))
        assert not np.delete(b.value, part).any()
        assert np.abs(b.value[part] - a.origin.vector[part]).max() > 0
    assert not same_bytes(honest, lied)


@pytest.mark.thorough
@pytest.mark.ray
def test_only_fragments_travel_on_ray(ray_cluster: object) -> None:
    """On Ray the weights and the bytes are the simulator's, bit for bit."""
    options: dict[str, Any] = {
        **DYADIC,
        "dim": 90,
        "fragments": 3,
        "local_steps": 6,
        "overlap": 1,
        "steps": 12,
    }
    options |= {"padding_mb": 0.1, "num_workers": 2, "optima": "0,1"}
    both = [run("streaming", engine=engine, **options) for engine in ("ray", "sim")]
    assert same_bytes(*both)
    assert [d.bytes_to_server for d in both[0].dones] == [d.bytes_to_server for d in both[1].dones]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fragments": 9}, "--fragments 9: must be at most --local-steps 8"),
        ({"engine": "ray", "topology": "allreduce"}, "--topology allreduce: on Ray whole vectors"),
        ({"overlap": 4}, "--overlap 4: must be below local_steps/fragments = 4"),
        ({"local_share": 1.5}, "--local-share 1.5: must lie in [0, 1]"),
        ({"momentum": 0.5}, "--momentum 0.5: has no effect with --inner adamw"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    """Each is refused in one line."""
    with pytest.raises(ValueError, match=r"^--") as error:
        config("streaming", **options)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("overlap", [0, 1, 2])
def test_an_all_reduce_is_hidden_by_the_steps_after_it(overlap: int) -> None:
    """Among the workers an exchange takes its time less that of the steps after it; no weight changes."""
    options: dict[str, Any] = {
        **DYADIC, "dim": 1000, "fragments": 2, "local_steps": 6, "overlap": overlap, "steps": 12,
        "compute_time": "constant:1",
    }  # fmt: skip
    link: dict[str, Any] = {"topology": "allreduce", "bytes_per_s": 2000.0, "latency_s": 0.125}
    among = run("streaming", **options, **link)
    # All-to-all, then all-gather: of 500 weights 3/4 of 2,000 bytes leave each worker, twice.
    exchange_s = 2 * (0.125 + 0.75)
    assert among.updates[-1].finished_s == pytest.approx(4 * (3 + max(0, exchange_s - overlap)))
    assert same_bytes(run("streaming", **options), among)
