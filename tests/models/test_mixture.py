"""A mixture of experts: what its layer owes the formulas, and what training owes the loads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from dsgd.models.moe.mixture import Mixture, penalty
from dsgd.models.moe.mixture_options import MixtureOptions
from dsgd.models.moe.mixture_products import by_loop

D, H = 16, 24


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Without torch's own threads, which only slow down products this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mixture(experts: int = 8, top_k: int = 2, *, spread: float = 1.0, **options: Any) -> Mixture:
    """Return a mixture whose router prefers some experts."""
    torch.manual_seed(0)
    made = Mixture(D, H, MixtureOptions(experts=experts, top_k=top_k, **options))
    with torch.no_grad():
        made.router.mul_(spread)
        made.balance.normal_(0, 0.05)
    return made


def tokens(count: int = 40) -> Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(1))


def slow(m: Mixture, x: Tensor) -> Tensor:
    """Compute the outputs (T, d) token by token and expert by expert, as the papers write it."""
    options, out = m.options, []
    for token in x:
        scores = (m.router @ token).sigmoid()
        biased = scores + (options.balance_rate * m.balance if options.balance == "bias" else 0)
        chosen = sorted(range(options.experts), key=(-biased.detach()).tolist().__getitem__)[: options.top_k]
        whole = sum(scores[e] for e in chosen) if options.top_k > 1 or options.experts == 1 else 1.0
        parts = [scores[e] / whole * ((m.up[e].T @ token).clamp(min=0) ** 2 @ m.down[e]) for e in chosen]
        out.append(sum(parts[1:], parts[0]))
    return torch.stack(out)


def gradients(m: Mixture, of: Tensor) -> dict[str, Tensor]:
    found = torch.autograd.grad(of, list(m.parameters()), allow_unused=True, materialize_grads=True)
    return dict(zip((name for name, _ in m.named_parameters()), found, strict=True))


def close(got: Tensor, wanted: Tensor, relative: float) -> None:
    """Require that two tensors agree, relative to the largest entry."""
    assert (got - wanted).detach().abs().max() <= relative * wanted.detach().abs().max()


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (8, 1), (4, 4), (5, 3), (1, 1)])
def test_it_is_the_slow_loop(experts: int, top_k: int) -> None:
    """Outputs, and gradients by all weights and inputs, are those of a loop over tokens, to 1e-6."""
    m, x = mixture(experts, top_k), tokens().requires_grad_()
    weights = torch.arange(float(D))
    fast, reference = m(x), slow(m, x)
    close(fast, reference, 1e-6)
    of_x, wanted = (
        torch.autograd.grad((y * weights).sum(), x, retain_graph=True)[0] for y in (fast, reference)
    )
    close(of_x, wanted, 2e-6)
    of_fast, of_slow = (gradients(m, (y * weights).sum()) for y in (fast, reference))
    for name in ("router", "up", "down") if experts > 1 else ("up", "down"):  # one expert: no choice
        close(of_fast[name], of_slow[name], 2e-6)
    assert not of_fast["balance"].any()  # it chooses, and does not weigh


@pytest.mark.parametrize(("width", "count"), [(16, 4), (16, 1500), (16, 6000), (5, 4), (5, 1500)])
@pytest.mark.parametrize("top_k", [1, 2])
def test_the_product_in_groups_is_the_loop_over_experts(top_k: int, width: int, count: int) -> None:
    """All experts at once, in runs, or one by one where rows are not a multiple of 16 bytes: what a product
    of matrices for each expert gives, to 1e-6; idle experts too.
    """
    torch.manual_seed(0)
    m = Mixture(width, H, MixtureOptions(experts=8, top_k=top_k, balance_rate=10))
    with torch.no_grad():
        m.balance[3] = -1
    x = torch.randn(count, width)
    fast = m(x)
    assert m.load[3] == 0
    of_fast = gradients(m, fast.square().sum())
    m.compute = by_loop
    looped = m(x)
    close(fast, looped, 1e-6)
    for name, g in gradients(m, looped.square().sum()).items():
        close(of_fast[name], g, 5e-6)


def test_one_expert_is_dense() -> None:
    """A mixture of one expert is a perceptron."""
    m, x = mixture(1, 1), tokens()
    dense = linear(relu(linear(x, m.up[0].T)).square(), m.down[0].T)
    close(m(x), dense, 1e-6)


@pytest.mark.parametrize("options", [{}, {"capacity": 0.75}])
def test_the_order_of_experts_is_nothing(options: dict[str, Any]) -> None:
    """Experts in another order give the same outputs and the same penalty, and loads in that order."""
    m, other, x = mixture(**options), mixture(**options), tokens()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        for parameter, of in zip(other.parameters(), m.parameters(), strict=True):
            parameter.copy_(of[order])
    close(other(x), m(x), 1e-6)
    assert torch.equal(other.load, m.load[order])


@given(
    count=st.integers(1, 60),
    experts=st.integers(1, 9),
    top_k=st.integers(1, 9),
    capacity=st.none() | st.floats(0.05, 9),
)
@settings(max_examples=60, deadline=None)
def test_every_choice_is_kept_or_dropped(
    count: int, experts: int, top_k: int, capacity: float | None
) -> None:
    """Loads add up to T K; an expert computes no more than its capacity; kept and dropped are T K."""
    m = mixture(experts, min(top_k, experts), capacity=capacity)
    computed: list[Tensor] = []

    def counted(rows: Tensor, load: Tensor, up: Tensor, down: Tensor) -> Tensor:
        computed.append(load)
        assert len(rows) == load.sum()
        return by_loop(rows, load, up, down)

    m.compute = counted
    m(tokens(count))
    choices = count * m.options.top_k
    assert m.last is not None
    assert m.load.sum() == choices
    assert computed[0].sum() + m.last.dropped == choices
    most = math.inf if capacity is None else math.ceil(capacity * choices / experts)
    assert (computed[0] == m.load.clamp(max=most)).all()


def test_capacity_takes_first_choices_and_earlier_tokens_first() -> None:
    """With places for 3 of 4 mean loads: who is kept is what a loop over choices, then tokens, finds."""
    m, x = mixture(4, 2, capacity=0.75, spread=3.0), tokens(16)
    out = m(x)
    assert m.last is not None
    free, wanted = [math.ceil(0.75 * 32 / 4)] * 4, torch.zeros_like(x)
    scores = linear(x, m.router).sigmoid()
    for k in range(2):
        for t in range(16):
            e = int(m.last.chosen[t, k])
            if free[e]:
                free[e] -= 1
                weight = scores[t, e] / scores[t, m.last.chosen[t]].sum()
                wanted[t] += (weight * (relu(x[t] @ m.up[e]).square() @ m.down[e])).detach()
    assert m.last.dropped > 0
    close(out, wanted, 1e-6)


def test_capacity_that_suffices_is_none() -> None:
    """Outputs and gradients with room for all are those without a capacity, bit for bit."""
    x, free, room = tokens(), mixture(), mixture(capacity=4.0)  # E / K: all tokens in one expert
    for name, g in gradients(room, room(x).square().sum()).items():
        assert torch.equal(g, gradients(free, free(x).square().sum())[name])


def test_an_evaluation_drops_nothing() -> None:
    """Where the module is evaluated, a capacity has no effect, and there is no penalty."""
    m, free, x = mixture(capacity=0.1, router_z=1.0).eval(), mixture().eval(), tokens()
    assert torch.equal(m(x), free(x))
    assert penalty(m) == 0


def test_the_balance_is_moved_by_the_loads_error_and_costs_nothing() -> None:
    """The penalty is 0; its gradient is each expert's share less the mean; no other weight has one."""
    m = mixture()
    m(tokens())
    assert penalty(m) == 0
    of = gradients(m, torch.as_tensor(penalty(m)))
    torch.testing.assert_close(of["balance"], m.load / 80 - 1 / 8)
    assert not any(g.any() for name, g in of.items() if name != "balance")
    assert of["balance"].norm() < 1


