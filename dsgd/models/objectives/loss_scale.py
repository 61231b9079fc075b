"""torch's own loss scaler for gradients in float16, as a tensor that a worker's tasks carry.

A gradient in float16 loses what is below 6e-8 and overflows above 65,504, so the loss is multiplied by a
scale first and the gradient is divided by it (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2). One
that overflows is left out, and the scale halved; after 2,000 that do not, it is doubled.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler


class ScaledLosses(nn.Module):
    """The scale of one replica's losses.

    state (3,): the scale, how many gradients there were since it last changed, and how many were left out.
    """

    def __init__(self, device: str | torch.device) -> None:
        super().__init__()
        kind = torch.device(device).type
        self._scaler = GradScaler(kind)
        first = self._scaler.get_scale()
        self.register_buffer("state", torch.tensor([first, 0.0, 0.0], device=device))

    def begin(self) -> None:
        """Go on from what the tensor says: another task may have written it."""
        scale, since, _ = self._now.tolist()
        own = self._scaler.state_dict()
        self._scaler.load_state_dict(own | {"scale": scale, "_growth_tracker": int(since)})

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to take the gradient of."""
        return self._scaler.scale(loss)

    def finish(self, g: Tensor) -> None:
        """Divide a gradient (D,) by the scale; one that has overflowed becomes zero, and is counted."""
        step = _Step(g)
        self._scaler.unscale_(step)
        self._scaler.step(step)
        self._scaler.update()
        if not step.taken:
            g.zero_()
        own = self._scaler.state_dict()
        left_out = self._now[2] + (not step.taken)
        self._now.copy_(torch.tensor([own["scale"], own["_growth_tracker"], left_out]))

    @property
    def _now(self) -> Tensor:
        return cast(Tensor, self.state)


class _Step(torch.optim.Optimizer):
    """What the scaler takes for an optimizer of one vector: whether it would have taken its step."""

    def __init__(self, g: Tensor) -> None:
        stand_in = nn.Parameter(g, requires_grad=False)
        stand_in.grad = g
        super().__init__([stand_in], {})
        self.taken = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # it has no loss to return
        self.taken = True
