"""Workers with their own weights: graphs, what mixing conserves, who waits for whom, who leaves and joins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.core.weights import Weights
from dsgd.running.quick_run import QuickRun, config, run, same_bytes
from dsgd.scenario.graphs import NAMES, Graph, shares
from dsgd.scenario.links import Links, PeerLinks
from dsgd.theory.mixing import eigenvalues, matrix

PEERS = ("dpsgd", "sgp", "adpsgd", "noloco")
ROUNDS = ("dpsgd", "sgp", "noloco")
STAR = "0 1\n0 2  # the centre\n\n0 3\n"


def file(folder: Path, text: str) -> str:
    (folder / "graph.txt").write_text(text)
    return str(folder / "graph.txt")


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(NAMES), st.integers(0, 9), st.integers(0, 3))
def test_mixing_is_doubly_stochastic_and_pushes_conserve(
    data: st.DataObject, name: str, t: int, seed: int
) -> None:
    """Whoever is there, the weights of a round are positive, rows and columns of a mixing sum to 1, and
    columns of a push do.
    """
    members = sorted(data.draw(st.sets(st.integers(0, 30), min_size=1, max_size=12)))
    graph = Graph(name)
    for mixing in (graph.mixing(t, members, seed), graph.one_peer(t, members, seed)):
        w = matrix(mixing)
        assert list(mixing) == members
        assert (w >= -1e-15).all()
        np.testing.assert_allclose(w.sum(axis=0), 1, atol=1e-12)
        np.testing.assert_allclose(w.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(matrix(shares(graph.pushes(t, members, seed))).sum(axis=0), 1, atol=1e-12)


def test_a_file_s_edges_have_metropolis_weights(tmp_path: Path) -> None:
    """On a star of four the centre's edges weigh 1/4, and a leaf keeps 3/4; who is absent has no edge."""
    graph = Graph.parse(file(tmp_path, STAR))
    w = matrix(graph.mixing(0, range(4), 0))
    np.testing.assert_allclose(w[0], 0.25)
    np.testing.assert_allclose(np.diag(w)[1:], 0.75)
    assert graph.mixing(0, [1, 2, 3], 0) == {1: {}, 2: {}, 3: {}}
    assert eigenvalues(graph.mixing(0, range(4), 0))[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("mode", "text", "rule"),
    [
        ("dpsgd", "0 1\n2 3\n", "must be connected, and worker 0 and worker 2 are not"),
        ("dpsgd", "0 1\n1 2\n2 9\n", "must name workers 0 to 3, and it has worker 9"),
        ("dpsgd", "0 1\n1 1\n", "must not join worker 1 to itself; see line 2"),
        ("dpsgd", "0 1\n0 1\n", "must name each edge once; line 2 repeats line 1"),
        ("adpsgd", "0 one\n", "must have two workers in each line, like `0 1`; see line 1"),
        ("noloco", "# nothing\n", "must have an edge like `0 1` in each line, and the file has none"),
        ("sgp", "0 1\n1 2\n2 3\n", "must lead along its arcs from every worker to every other"),
        ("sgp", None, "and there is no file"),
    ],
)
def test_a_graph_that_cannot_be_used_is_refused(
    mode: str, text: str | None, rule: str, tmp_path: Path
) -> None:
    """A bad file of edges is refused in one line that names the option, the rule and the line."""
    name = "elsewhere.txt" if text is None else file(tmp_path, text)
    with pytest.raises(ValueError, match="--graph") as refused:
        config(mode, num_workers=4, graph=name)
    assert rule in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_mode_without_a_server_refuses_options_of_one() -> None:
    """A server's service time has no effect without a server, so it is refused."""
    with pytest.raises(ValueError, match=r"--server-time .* needs a server, and --mode dpsgd has none"):
        config("dpsgd", server_time="constant:1")


def own(update: Any, version: int) -> dict[int, Any]:
    """Return what the workers have in the round of a version, by worker."""
    nodes: dict[int, Any] = update.weights.kept["nodes"][version]
    return nodes