@pytest.mark.parametrize("balance", ["loss", "none"])
def test_without_the_bias_the_balance_has_no_effect(balance: str) -> None:
    """Its gradient is the loads' error all the same, and the outputs do not depend on it."""
    m, x = mixture(balance=balance), tokens()
    before = m(x)
    of = gradients(m, torch.as_tensor(penalty(m)))
    torch.testing.assert_close(of["balance"], m.load / 80 - 1 / 8)
    with torch.no_grad():
        m.balance.add_(torch.arange(8.0))
    assert torch.equal(m(x), before)


def test_losses_of_the_router_are_their_formulas() -> None:
    """Values and gradients of the z-loss and of Switch's loss are those of their formulas, by autograd."""
    x = tokens()
    m = mixture(balance="loss", balance_weight=0.3, router_z=0.2)
    m(x)
    got = torch.as_tensor(penalty(m))
    logits = x @ m.router.T
    p = logits.sigmoid() / logits.sigmoid().sum(1, keepdim=True)
    share = torch.stack([(m.last.chosen == e).sum() for e in range(8)]) / 80 if m.last else 0
    wanted = 0.3 * 8 * (share * p.mean(0)).sum() + 0.2 * (logits.exp().sum(1).log() ** 2).mean()
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(gradients(m, got)["router"], gradients(m, wanted)["router"])


