"""The loss of a module that a group of processes, its ranks, computes together: torch's FSDP2.

Each rank has a slice of every parameter, of the gradient and of what a task keeps, and a part of each
mini-batch. Tasks work element by element, so a rank runs them on its slice of the vector as if there were no
others; what talks to the other ranks is the loss, its gradient and the norm of a gradient.

    fsdp     every parameter in G slices (Zhao et al. 2023, arXiv 2304.11277)
    hsdp:R   R replicas of the parameters, each in G / R slices
    ddp      G replicas: each rank has all

The blocks of the module (dsgd/models/objectives/module_blocks.py) are gathered one at a time, when they are
computed, and what is outside of them for the whole of a gradient. Batch normalization normalises over a
rank's part of the mini-batch, as in torch, and its statistics are estimated anew before an evaluation. Where
other buffers change, each rank begins a gradient with what the first one has left.

Shapes: G ranks, D weights of the module, d of a rank's slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map_only

from dsgd.core.model import Evaluation, Objective
from dsgd.core.problem import ProblemError
from dsgd.models.objectives.expert_parallel import hold_own_experts
from dsgd.models.objectives.loss_failures import failures_of
from dsgd.models.objectives.means import (
    added,
    divided,
    gradient_in_parts,
    moved,
    option_of_parts,
    require_parts,
    to_minimise,
)
from dsgd.models.objectives.module_blocks import blocks, recompute_activations
from dsgd.models.objectives.module_objective import (
    ModuleObjective,
    ProblemShard,
    require_finite,
)
from dsgd.models.objectives.module_state import Carried, estimating, in_eval_mode
from dsgd.models.objectives.module_trial import frozen_in_place, in_place, watched
from dsgd.models.objectives.process_wide import seed_generators
from dsgd.models.objectives.rank_layout import RankLayout
from dsgd.models.objectives.rank_sums import SumInRankOrder, summed
from dsgd.models.objectives.replica import trained
from dsgd.scenario.group_options import Parallel

if TYPE_CHECKING:
    from dsgd.core.shards import Indices, Shard
    from dsgd.core.weights import Vector


class RankLost(Exception):
    """Another rank of the group has ended, or could not be reached in time: this one cannot go on."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Which rank of which kind of group a process is.

    parallel: fsdp, hsdp:R or ddp (dsgd/scenario/group_options.py). device: this rank's, cpu or cuda.
    expert_parallel: experts stay on their rank, and tokens travel. recompute_activations: blocks are
    computed twice instead of kept.
    """

    rank: int
    ranks: int
    parallel: str = "fsdp"
    device: str = "cpu"
    expert_parallel: bool = False
    recompute_activations: bool = False

    @property
    def slices(self) -> int:
        """Into how many slices the group's vector is cut."""
        return Parallel.parse(self.parallel).shards(self.ranks)


class _Loss(nn.Module):
    """A problem's loss as a module: what it uses outside of the blocks is gathered while it is computed."""

    def __init__(self, module: nn.Module, compute: Any) -> None:
        super().__init__()
        self.module, self.compute = module, compute

    def forward(self, *batch: Any) -> Any:
        return self.compute(self.module, *batch)