@pytest.mark.parametrize("options", [{"graph": "random"}, {"graph": "ring"}, {}])
def test_push_sum_conserves(options: dict[str, Any]) -> None:
    """The weights w_i of push-sum sum to P in every round; where pushes are random they differ."""
    outcome = run(
        "sgp", num_workers=5, steps=30, compute_time="exponential:1", workload="quadratic", **options
    )
    for update in outcome.updates:
        w = [node[1] for node in own(update, update.weights.version).values()]
        assert sum(w) == pytest.approx(5, abs=1e-12)
        assert (max(w) > min(w) + 0.01) == (options.get("graph") == "random" and update.weights.version > 0)


@pytest.mark.parametrize("mixing", ["before", "after"])
def test_mixing_leaves_the_mean_alone_bit_for_bit(mixing: str) -> None:
    """With weights of 1/4 and dyadic optima, curvature and step size nothing is rounded: the mean of D-PSGD
    is SSGD's, bit for bit.
    """
    options: dict[str, Any] = {
        "num_workers": 4,
        "steps": 5,
        "workload": "quadratic",
        "dim": 3,
        "optima": "0,1,2,5",
        "lr": 0.25,
    }
    gossip = run("dpsgd", graph="complete", mixing=mixing, **options)
    assert same_bytes(gossip, run("ssgd", **options))


@pytest.mark.parametrize("mode", PEERS)
def test_one_worker_is_plain_sgd_bit_for_bit(mode: str) -> None:
    """With P = 1 nothing is mixed, and nothing is rounded that plain SGD does not round."""
    own_options: dict[str, Any] = {"inner": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0, "local_steps": 1}
    options: dict[str, Any] = own_options if mode == "noloco" else {}
    alone: dict[str, Any] = {"num_workers": 1, "steps": 30, "lr": 0.1, "momentum": 0.5}
    plain = run("localsgd", **{**alone, "local_steps": 1, "momentum": 0.0})
    ours = run(mode, **{**alone, "momentum": 0.0}, **options)
    if mode == "noloco":  # x + (y - x) rounds once
        np.testing.assert_allclose(ours.w, plain.w, rtol=1e-5, atol=1e-6)
    else:
        assert same_bytes(ours, plain)


def test_a_worker_waits_for_its_neighbours_alone() -> None:
    """On a ring of eight, where worker 0 is slow in its first mini-batch only, those far away finish their
    first rounds as if nothing had happened, and an update waits for all.
    """
    outcome = run(
        "dpsgd", mixing="after", num_workers=8, steps=6, workload="none", compute_time="constant:1",
        faults="pause:0=3@t=0",
    )  # fmt: skip
    ended = {(done.worker, done.read): done.finished_s for done in outcome.dones}
    assert [ended[4, t] for t in range(4)] == [1, 2, 3, 4]  # its distance to worker 0 is 4
    assert [ended[1, t] for t in range(3)] == [1, 5, 6]
    assert outcome.updates[0].finished_s == 4
    assert outcome.updates[-1].finished_s == 9


@pytest.mark.parametrize(
    ("mode", "options", "round_s"),
    [
        # alpha + n/B after the step; a ring sends twice over each link
        ("sgp", {}, 1 + 0.5 + 2.0),
        ("sgp", {"graph": "ring"}, 1 + 0.5 + 2.0),
        ("dpsgd", {"graph": "ring", "mixing": "after"}, 1 + 0.5 + 4.0),
        ("noloco", {"local_steps": 1}, 1 + 0.5 + 4.0),  # two vectors
        # beside the step
        ("dpsgd", {"graph": "ring"}, 0.5 + 4.0),
    ],
)
def test_a_round_takes_the_time_of_its_links(mode: str, options: dict[str, Any], round_s: float) -> None:
    """With constant times a round takes the step, the latency and the bytes over the busiest link, or what is
    longer where both go on at once.
    """
    outcome = run(
        mode, num_workers=4, steps=8, workload="quadratic", dim=50, compute_time="constant:1", latency_s=0.5,
        bytes_per_s=100.0, **options,
    )  # fmt: skip
    ends = [update.finished_s for update in outcome.updates]
    assert np.diff(ends)[1:] == pytest.approx(round_s, abs=1e-9)


