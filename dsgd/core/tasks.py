"""The tasks that a worker can compute.

A task is a value: its fields are its parameters, and calling it computes what it stands for, for
several workers at once. On Ray each call has one worker (P = 1); the simulator hands over all the
tasks in flight, so a thousand small gradients cost one large matrix product.

The same task on the same shard, step, weights and state gives the same bytes. Most tasks have no state.
One that does (the moments of an optimizer, a worker's own weights) declares how many vectors of it a
worker keeps; the engine hands them to the worker's next task, even if the worker was lost in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dsgd.core.rules import Schedule
from dsgd.core.weights import is_left_out

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.model import Objective
    from dsgd.core.shards import Shard


class Task(Protocol):
    """A computation over one or more mini-batches; hashable and picklable.

    It may have a method `value_bytes(num_weights)`: how many bytes its value has when it travels (see below).
    What `--compress` asks of it: `relative`, whether its value is weights, so that what travels is how far
    they have moved; and `part(num_weights)`, the slice of the weights that its value is of, if not of all.
    Such a task can be computed by a group of ranks if it has `asks_for_own`, true: then it asks the objective
    which of the weights it sees are in its part (`Objective.own`), and ranks see slices.
    `late`: how many of its mini-batches come after its value is made, and hide the time of an all-reduce.
    """

    @property
    def batches(self) -> int:
        """How many mini-batches it takes, and so by how much it moves the worker's clock."""

    @property
    def state_rows(self) -> int:
        """How many vectors (D,) the worker keeps between two such tasks."""

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute for P workers, of which the p-th has shards[p], is at mini-batch steps[p] and read w[p].

        w: float32, shape (P, D). state: what its tasks before returned, shape (P, state_rows, D); zeros in a
        worker's first. Returns the mean mini-batch losses (P,), the values (P, D) and the new state.
        """


def value_bytes(task: Task, num_weights: int) -> int:
    """Return how many bytes the value of a task has when it travels: 4 for each weight, unless the task says
    otherwise.

    >>> value_bytes(gradient, 1000)
    4000
    """
    own: Callable[[int], int] | None = getattr(task, "value_bytes", None)
    return 4 * num_weights if own is None else own(num_weights)


@dataclass(frozen=True)
class TaskAround:
    """What tasks that change another one's work have in common: they take and keep as much as that one."""

    task: Task

    @property
    def batches(self) -> int:
        return self.task.batches

    @property
    def state_rows(self) -> int:
        return self.task.state_rows


