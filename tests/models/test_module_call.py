"""How a module is called is learned from its loss; a token that is cached is one that is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dsgd import Problem
from dsgd.core.problem import ProblemError
from dsgd.models.moe.mixture_options import MixtureOptions
from dsgd.models.networks.token_cache import TokenCache
from dsgd.models.networks.transformer import Transformer
from dsgd.models.networks.transformer_sizes import TransformerSize
from dsgd.models.objectives.module_call import ModuleCall, Spec

X = torch.arange(24.0).view(6, 4)
FLOAT = torch.float32


class Both(NamedTuple):
    total: Tensor
    rows: Tensor


class Called(nn.Module):
    """Applies a function to whatever it is called with."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.forward = function


def call_of(forward: Callable[..., Any], loss: Callable[..., Any], **more: Any) -> ModuleCall:
    return ModuleCall(Called(forward), Problem(nn.Module(), loss, (X,), (X,), **more))


def test_names_and_shapes_are_those_of_the_call() -> None:
    """Arguments go by position or by name, in mappings and in tuples; what has no samples stays as it is."""

    def forward(x: Tensor, pair: Any, *, scale: float, more: Any = None) -> Any:
        return {"sum": x + pair[0] + pair[1], "all": Both(x.sum(), scale * x)}

    call = call_of(forward, lambda m, x: m(x, (x, 2 * x), scale=3.0, more={"mask": x > 2}))
    assert call.form.inputs == {
        "x": Spec(FLOAT, (-1, 4)),
        "pair.0": Spec(FLOAT, (-1, 4)),
        "pair.1": Spec(FLOAT, (-1, 4)),
        "mask": Spec(torch.bool, (-1, 4)),
    }
    assert call.form.outputs == {"sum": Spec(FLOAT, (-1, 4)), "rows": Spec(FLOAT, (-1, 4))}
    assert call.form.optional == {"mask"}
    assert call.form.rows
    found = call({"x": X, "pair.0": X, "pair.1": X})
    assert found.keys() == {"sum", "rows"}
    assert torch.equal(found["sum"], 3 * X)
    assert torch.equal(found["rows"], 3 * X)


def test_what_an_output_says_is_one_too() -> None:
    call = call_of(
        lambda x: x, lambda m, x: m(x), decode=lambda output: [str(int(i)) for i in output.argmax(1)]
    )
    assert call.form.outputs["decoded"] == Spec(None, (-1,))
    assert call({"x": X})["decoded"] == ["3"] * 6


def test_samples_that_are_not_the_first_size_are_not_shared() -> None:
    """As in recurrent modules that take time first: callers do not go together."""
    call = call_of(lambda x: x + 1, lambda m, x: m(x.T))
    assert call.form.inputs == {"x": Spec(FLOAT, (4, -1))}
    assert not call.form.rows


def test_what_needs_what_may_be_left_out_needs_it() -> None:
    """A default that the module cannot do without is no default."""
    call = call_of(lambda x, y=None: x * y, lambda m, x: m(x, y=x))
    assert call.form.optional == frozenset()


def test_derivatives_that_a_module_takes_itself_work() -> None:
    """Like forces, which are the slope of an energy."""

    def slope(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_(True)
            return torch.autograd.grad(x.square().sum(), x)[0]

    call = call_of(slope, lambda m, x: m(x))
    found = call({"x": X})["output"]
    assert torch.equal(found, 2 * X)
    assert not found.requires_grad


@pytest.mark.parametrize(
    "loss",
    [lambda m, x: x.sum(), lambda m, x: m(3.0), lambda m, x: m(torch.ones(2, 2))],
    ids=["not", "number", "same"],
)
def test_a_loss_that_does_not_call_with_samples_is_one_line(loss: Callable[..., Any]) -> None:
    with pytest.raises(ProblemError, match=r"^its loss does not call the module[^\n]*$"):
        call_of(lambda x: x, loss)


@pytest.fixture(scope="module", params=[None, 4], ids=["dense", "experts"])
def transformer(request: pytest.FixtureRequest) -> Transformer:
    torch.manual_seed(0)
    size = TransformerSize(layers=2, width=16, heads=2, context=24, vocabulary=11)
    experts = request.param
    options = experts and MixtureOptions(
        experts=experts,
        top_k=2,
        capacity=None,
        balance="bias",
        balance_rate=1.0,
        balance_weight=0.0,
        router_z=0.0,
    )
    module = Transformer(size, mixture=options)
    nn.init.normal_(module.embed.weight)
    return module.eval() if options else module.double().eval()  # products of experts are of float32


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_a_cached_token_is_an_uncached_one(transformer: Transformer, data: st.DataObject) -> None:
    """For sequences of any lengths that are added to in any company, and for a place that is used again."""
    cache, texts = TokenCache(transformer, 3, 24), dict[int, list[int]]()
    with torch.inference_mode():
        for _ in range(data.draw(st.integers(1, 12))):
            places = data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=1, unique=True))
            n = data.draw(st.integers(1, 3))
            for place in places:
                if len(texts.get(place, [])) + n > 24 or data.draw(st.integers(0, 9)) == 0:
                    texts[place] = []
            new = [data.draw(st.lists(st.integers(0, 10), min_size=n, max_size=n)) for _ in places]
            before = [len(texts.get(place, [])) for place in places]
            found = cache.logits(torch.tensor(new), places, before)
            for place, ids, logits in zip(places, new, found, strict=True):
                texts[place] = texts.get(place, []) + ids
                expected = transformer(torch.tensor([texts[place]]))[0, -1]
                part = 1e-12 if logits.dtype == torch.float64 else 1e-6
                assert (logits - expected).abs().max() <= part * expected.abs().max()
