"""What the experts of a mixture compute: products of the rows of each with its two matrices.

On a GPU torch computes a product in groups in one kernel. On a CPU it is a loop over the groups; what counts
there is that the hidden units of all experts at once do not fit a cache, and that memory of such a size is
given back to the operating system after each use, and is cleared when it is used again. So there the experts
are taken in runs, whose hidden units fit.

Shapes: N rows, d width, E experts, h hidden units of an expert.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import grouped_mm, relu

_AT_ONCE = 1 << 17  # bytes of hidden units: a part of a core's own cache, beside the weights
_ALIGNED = 16  # bytes, of a row: grouped_mm takes no other


class Compute(Protocol):
    """Applies experts to rows (N, d) that are sorted by expert: the first load[0] are of expert 0, and so on.

    up: (E, d, h). down: (E, h, d). Returns (N, d).
    """

    def __call__(self, rows: Tensor, load: Tensor, up: Tensor, down: Tensor) -> Tensor: ...


def by_loop(rows: Tensor, load: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Apply one expert after another: what `by_grouped_product` is held to."""
    of_each = zip(torch.split(rows, load.tolist()), up.unbind(), down.unbind(), strict=True)
    return torch.cat([relu(part @ own_up).square() @ own_down for part, own_up, own_down in of_each])


def by_grouped_product(rows: Tensor, load: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Apply all experts in one product in groups for each layer; on a CPU, a run of experts at a time."""
    at_once = rows.device.type != "cpu" or len(rows) <= _rows_at_once(up)
    if not (_alignable(up) and at_once):
        return cast(Tensor, _InRuns.apply(rows, load, up, down, torch.is_grad_enabled()))
    ends = load.cumsum(0).to(torch.int32)
    hidden = cast(Tensor, _SquaredRelu.apply(grouped_mm(rows, up, offs=ends)))
    return grouped_mm(hidden, down, offs=ends)


class _SquaredRelu(torch.autograd.Function):
    """relu(x)^2, with a pass less over memory in either direction than its two steps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        r = relu(x)
        ctx.save_for_backward(r)
        return r * r

    @staticmethod
    def backward(ctx: Any, *of_output: Tensor) -> Tensor:
        r: Tensor = ctx.saved_tensors[0]
        return (of_output[0] * r).mul_(2)


class _Runs(NamedTuple):
    """Experts one after another, cut into runs."""

    experts: list[int]
    rows: list[int]
    ends: list[Tensor | None]
    """Where the rows of each expert end, within its run; None for a run of one expert."""

    def of_rows(self, x: Tensor) -> tuple[Tensor, ...]:
        """Cut rows (N, ...) into those of the runs."""
        return torch.split(x, self.rows)

    def of_experts(self, weights: Tensor) -> list[Tensor]:
        """Cut weights (E, ...) into those of the runs; those of one expert are a matrix."""
        return [part[0] if len(part) == 1 else part for part in torch.split(weights, self.experts)]


def _runs(load: Tensor, up: Tensor) -> _Runs:
    """Cut the experts into runs whose hidden units fit, of one expert at least."""
    at_once = _rows_at_once(up) if _alignable(up) else -1
    ends: list[list[int]] = []
    for count in load.tolist():
        begun = ends[-1][-1] if ends else 0
        if ends and begun + count <= at_once:
            ends[-1].append(begun + count)
        else:
            ends.append([count])
    return _Runs(
        [len(of) for of in ends],
        [of[-1] for of in ends],
        [None if len(of) == 1 else torch.tensor(of, dtype=torch.int32) for of in ends],
    )


def _rows_at_once(up: Tensor) -> int:
    """Return of how many rows the hidden units fit."""
    return _AT_ONCE // (up.shape[2] * up.element_size())


def _alignable(up: Tensor) -> bool:
    """Whether grouped_mm takes rows of these lengths."""
    return not any(length * up.element_size() % _ALIGNED for length in up.shape[1:])


def _product(a: Tensor, b: Tensor, ends: Tensor | None, out: Tensor) -> None:
    """Write a @ b, for each expert of a run, where it belongs."""
    if ends is None:
        torch.mm(a, b, out=out)
    else:
        out.copy_(grouped_mm(a, b, offs=ends))


class _InRuns(torch.autograd.Function):
    """Two layers of experts, one run after another. Of a run it keeps r = relu(rows @ up), if a gradient is
    wanted; the output is r^2 @ down.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, load: Tensor, up: Tensor, down: Tensor, learns: bool) -> Tensor:
        runs, out, kept = _runs(load, up), torch.empty_like(rows), []
        parts = (runs.of_rows(rows), runs.of_experts(up), runs.of_experts(down), runs.ends, runs.of_rows(out))
        for x, own_up, own_down, ends, y in zip(*parts, strict=True):
            r = x.new_empty(len(x), up.shape[2])
            _product(x, own_up, ends, r)
            r.relu_()
            _product(r * r, own_down, ends, y)
            if learns:
                kept.append(r)
        ctx.save_for_backward(rows, up, down, *kept)
        ctx.runs = runs
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_output: Tensor) -> tuple[Tensor | None, ...]:
        rows, up, down, *kept = ctx.saved_tensors
        runs, g = ctx.runs, of_output[0]
        of_rows, of_up, of_down = torch.empty_like(rows), torch.empty_like(up), torch.empty_like(down)
        twice = 2 * g  # exact, and shorter than the hidden units: d(r^2) = 2 r dr
        parts = (
            *(runs.of_rows(x) for x in (rows, g, twice, of_rows)),
            *(runs.of_experts(weights) for weights in (up, down, of_up, of_down)),
            kept,
            runs.ends,
        )
        for x, y, y2, of_x, own_up, own_down, of_own_up, of_own_down, r, ends in zip(*parts, strict=True):
            hidden = r * r
            _product(hidden.mT, y, ends, of_own_down)
            _product(y2, own_down.mT, ends, hidden)
            hidden.mul_(r)
            _product(x.mT, hidden, ends, of_own_up)
            _product(hidden, own_up.mT, ends, of_x)
        return of_rows, None, of_up, of_down, None