class GroupObjective(Objective):
    """One rank's view of a module's loss; `num_weights` is the length of its slice.

    torch.distributed has been initialised with the group as its default group. All ranks make it, and then
    call the same methods with the same arguments, in the same order. A rank that fails in between leaves the
    others waiting for it: who leads the group must end them, and they raise RankLost when it ends.

    objective: as on a worker, of the same problem on each rank. Its module is sharded in place: a rank keeps
    no copy of the whole. Raises ProblemError, in one line, for a module that cannot be sharded.
    """

    row_by_row: ClassVar[bool] = True
    in_own_process: ClassVar[bool] = True

    def __init__(self, objective: ModuleObjective, membership: Membership) -> None:
        self.membership, self._options = membership, objective
        self.layout = RankLayout(objective.shapes, membership.slices)
        module = objective.problem.module
        kind, slices = torch.device(membership.device).type, membership.slices
        replicas = membership.ranks // slices
        names = ("replicate", "shard")
        if replicas == 1:
            mesh = init_device_mesh(kind, (slices,), mesh_dim_names=names[1:])
        else:
            mesh = init_device_mesh(kind, (replicas, slices), mesh_dim_names=names)
        self._device, self._peers = torch.device(membership.device), mesh.get_group("shard")
        self._carried = Carried(module, self.layout.num_weights, frozen=False)
        self._carried.reached.counting = objective.leaves_out is not False
        self._experts: set[nn.Parameter] = set()
        self._replicas = mesh.get_group("replicate") if replicas > 1 else None
        if membership.expert_parallel:
            self._experts = hold_own_experts(module, membership.rank % slices, self._peers)
        parts = blocks(module)
        if objective.compiled:
            for part in parts or [module]:  # not with the hooks around it, at which torch would break off
                part.forward = torch.compile(part.forward)
        if membership.recompute_activations:
            recompute_activations(parts)
        self._notes = (_AT_ONCE,) if parts and not objective.by_block else ()
        parts = parts if objective.by_block else []
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.data = parameter.data.contiguous()
            for parameter in self._experts:
                parameter.data = parameter.data.to(self._device)
        # Autocast casts inputs, where an operation wants it.
        full = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        policy = full
        if objective.half:
            policy = replace(full, param_dtype=torch.bfloat16)
            norms = (part for part in module.modules() if isinstance(part, _NormBase))
            statistics = [norm for norm in norms if any(True for _ in norm.parameters())]
            parts = [*statistics, *(part for part in parts if part not in statistics)]
        self._loss = _Loss(module, objective.problem.loss)
        for part in (*parts, self._loss):  # what keeps statistics in float32 stays in float32
            part.register_forward_hook(_without_views)  # before FSDP's own
            own = full if isinstance(part, _NormBase) else policy
            fully_shard(part, mesh=mesh, mp_policy=own, ignored_params=self._experts)
            part.register_forward_pre_hook(self._carried.reached.watch)  # after FSDP's own, which gathers
        root = cast(FSDPModule, self._loss)
        for part in (*parts, self._loss):
            # The parts of a mini-batch bring their share along: what is reduced is summed, and not divided.
            cast(FSDPModule, part).set_force_sum_reduction_for_comms(True)
            cast(FSDPModule, part).set_gradient_divide_factor(1.0)
            if kind == "cpu":
                cast(FSDPModule, part).set_custom_reduce_scatter(cast(Any, SumInRankOrder()))
        # What one rank's part does not use, another one's may: experts, for one.
        root.set_reduce_scatter_unused_params(True)
        self._parameters = trained(module)
        # Views of the memory that FSDP gathers from: what is written here is what is computed with.
        self._slices = [_own(parameter.detach()) for parameter in self._parameters]
        self._sizes = [part.numel() for part in self._slices]
        assert sum(self._sizes) == self.layout.length(membership.rank)

    @property
    def num_weights(self) -> int:
        return self.layout.length(self.membership.rank)

    def own(self, part: Callable[[int], slice]) -> Tensor:
        found = self.layout.own(part(self.layout.num_weights), self.membership.rank)
        return torch.from_numpy(found).to(self._device)

    def initial_weights(self, seed: int) -> Vector:
        raise AssertionError("a rank is given its weights")

    def loss(self, w: Any, *batch: Any) -> Any:
        raise AssertionError("a module's loss is computed with its gradient")

    def evaluate(self, w: Vector, *test: Any) -> Evaluation | None:
        raise AssertionError("a rank has not all weights")

    def try_out(self, shard: Shard) -> None:
        """Compute one gradient of the whole group, at the weights with which the module was made.

        Raises ProblemError on a rank where the loss fails or cannot be minimised, and RankLost on others once
        that one has ended.
        """
        assert isinstance(shard, ProblemShard)
        few, module = self._options.to_try(shard, self.membership.ranks), self._loss.module
        loss_of = self._options.problem.loss
        failures = failures_of(loss_of, "its loss cannot be computed: ", RankLost)
        with failures, _parameters_unchanged(self._loss):
            for some in (few, shard):  # a few may have nothing that counts
                compute = partial(self._gradient, None, some, 0, None)
                loss, self.trial = watched(module, self._carried, compute)
                if torch.isfinite(loss):
                    break

        failures = failures_of(loss_of, "its loss in eval mode cannot be computed: ", RankLost)
        eager = torch.compiler.set_stance("force_eager") if self._options.compiled else nullcontext()
        with failures, eager, in_eval_mode(module), moved(self._slices):
            found = partial(self._loss_of, shard)
            ranks, options = self.membership.ranks, self._options
            notes = require_parts(found, shard.batch_size, ranks, options.accumulate, options.recorded)
        option = option_of_parts(ranks, options.accumulate)
        notes += gradient_in_parts(None, 0, option, bool(estimating(module))) + self._notes + options.notes
        self.trial = self.trial._replace(notes=(*self.trial.notes, *notes))
        require_finite(loss)

    def _loss_of(self, shard: ProblemShard, rows: Indices) -> Any:
        """Return what the loss returns for some of a shard's samples, which each rank computes."""
        batch = shard.samples(shard.batch_rows(0)[rows])
        try:
            return self._options.value_of(lambda _, *batch: self._loss(*batch), self._loss, batch)
        except RuntimeError as error:
            raise _told_apart(error) from error
        finally:
            cast(FSDPModule, self._loss).reshard()  # without a backward pass, what was gathered stays

    def loss_and_gradient(
        self, w: Tensor, shards: Sequence[Shard], steps: Sequence[int], out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss (1,) of the whole mini-batch and this rank's slice of its gradient (1, d), at this
        rank's slice w (1, d) of the weights.

        Raises RankLost if another rank has ended.
        """
        (shard,), (step,) = shards, steps
        into = None if out is None else out[0]
        loss, g = self._gradient(w[0], cast(ProblemShard, shard), step, into)
        return loss[None], g[None] if out is None else out

    def take_up(self, names: Sequence[str], bits: Tensor) -> None:
        """Have the module carry what the bits say of which this rank has a slice (rows, d)."""
        self._carried.names, rank = names, self.membership.rank
        whole = np.zeros((len(bits), self.layout.num_weights), np.float32)
        self.layout.put(whole, rank, bits.cpu().numpy())
        there = torch.from_numpy(whole).view(torch.int32).to(self._device)
        if self.layout.slices > 1:
            dist.all_reduce(there, group=self._peers)  # where one rank has its bits, others have zeros
        self._carried.write(there.view(torch.float32))

    def left(self, device: str) -> Tensor:
        """Return this rank's slice (rows, d) of the bits."""
        bits = self._carried.read().cpu().numpy()
        return torch.from_numpy(self.layout.take(bits, self.membership.rank)).to(self._device)

    def times_left_out(self, device: str) -> Tensor | None:
        return self._carried.times_left_out(self._sizes)

    def norm(self, g: Tensor) -> Tensor:
        """Return the norm (1, 1) of the gradient of which g (1, d) is this rank's slice."""
        try:
            return summed(g.norm(dim=1).square()[0], self._peers).sqrt().view(1, 1)
        except RuntimeError as error:
            raise _told_apart(error) from error

    def _gradient(
        self, w: Tensor | None, shard: ProblemShard, step: int, into: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and this rank's slice of the gradient (d,), `into` a vector if there is one.

        w: this rank's slice (d,) of the weights; None: those that are there.
        """
        options, rank, ranks = self._options, self.membership.rank, self.membership.ranks
        seed_generators(self._device, shard.torch_seed(step, rank))
        self._write(w)
        self._carried.reached.begin()
        root = cast(FSDPModule, self._loss)
        half = torch.autocast(self._device.type, options.half) if options.half else nullcontext()
        sums = []
        try:
            for number, (share, batch) in enumerate(shard.parts(step, options.accumulate, rank, ranks)):
                # Until the last part of the mini-batch, each rank keeps its gradient by all weights.
                root.set_requires_gradient_sync(number == options.accumulate - 1)
                with half:
                    found = self._loss(*batch)
                loss, count = to_minimise(found, share)
                torch.autograd.backward(loss)
                sums.append((loss.detach(), count))
            self._add_up_experts()
            if self._carried.names:  # as with torch's DDP, what the first rank has left is what stays
                bits = self._carried.read().view(torch.int32)
                dist.broadcast(bits, src=0)
                self._carried.write(bits.view(torch.float32))
            own, own_count = added(sums)
            total, count = summed(own), None if own_count is None else summed(own_count)
            g = self._read(into)
            if w is None or self._carried.leaves_out:
                self._carried.leave_out(g, self._sizes, by_any_rank=True)
        except torch.OutOfMemoryError as error:
            raise ProblemError(options.full(shard, ranks)) from error
        except RuntimeError as error:
            raise _told_apart(error) from error
        return divided(total, g, count), g

    def _add_up_experts(self) -> None:
        """Add up the gradients of experts that several replicas have; FSDP does not know of them."""
        for parameter in self._parameters:
            if self._replicas and parameter in self._experts:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, group=self._replicas)

    def _write(self, w: Tensor | None) -> None:
        """Make a slice (d,) the weights."""
        if w is None:
            return
        with torch.no_grad():
            for there, part in zip(self._slices, torch.split(w, self._sizes), strict=True):
                there.copy_(part.view(there.shape))

    def _read(self, into: Tensor | None) -> Tensor:
        """Return this rank's slice of the gradient (d,), which the module then no longer has; zeros where
        the loss does not depend on a parameter.
        """
        g = torch.empty(self.num_weights, dtype=torch.float32, device=self._device) if into is None else into
        for parameter, part in zip(self._parameters, torch.split(g, self._sizes), strict=True):
            if parameter.grad is None:
                part.zero_()
            else:  # to which 0 is added, as one process does: -0 becomes 0
                torch.add(_own(parameter.grad).flatten(), 0.0, out=part)
            parameter.grad = None
        return g


@contextmanager
def _parameters_unchanged(loss: nn.Module) -> Iterator[None]:
    """Raise ProblemError for a parameter that a forward pass changes: FSDP forgets what it has gathered."""
    before: dict[nn.Module, dict[str, tuple[nn.Parameter, int]]] = {}

    def begin(part: nn.Module, inputs: Any) -> None:
        before[part] = {name: (found, found._version) for name, found in part.named_parameters()}

    def end(part: nn.Module, inputs: Any, outputs: Any) -> None:
        for name, found in part.named_parameters():
            same, count = before[part].get(name, (None, 0))
            if found is same and found._version != count:
                whole = f"{prefixes[part]}.{name}".lstrip(".").removeprefix("module.")
                raise ProblemError(in_place(whole) if found.requires_grad else frozen_in_place(whole))

    prefixes = {part: prefix for prefix, part in loss.named_modules() if FSDPModule in type(part).__mro__}
    hooks: list[Any] = []
    for part in prefixes:
        hooks += [part.register_forward_pre_hook(begin), part.register_forward_hook(end, prepend=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _without_views(part: nn.Module, inputs: Any, outputs: Any) -> Any:
    """Return a block's outputs, copied where they are views: one that is changed in place would have a wrong
    gradient, since FSDP would not see the backward pass come to the block.
    """
    return tree_map_only(Tensor, lambda output: output.clone() if output._is_view() else output, outputs)


def _own(tensor: Tensor) -> Tensor:
    """Return what this rank has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _told_apart(error: RuntimeError) -> Exception:
    """Return what to raise for an error of a computation with collectives in it: its own, or RankLost."""
    text = " ".join(str(error).split())
    if isinstance(error, dist.DistError) or any(mark in text for mark in _OF_COLLECTIVES):
        return RankLost(text)
    if "mixed torch.Tensor and DTensor" in text:
        return ProblemError(_NOT_WHOLE)
    return error


_OF_COLLECTIVES = ("/gloo/", "NCCL", "Connection closed by peer", "Connection reset by peer")
_AT_ONCE = (
    "its ranks gather the whole module at once, which takes more memory: parameters of its blocks, the "
    "elements of its ModuleList or Sequential, are used outside of a block's own call, not all samples are "
    "computed with the same blocks, or its loss takes derivatives itself"
)
_NOT_WHOLE = (
    "a group of ranks cannot shard its module: the parameters of one of its blocks, the elements of its "
    "ModuleList or Sequential, are used outside of that block's own call; call the block itself, or keep "
    "these parameters outside of the list"
)
