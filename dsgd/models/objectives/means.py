"""Losses and scores as means: over samples, or over something else of which a sample has more or less.

A function returns the mean over the samples that it gets; or a total and a count, like that of tokens, and
those of all parts are added up, and divided once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dsgd.core.problem import ProblemError
from dsgd.core.shards import Indices
from dsgd.core.weights import Vector
from dsgd.models.objectives.rank_sums import in_order

A_SUM = "a sum over samples"
MEAN = "take the mean, as reduction='mean' does"
_ROUNDED = 200, 3000
"""How often on a CPU, and on a GPU, what is put together from parts may have been rounded."""
_SHARE_ROUNDED = 1e-4, 5e-3
"""By how much of its length a gradient may differ on a CPU, and on a GPU, without a reason."""
_MOST_AT_ONCE = 256  # samples
_MOST_NUMBERS = 2**26
"""In one output of a part of a module: 256 MiB of float32."""


def total_and_count(found: Any, name: str) -> tuple[Any, Any]:
    """Return what a loss or a score has returned as a total and its count, or as a mean and None.

    Raises ProblemError unless each is one number.
    """
    total, count = found if isinstance(found, tuple | list) and len(found) == 2 else (found, None)
    for number in (total, 1 if count is None else count):
        shape = getattr(number, "shape", None if isinstance(number, int | float) else type(number).__name__)
        if shape is not None and shape != ():
            has = f"shape {tuple(shape)}" if not isinstance(shape, str) else shape
            raise ProblemError(
                f"its {name} has {has}; return one number, the mean, or its total and its count"
            )
    return total, count


def to_minimise(found: Any, share: float) -> tuple[Tensor, Tensor | None]:
    """Return what is added up for the loss of a mini-batch, and what its sum is divided by at the end, if by
    anything.

    found: what the loss of a part has returned. share: of the mini-batch's samples, which the part has.
    Raises ProblemError unless it is one number that depends on the weights.
    """
    loss, count = total_and_count(found, "loss")
    if not isinstance(loss, Tensor):
        raise ProblemError(
            f"its loss has {type(loss).__name__}; return a tensor, the mean over the mini-batch"
        )
    if not loss.requires_grad:
        raise ProblemError("its loss does not depend on the parameters; compute it with the module given")
    if getattr(count, "requires_grad", False):
        raise ProblemError("the count of its loss depends on the parameters; return one that does not")
    if count is None:
        return (loss if share == 1 else share * loss), None
    if share == 1:
        return loss / count, None
    return loss, torch.as_tensor(count, dtype=torch.float32, device=loss.device)


def added(parts: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """Return the sums of what was added up for a loss, and of counts if there are any."""
    losses, counts = zip(*parts, strict=True)
    return in_order(losses).float(), None if counts[0] is None else in_order(counts)


def divided(loss: Tensor, g: Tensor, count: Tensor | None) -> Tensor:
    """Return the mean loss () of a mini-batch, and make the gradient g (D,) of its total that of the mean."""
    if count is None:
        return loss
    g.div_(count)
    return loss / count


def of_all(parts: Sequence[tuple[float, Any]], name: str) -> float:
    """Return the mean over all samples. parts: of each its share of them, and what a loss or a score has
    returned.
    """
    counted = [(share, *total_and_count(found, name)) for share, found in parts]
    if counted[0][2] is None:
        return math.fsum(share * float(mean) for share, mean, _ in counted)
    count = math.fsum(float(count) for *_, count in counted)
    return math.fsum(float(total) for _, total, _ in counted) / count if count else math.nan


def require_parts(
    compute: Callable[[Indices], Any], batch_size: int, ranks: int, accumulate: int, recorded: bool
) -> tuple[str, ...]:
    """Raise ProblemError unless the loss of a mini-batch is that of its parts together, if it is computed in
    more than one; for a run that has a record, return a note of it instead.

    compute: returns what the loss returns for the samples with these numbers.
    """
    parts, option = ranks * accumulate, option_of_parts(ranks, accumulate)
    count = min(batch_size, max(8, min(32, 2 * batch_size // parts))) if parts > 1 else min(batch_size, 2)
    differs = not_a_mean(compute, count, "loss")
    if parts > 1 and differs:
        why = f"{differs}, so with {option} the gradient is not the mini-batch's"
        if not recorded:
            remedy = "return its total and its count (return total, count), or leave the option out"
            remedy = f"{MEAN}, or leave the option out" if A_SUM in differs else remedy
            raise ProblemError(f"{why}; {remedy}")
        return (why,)
    return ()


def sizes(count: int, *parts: int) -> set[int]:
    """Return how many of `count` samples are in a part, once they are divided into as many, again and again.

    >>> sizes(10, 2, 2)
    {2, 3}
    """
    found = {count}
    for among in parts:
        found = {whole // among for whole in found} | {-(-whole // among) for whole in found}
    return found - {0}


def option_of_parts(ranks: int, accumulate: int) -> str:
    """Return the option that has a mini-batch computed in parts."""
    return f"--accumulate {accumulate}" if accumulate > 1 else f"--ranks-per-worker {ranks}"


def gradient_in_parts(
    gradient: Callable[[bool, int], Tensor] | None, samples: int, option: str, normalized: bool
) -> tuple[str, ...]:
    """Return in a line by how much the gradient of some samples in parts is not that of the whole, if it is
    not: layers and losses may look across the samples that are computed together.

    gradient(in parts, seed): that of the same samples (D,); None if the whole cannot be computed. One that
    fails, for lack of memory, or depends on the seed, though dropout is off, is not compared. normalized:
    whether there is batch normalization, which is named also then.
    """
    share = None
    with suppress(Exception):  # of the user's code too, which says why where it is tried
        if gradient and torch.equal(whole := gradient(False, 0), gradient(False, 1)):
            share = float((gradient(True, 0) - whole).norm() / whole.norm())
            if not share > _SHARE_ROUNDED[whole.is_cuda]:
                return ()
    if share is None and not normalized:
        return ()
    by = "differs" if share is None else f"of {samples} samples differs by {share:.2g} of its length"
    why = "something looks across the samples that are computed together"
    if normalized:
        why = "batch normalization uses each part's own statistics"
    return (f"with {option} the gradient {by} from that of the whole: {why}",)


def not_a_mean(compute: Callable[[Indices], Any], count: int, name: str) -> str | None:
    """Return in words how the mean over `count` samples differs from that of the means of four parts, and
    whether it is A_SUM; None if it does not, and of a loss that draws random numbers, of which nobody can
    tell.

    Raises ProblemError for a total and a count that are no sums.
    """
    rows = np.arange(count)
    whole = _numbers(found := compute(rows), name)
    if count < 2 or not np.isfinite(whole).all():
        return None
    parts, counted = np.array_split(rows, min(4, count)), len(whole) == 2
    shares = [1.0 if counted else len(part) / count for part in parts]
    weighed = np.array(
        [share * _numbers(compute(part), name) for share, part in zip(shares, parts, strict=True)]
    )
    together, most = weighed.sum(0), _rounding(found) * np.abs(weighed).sum(0)
    if (abs(together - whole) <= most).all():
        return None
    if (abs(_numbers(compute(rows), name) - whole) > most / 100).any():  # other random numbers
        return None
    values = [" and ".join(f"{value:.6g}" for value in numbers) for numbers in (whole, together)]
    if counted:
        raise ProblemError(
            f"the total and the count of its {name} are {values[0]} for {count} samples, and {values[1]} "
            f"added up over {len(parts)} parts; return the sum, and the total to divide it by"
        )
    adds_up = abs((weighed[:, 0] / shares).sum() - whole[0]) <= most[0] * len(parts)
    return (
        f"its {name} is {values[0]} for {count} samples, and {values[1]} as the mean of {len(parts)} parts: "
        f"it is {A_SUM if adds_up else 'no mean over samples'}"
    )


def _rounding(found: Any) -> float:
    """Return by how much of its size what is put together from parts may differ from the whole."""
    value = found[0] if isinstance(found, tuple | list) else found
    number = torch.as_tensor(value)
    kind = number.dtype if number.is_floating_point() else torch.float32
    return _ROUNDED[number.is_cuda] * torch.finfo(kind).eps


def _numbers(found: Any, name: str) -> Vector:
    return np.array([float(number) for number in total_and_count(found, name) if number is not None])


@contextmanager
def moved(weights: Sequence[Tensor]) -> Iterator[None]:
    """Have weights be a tenth of their size away from what they are, and zeros be like those of a new layer:
    as long as a layer has only zeros, many a loss is the same for all samples.
    """
    before = [tensor.detach().clone() for tensor in weights]
    with torch.no_grad():
        for tensor in weights:
            draws = torch.Generator(tensor.device).manual_seed(tensor.numel())
            noise = torch.randn(tensor.shape, generator=draws, device=tensor.device)
            of_zeros = math.prod(tensor.shape[1:]) ** -0.5 if tensor.dim() > 1 else 0.1
            tensor.add_(noise, alpha=0.1 * float(tensor.square().mean().sqrt()) or of_zeros)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, made in zip(weights, before, strict=True):
                tensor.copy_(made)


def at_once(module: nn.Module, compute: Callable[[], Any], samples: int) -> int:
    """Return how many samples are evaluated at once, whatever the options: 256, or fewer where a part of the
    module has large outputs.

    compute: runs the module on so many samples.
    """
    return max(1, min(_MOST_AT_ONCE, _MOST_NUMBERS * samples // largest_output(module, compute)))


def largest_output(module: nn.Module, compute: Callable[[], Any]) -> int:
    """Return how many numbers the largest output of a part of the module has. compute: runs the module."""
    largest = 1

    def seen(part: nn.Module, inputs: Any, outputs: Any) -> None:
        nonlocal largest
        sizes = (leaf.numel() for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor))
        largest = max(largest, *sizes, 1)

    parts = (part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule))
    hooks = [part.register_forward_hook(seen) for part in parts]
    try:
        compute()
    finally:
        for hook in hooks:
            hook.remove()
    return largest