def test_even_loads_have_a_balancing_loss_of_one() -> None:
    """Switch's loss is at its weight where scores and loads are even."""
    m = mixture(4, 4, balance="loss", balance_weight=0.3, spread=0.0)
    m(tokens())
    torch.testing.assert_close(penalty(m), torch.tensor(0.3))


def whole(m: nn.Module, parts: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the mean of the gradients of the parts of a mini-batch, of equal sizes."""
    assert isinstance(m, Mixture)
    found = [gradients(m, m(x).square().mean() + penalty(m)) for x in parts]
    return {name: sum(g[name] for g in found) / len(parts) for name in found[0]}  # type: ignore[misc]


def test_the_mean_of_workers_is_the_batch_of_all() -> None:
    """The mean of 4 workers' gradients is that of their mini-batches together, balance and z-loss too."""
    m, x = mixture(router_z=0.1), tokens(64)
    apart, together = whole(m, x.chunk(4)), whole(m, [x])
    for name, g in together.items():
        close(apart[name], g, 2e-6)


def test_a_skewed_router_becomes_balanced() -> None:
    """From two experts with most of the load, the balance alone makes all even in 60 small steps."""
    m = mixture(balance_rate=4.0)
    with torch.no_grad():
        m.balance.zero_()
        m.router[:2] += 0.3
    x = tokens(512) + 0.5
    worst = []
    for _ in range(60):
        m(x)
        worst.append(float(m.load.max() / m.load.float().mean() - 1))
        error = gradients(m, torch.as_tensor(penalty(m)))["balance"]
        with torch.no_grad():
            m.balance.sub_(0.05 * error)
    assert worst[0] > 1.0
    assert worst[-1] < 0.03


def test_weight_decay_leaves_an_error_of_decay_times_the_parameter() -> None:
    """Where SGD decays the parameter, too, loads rest where each share is off by -decay x bias / rate.

    docs/workloads.md has the formula.
    """
    m, x, decay = mixture(balance_rate=2.0, spread=1.0), tokens(1024) + 0.5, 0.1
    for _ in range(150):
        m(x)
        error = gradients(m, torch.as_tensor(penalty(m)))["balance"]
        with torch.no_grad():
            m.balance.sub_(0.1 * (error + decay * m.balance))
    bias = 2.0 * m.balance.detach()
    assert bias.abs().max() > 0.08
    torch.testing.assert_close(error, -decay * bias / 2.0, rtol=0, atol=2e-3)


def test_bf16_computes_the_experts_and_not_the_router() -> None:
    """Under autocast the experts' products are in bf16; the choices are those of float32."""
    m, x = mixture(), tokens()
    exact, before = m(x), m.load
    with torch.autocast("cpu", torch.bfloat16):
        rough = m(x)
    assert rough.dtype == torch.bfloat16
    assert torch.equal(m.load, before)
    close(rough.float(), exact, 2e-2)