def test_bytes_are_those_of_the_edges() -> None:
    """Workers send one vector a round for each edge and direction, and nothing to a server."""
    size, p, steps = 4 * 50, 8, 6
    for mode, options, per_round in (
        ("dpsgd", {"graph": "ring", "mixing": "after"}, 2 * p),
        ("dpsgd", {"graph": "exponential", "mixing": "after"}, 3 * p),
        ("dpsgd", {"graph": "complete", "mixing": "after"}, (p - 1) * p),
        ("sgp", {}, p),
        ("noloco", {"local_steps": 1}, 2 * p),
    ):
        outcome = run(mode, num_workers=p, steps=steps, workload="quadratic", dim=50, **options)
        sent = outcome.cluster.traffic.by_direction
        assert sent == {
            "to_workers": 0, "to_server": 0, "fetched": 0, "between_servers": 0,
            "between_workers": steps * per_round * size,
        }  # fmt: skip


def test_links_take_messages_one_by_one() -> None:
    """A worker's link sends one message after the other, and takes in one after the other, alpha later."""
    links = PeerLinks(1.0, Links(4, 10.0))
    for source, target in ((0, 1), (0, 2), (3, 2)):
        links.travel(source, target, 20, now_s=5.0)
    assert (links.begin(1, 5.0), links.begin(2, 5.0), links.begin(2, 5.0)) == (8.0, 12.0, 5.0)
    links.travel(1, 0, 20, now_s=6.0)  # what it has since 8 s
    assert links.begin(0, 6.0) == 11.0


def test_a_joiner_starts_at_the_mean() -> None:
    """A worker that joins begins at the weights that were evaluated last, in all modes."""
    for mode in PEERS:
        short: dict[str, Any] = {"local_steps": 1} if mode == "noloco" else {}
        outcome = run(
            mode, num_workers=4, steps=12, workload="quadratic", optima="0,1,2,5", compute_time="constant:1",
            faults="leave:2@t=4; join:2@t=6.5", **short,
        )  # fmt: skip
        first = next(d for d in outcome.dones if d.worker == 2 and d.started_s >= 6.5)
        versions = [Weights(np.ones(1, np.float32)), *(update.weights for update in outcome.updates)]
        before = next(w for w in versions if w.version == first.read)
        np.testing.assert_array_equal(first.origin.vector, before.vector)


@pytest.mark.parametrize("mode", ROUNDS)
def test_results_of_later_rounds_wait_for_their_update(mode: str) -> None:
    """Where one worker is slow, others are ahead: results are kept, and each is in its round's update."""
    options: dict[str, Any] = {"local_steps": 2} if mode == "noloco" else {}
    outcome = run(mode, num_workers=8, steps=20, compute_time="exponential:1", slowdown="0=4", **options)
    assert any(update.weights.kept["came"] for update in outcome.updates)
    assert outcome.tally.ignored == 0
    for update in outcome.updates:
        assert [done.worker for done in update.dones] == list(range(8))
        assert {done.read for done in update.dones} == {update.weights.version - 1}


def consensus_of(outcome: QuickRun) -> list[float]:
    return [update.measured["consensus"] for update in outcome.updates if "consensus" in update.measured]


def test_consensus_is_measured_as_it_is_defined() -> None:
    """The recorded distance is the mean squared distance of the workers' weights to the evaluated mean."""
    outcome = run("dpsgd", num_workers=5, steps=10, workload="quadratic", optima="0,1,2,3,4", dim=2)
    for update in outcome.updates:
        x = np.array([node[0] for node in own(update, update.weights.version).values()], np.float64)
        expected = np.mean(np.sum((x - x.mean(axis=0)) ** 2, axis=1))
        assert update.measured["consensus"] == pytest.approx(expected, rel=1e-5)
    asynchronous = run("adpsgd", num_workers=5, steps=10, workload="quadratic", optima="0,1,2,3,4", dim=2)
    assert len(consensus_of(asynchronous)) == 10  # once in P updates
