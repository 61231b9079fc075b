"""The networks that ship: what a transformer and the networks of images owe their formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dsgd.models.networks.convnets import (
    accuracy,
    classification_loss,
    flops_per_image,
    small_cnn,
    small_resnet,
)
from dsgd.models.networks.transformer import (
    Transformer,
    TransformerBlock,
    flops_per_token,
    next_token_loss,
    rotary,
    rotated,
)
from dsgd.models.networks.transformer_sizes import SIZES, TransformerSize
from dsgd.models.objectives.replica import Replica

TINY = TransformerSize(layers=2, width=32, heads=2, context=16, vocabulary=17)
UNITS = {"k": 1e3, "m": 1e6, "b": 1e9}


def transformer(*, tied: bool = True, size: TransformerSize = TINY) -> Transformer:
    torch.manual_seed(0)
    module = Transformer(size, tied=tied)
    if not tied:  # its head starts at zero, where nothing can be seen
        torch.nn.init.normal_(module.head.weight)
    return module


def tokens(*shape: int) -> Tensor:
    return torch.randint(TINY.vocabulary, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [True, False])
def test_a_later_token_does_not_change_an_earlier_prediction(tied: bool) -> None:
    """Each prediction depends on its token and those before, and on each of them."""
    module, seen = transformer(tied=tied), tokens(1, 12)
    before = module(seen)
    for place in range(12):
        changed = seen.clone()
        changed[0, place] = (changed[0, place] + 1) % TINY.vocabulary
        moved = (module(changed) - before).abs().amax(-1)[0]
        assert not moved[:place].any()
        assert (moved[place:] > 0).all()


def test_rotations_show_distances_alone() -> None:
    """The product of a query and a key is the same wherever the two stand, if their distance is."""
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(8, generator=g), torch.randn(8, generator=g)
    rotation = rotary(40, 8, torch.device("cpu"))
    products = rotated(q.expand(40, 8), rotation) @ rotated(k.expand(40, 8), rotation).T  # (40, 40)
    for distance in range(-20, 21):
        same = products.diagonal(distance)
        torch.testing.assert_close(same, same[:1].expand_as(same))
    assert len({round(float(products[0, d]), 4) for d in range(20)}) == 20


def test_rotations_keep_lengths() -> None:
    """A rotation changes no norm, and the first position is not rotated."""
    x = torch.randn(3, 10, 8, generator=torch.Generator().manual_seed(0))
    turned = rotated(x, rotary(10, 8, torch.device("cpu")))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[:, 0], x[:, 0])


def _normalized(x: Tensor) -> Tensor:
    return x / (x.square().mean() + torch.finfo(x.dtype).eps).sqrt()


def _slow_block(block: TransformerBlock, x: Tensor) -> Tensor:
    """Compute a block of one sequence x (T, d) as the papers write it: token by token, head by head."""
    length, width = x.shape
    of_head = width // block.heads
    angles = [10_000.0 ** (-2 * i / of_head) for i in range(of_head // 2)]

    def turned(v: Tensor, place: int) -> Tensor:
        out = v.clone()
        for i, angle in enumerate(angles):
            cos, sin = math.cos(place * angle), math.sin(place * angle)
            a, b = v[i], v[i + of_head // 2]
            out[i], out[i + of_head // 2] = a * cos - b * sin, a * sin + b * cos
        return out

    rows = [block.qkv.weight @ _normalized(token) for token in x]
    parts = [[row.view(3, block.heads, of_head)[n] for row in rows] for n in range(3)]
    out = []
    for t in range(length):
        heads = []
        for h in range(block.heads):
            q = turned(_normalized(parts[0][t][h]), t)
            keys = [turned(_normalized(parts[1][s][h]), s) for s in range(t + 1)]
            share = torch.stack([q @ key / math.sqrt(of_head) for key in keys]).softmax(0)
            heads.append(sum(p * parts[2][s][h] for s, p in enumerate(share)))
        y = x[t] + block.out.weight @ torch.cat(heads)
        hidden = (block.up.weight @ _normalized(y)).clamp(min=0) ** 2
        out.append(y + block.down.weight @ hidden)
    return torch.stack(out)


def test_a_block_is_the_slow_loop_of_the_papers() -> None:
    """Attention by torch's fused function equals loops over tokens, heads and features, to 1e-5."""
    torch.manual_seed(0)
    block, x = TransformerBlock(TINY), torch.randn(1, 7, TINY.width)
    with torch.no_grad():
        fast = block(x, rotary(7, TINY.width // TINY.heads, x.device))[0]
        torch.testing.assert_close(fast, _slow_block(block, x[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SIZES)
def test_a_size_has_the_weights_of_its_name(name: str) -> None:
    """To 5 %, with tied embeddings."""
    with torch.device("meta"):
        module = Transformer(SIZES[name])
    weights = sum(parameter.numel() for parameter in module.parameters())
    assert weights == pytest.approx(float(name[:-1]) * UNITS[name[-1]], rel=0.05)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("width", [64, 384])
def test_it_starts_at_the_loss_of_a_uniform_guess(width: int, tied: bool) -> None:
    """To 5 %, at any width, with tied embeddings and without."""
    torch.manual_seed(0)
    module = Transformer(replace(SIZES["100k"], width=width), tied=tied)
    seen = torch.randint(256, (2, 65))
    with torch.no_grad():
        loss = float(next_token_loss(module, seen[:, :-1], seen[:, 1:]))
    assert loss == pytest.approx(math.log(256), rel=0.05)


def test_the_gradient_of_a_tied_matrix_has_both_its_parts() -> None:
    """A view of the flat gradient holds the sum of what the embedding and the head contribute."""
    module, seen = transformer(), tokens(2, 9)
    mine = Replica(module, "cpu")
    mine.w.copy_(torch.cat([p.detach().flatten() for p in module.parameters()]))
    next_token_loss(mine.module, seen[:, :-1], seen[:, 1:]).backward()  # type: ignore[no-untyped-call]

    apart = transformer(tied=False)
    apart.load_state_dict(module.state_dict())
    apart.head.weight = torch.nn.Parameter(module.embed.weight.detach() * 64 / TINY.width)
    next_token_loss(apart, seen[:, :-1], seen[:, 1:]).backward()  # type: ignore[no-untyped-call]
    embed, head = apart.embed.weight.grad, apart.head.weight.grad
    assert embed is not None
    assert head is not None
    n = embed.numel()
    assert len(mine.g) == sum(p.numel() for p in apart.parameters()) - n
    torch.testing.assert_close(mine.g[:n], (embed + head * 64 / TINY.width).flatten())


@pytest.mark.parametrize("tied", [True, False])
def test_flops_are_those_that_torch_counts(tied: bool) -> None:
    """6 N + 12 L d T is what torch counts in a gradient, with attention's backward pass as two forward."""
    module, seen = transformer(tied=tied), tokens(2, 17)
    with FlopCounterMode(display=False) as counter:
        next_token_loss(module, seen[:, :-1], seen[:, 1:]).backward()  # type: ignore[no-untyped-call]
    found = {str(operation): flops for operation, flops in counter.get_flop_counts()["Global"].items()}
    forward = [flops for name, flops in found.items() if "attention" in name and "backward" not in name]
    assert found["aten.mm"] + 3 * sum(forward) == 2 * 16 * flops_per_token(module, 16)


@pytest.mark.parametrize(("network", "weights"), [(small_cnn, 206_922), (small_resnet, 77_754)])
def test_a_network_of_images_learns_two_of_them(network: object, weights: int) -> None:
    """Its weights are as many as its docstring says, and a few steps tell two images apart."""
    torch.manual_seed(0)
    module = network(10)  # type: ignore[operator]
    assert sum(parameter.numel() for parameter in module.parameters()) == weights
    x, y = torch.zeros(4, 28, 28, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    x[1::2, 9:19, 9:19] = 255
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    for _ in range(15):
        optimizer.zero_grad()
        classification_loss(module, x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert float(accuracy(module, x, y)) == 1.0
    assert flops_per_image(module) > 6 * 10 * 64