@dataclass(frozen=True)
class Gradient:
    """The gradient of one mini-batch's mean loss at the weights read."""

    batches: ClassVar[int] = 1
    state_rows: ClassVar[int] = 0

    def __call__(
        self,
        objective: Objective,
        shards: Sequence[Shard],
        steps: Sequence[int],
        w: Tensor,
        state: Tensor,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return *objective.loss_and_gradient(w, shards, steps, out), state


gradient = Gradient()


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """What tasks of several mini-batches on the worker's own weights have in common.

    batches: mini-batches. lr: step size, times the schedule's factor for the worker's clock, if there is one.
    clip_norm: longer gradients are shortened to it. weight_decay: see the tasks.
    """

    batches: int
    lr: float
    schedule: Schedule | None = None
    clip_norm: float | None = None
    weight_decay: float = 0.0
    relative: ClassVar[bool] = True
    """Whether the value is weights: what travels compressed is how far they have moved from those read."""

    def step_size(self, now: Sequence[int], w: Tensor) -> Any:
        """Return the step size of each worker at its mini-batch, as a number or shape (P, 1)."""
        if self.schedule is None:
            return self.lr
        return w.new_tensor([[self.lr * self.schedule.factor(step)] for step in now])

    def gradient(
        self, objective: Objective, shards: Sequence[Shard], now: Sequence[int], w: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (P,) and the gradients (P, D), clipped, at the workers' mini-batches `now`."""
        loss, g = objective.loss_and_gradient(w, shards, now)
        if self.clip_norm is not None:
            g = g * (self.clip_norm / (objective.norm(g) + 1e-6)).clamp(max=1.0)
        return loss, g


def stepped(left: Tensor | None, before: Tensor, after: Tensor) -> Tensor:
    """Return what a step has made (P, D) of something, and what it was `before` where the step `left` it out:
    as torch does with a parameter that has no gradient.
    """
    return after if left is None else before.where(left, after)


@dataclass(frozen=True, kw_only=True)
class LocalSGD(LocalSteps):
    """Plain or heavy-ball SGD for `batches` mini-batches from the weights read; returns the local weights.

    The velocity starts at 0 in every task or, with `keeps_velocity`, is the worker's: a task begins with what
    the one before ended with. Weight decay is added to the gradient, before the momentum.
    """

    momentum: float = 0.0
    keeps_velocity: bool = False

    @property
    def state_rows(self) -> int:
        return int(self.keeps_velocity)

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        total_loss = w.new_zeros(len(shards))  # (P,)
        velocity = state[:, 0] if self.keeps_velocity else w.new_zeros(w.shape)  # (P, D)
        for h in range(self.batches):
            now = [step + h for step in steps]
            loss, g = self.gradient(objective, shards, now, w)
            left = None if objective.times_left_out(str(w.device)) is None else is_left_out(g)
            if self.weight_decay:
                g = g + self.weight_decay * w
            velocity = stepped(left, velocity, self.momentum * velocity + g)
            w = stepped(left, w, w - self.step_size(now, w) * velocity)
            total_loss += loss
        return total_loss / self.batches, w, velocity[:, None] if self.keeps_velocity else state


@dataclass(frozen=True, kw_only=True)
class LocalAdamW(LocalSteps):
    """AdamW for `batches` mini-batches from the weights read; both moments are the worker's.

    Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2: the weight decay is decoupled. The bias
    correction counts the worker's own mini-batches, so all of them must be in such tasks.
    """

    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    state_rows: ClassVar[int] = 2

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        total_loss = w.new_zeros(len(shards))  # (P,)
        m, v = state.unbind(1)  # (P, D) each: first and second moment
        for h in range(self.batches):
            now = [step + h for step in steps]
            loss, g = self.gradient(objective, shards, now, w)
            count = torch.tensor(now, dtype=torch.float64, device=w.device)[:, None] + 1  # (P, 1)
            left = None
            if (times := objective.times_left_out(str(w.device))) is not None:
                left, count = is_left_out(g), (count - times).clamp(min=1)  # (P, D)
            m = stepped(left, m, self.beta1 * m + (1 - self.beta1) * g)
            v = stepped(left, v, self.beta2 * v + (1 - self.beta2) * g * g)
            m_hat = m / (1 - self.beta1**count).to(w.dtype)
            v_hat = v / (1 - self.beta2**count).to(w.dtype)
            decayed = m_hat / (v_hat.sqrt() + self.epsilon) + self.weight_decay * w
            w = stepped(left, w, w - self.step_size(now, w) * decayed)
            total_loss += loss
        return total_loss / self.batches, w, torch.stack([m, v], dim=1)


@dataclass(frozen=True, kw_only=True)
class Elastic(LocalSteps):
    """SGD on the worker's own weights x, which an elastic force draws to the centre w that it reads.

        x <- x - lr g(x) - rate (x - w),    then  x <- x - lr g(x)  for the rest of `batches`

    with `momentum` m:  v <- m v - lr g(x + m v),  x <- x + v - ...; a worker's first x is the centre. Weight
    decay is added to the gradient. Returns x. Zhang, Choromanska and LeCun 2015 (arXiv 1412.6651), algorithms
    1 and 2.
    """

    rate: float
    momentum: float = 0.0
    state_rows: ClassVar[int] = 2

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        total_loss = w.new_zeros(len(shards))  # (P,)
        x, v = state.unbind(1)  # (P, D) each: the worker's weights and velocity
        first = torch.tensor([step == 0 for step in steps], device=w.device)
        x = torch.where(first[:, None], w, x)
        pull = self.rate * (x - w)
        for h in range(self.batches):
            now, at = [step + h for step in steps], x + self.momentum * v
            loss, g = self.gradient(objective, shards, now, at)
            left = None if objective.times_left_out(str(w.device)) is None else is_left_out(g)
            if self.weight_decay:
                g = g + self.weight_decay * at
            v = stepped(left, v, self.momentum * v - self.step_size(now, w) * g)
            moved = stepped(left, x, x + v)
            x = moved - pull if h == 0 else moved
            total_loss += loss
        return total_loss / self.batches, x, torch.stack([x, v], dim=1)
