"""The loss of any torch module, computed worker by worker on views into one flat vector.

A module is called as its author calls it: hooks, checkpointing, autocast, tied weights and shapes that depend
on the data all work, which neither `functional_call` nor torch.vmap gives.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_map_only

from dsgd.core.model import Evaluation, Objective
from dsgd.core.problem import Problem, ProblemError, TrialGradient, length, moved_to, part, take
from dsgd.core.rng import Purpose, at
from dsgd.core.routing import (
    MOST_WORKERS,
    ExpertUse,
    Loads,
    RoutedLayer,
    agreement,
    joined,
    shares,
    shown_by,
    spans_of,
)
from dsgd.core.shards import Indices, Reshuffled
from dsgd.core.weights import LEFT_OUT, Vector
from dsgd.models.objectives.loss_failures import (
    called,
    failure_of,
    failures_of,
    is_of_users_code,
    note_sample,
    of_samples,
)
from dsgd.models.objectives.loss_scale import ScaledLosses
from dsgd.models.objectives.means import (
    A_SUM,
    MEAN,
    added,
    at_once,
    divided,
    gradient_in_parts,
    largest_output,
    moved,
    not_a_mean,
    of_all,
    option_of_parts,
    require_parts,
    sizes,
    to_minimise,
    total_and_count,
)
from dsgd.models.objectives.module_blocks import computed_by_block
from dsgd.models.objectives.module_copy import (
    copied,
    forget_graphs,
    gradient_hooks,
    has_functions,
    unwrapped,
    with_gradient_hooks,
)
from dsgd.models.objectives.module_state import Carried, estimating, in_eval_mode, new_statistics
from dsgd.models.objectives.module_trial import frozen_in_place, listed, require_unchanged, watched
from dsgd.models.objectives.process_wide import drawn_from, seed_generators, seeded
from dsgd.models.objectives.rank_layout import RankLayout
from dsgd.models.objectives.rank_sums import in_order
from dsgd.models.objectives.replica import (
    Replica,
    in_float32,
    make_sendable,
    require_not_scripted,
    require_shardable,
    require_trainable,
    trained,
)
from dsgd.process.endings import end_if_copy

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.shards import Shard

_ESTIMATED_FROM, _ESTIMATED_AT_ONCE = 1024, 256  # samples
_TRIED = 2  # samples: fewer would be too few for batch normalization
_AT_ONCE = 2**22
"""Numbers in one output of a part of a module, of which a trial computes the gradient at once."""
_DRAWING = _DropoutNd, torch.nn.MultiheadAttention, torch.nn.RNNBase
"""What draws random numbers in training mode, and does nothing else there."""
_ORDER = 20261  # of samples that are looked at: the same for all seeds
_COMPARED = 8  # test samples, as a whole and in parts
_NONE = torch.empty(0, 1)
_ON_PARTS = "its hooks on gradients are called with the gradient of each part of a mini-batch (--accumulate)"
_LEFT_OFF = "it is trained without {}; a run has --compile, and workers and ranks that compute in parallel"
_CONVERTED = "its {} become float32 with its parameters; make() may give these in float32"
_LOOKED_AT = 4
"""Samples that are tried one by one, to see whether all need the same parameters."""


class ProblemShard(Reshuffled):
    """One worker's samples of a problem's training data."""

    def __init__(self, worker: int, data: Any, rows: Indices, *, batch_size: int, seed: int) -> None:
        super().__init__(worker, rows, batch_size=batch_size, seed=seed)
        self.data, self.device = data, "cpu"
        self.numbers: Indices | None = None
        """The numbers that its rows have in the whole training data, where only they are in this process."""

    def batch(self, step: int) -> tuple[Any, ...]:
        """Return the mini-batch number `step`: what the loss gets after the module."""
        return self.samples(self.batch_rows(step))

    def samples(self, rows: Indices) -> tuple[Any, ...]:
        """Return the samples with these numbers in the data."""
        found: tuple[Any, ...] = moved_to(self.device, take(self.data, rows))
        return found

    def parts(
        self, step: int, count: int, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[float, tuple[Any, ...]]]:
        """Yield one rank's part of the mini-batch number `step`, cut into `count` parts, each with its
        share of the whole mini-batch's samples.

        The sizes of ranks' parts, and of one's own, differ by one at most; each is read when it is asked for.
        """
        if count == ranks == 1:
            yield 1.0, self.batch(step)
            return
        rows = self.batch_rows(step)
        for some in np.array_split(np.array_split(rows, ranks)[rank], count):
            yield len(some) / len(rows), self.samples(some)

    def torch_seed(self, step: int, rank: int = 0) -> int:
        """Return what generators are seeded with for a gradient, so that dropout repeats with it."""
        draws = at(self.seed, Purpose.DROPOUT, self.worker, step)
        return [int(draws.integers(2**63)) for _ in range(rank + 1)][rank]

    @staticmethod
    def batches(shards: Sequence[ProblemShard], steps: Sequence[int]) -> tuple[Any, ...]:
        raise AssertionError("a module takes one worker's mini-batch at a time")

    def few(self, count: int) -> ProblemShard:
        """Return a shard of as many samples of the first mini-batch, or of all if it has fewer."""
        rows = self.batch_rows(0)[:count]
        found = ProblemShard(self.worker, self.data, rows, batch_size=len(rows), seed=self.seed)
        found.device = self.device
        return found

    def alone(self) -> ProblemShard:
        data, rows = self.data, self.rows
        if isinstance(data, torch.utils.data.TensorDataset):
            data = data.tensors
        if isinstance(data, tuple):  # a dataset of another kind is not known to have parts
            data, rows = tuple(part(array, rows) for array in data), np.arange(len(rows))
        alone = ProblemShard(self.worker, data, rows, batch_size=self.batch_size, seed=self.seed)
        alone.numbers = self.rows
        return alone

    def number_of(self, row: int) -> int:
        """Return which sample of the training data a row is."""
        return row if self.numbers is None else int(self.numbers[row])

    @staticmethod
    def on_device(shards: Sequence[ProblemShard], device: str) -> Sequence[ProblemShard]:
        for shard in shards:
            shard.device = device
        return shards


class ModuleObjective(Objective):
    """The mean loss of a problem's module over its data.

    Before an evaluation the running statistics of normalization layers in training mode are estimated anew,
    from the first training samples (Wu & Johnson 2021, "Rethinking batch in BatchNorm", section 3). Other
    tensors that change while a gradient is computed are carried from one of a worker's tasks to the next
    (dsgd/models/objectives/module_state.py). For an evaluation their bits are behind the D weights.

    precision: float32, or bf16 or fp16 for torch's autocast around the loss. accumulate: parts of a
    mini-batch that are computed one after another. compiled: whether by torch.compile. recomputed: whether
    activations are computed once more in the backward pass. ranks: of the group that a worker is; its
    gradient is computed in as many parts, one after another. On a CPU, in float32, these are the bits of the
    group's ranks, each with one of `slices` slices of the weights, if it has two replicas at most. An
    evaluation is of the module as it is, in float32, on the device `evaluated_on`. recorded: by a run that is
    computed again, or goes on: what is no mean is noted then, since a run of an earlier version may have been
    trained with it.
    leaves_out: whether a parameter that no gradient reaches is left alone, as by no earlier version; None:
    a trial finds out whether there may be one. edition: of the run's rules; in the first, all tensors become
    float32, and samples are looked at in the order in which they are stored.
    Raises ProblemError for parameters that it cannot train.
    """

    row_by_row: ClassVar[bool] = True
    in_own_process: ClassVar[bool] = True
    by_block = True
    """Whether a group may gather the parameters of its module's blocks one block at a time."""

    def __init__(
        self,
        problem: Problem,
        *,
        precision: str = "float32",
        accumulate: int = 1,
        compiled: bool = False,
        recomputed: bool = False,
        ranks: int = 1,
        slices: int = 1,
        evaluated_on: str = "cpu",
        recorded: bool = False,
        leaves_out: bool | None = None,
        edition: int = 2,
    ) -> None:
        module, left_off = unwrapped(problem.module)
        notes = [_LEFT_OFF.format(" and ".join(left_off))] if left_off else []
        require_trainable(module)
        converted = in_float32(module if edition > 1 else module.float())
        if not recorded:
            require_not_scripted(module)
            if ranks > 1:
                require_shardable(module)
        make_sendable(module)
        forget_graphs(module)
        self.problem, self.edition = problem._replace(module=module), edition
        self.shapes = tuple(tuple(parameter.shape) for parameter in trained(problem.module))
        """Of the trained parameters, in the order of the vector."""
        self.parameter_sizes = tuple(map(math.prod, self.shapes))
        self._num_weights = sum(self.parameter_sizes)
        self.precision, self.accumulate, self.compiled = precision, accumulate, compiled
        self.recomputed, self.ranks, self.slices = recomputed, ranks, slices
        self._evaluated_on, self.recorded, self._differentiates = evaluated_on, recorded, False
        self.leaves_out, self._rows = leaves_out, self._mixed(problem.train, _ESTIMATED_FROM)
        self.notes: tuple[str, ...] = (*notes, *([_CONVERTED.format(listed(converted))] if converted else []))
        """What is not as `make` returned it, in a line each."""
        self._replicas = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_replicas": None, "_hooks": gradient_hooks(self.problem.module)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._replicas = threading.local()
        with_gradient_hooks(self.problem.module, self.__dict__.pop("_hooks"))

    @property
    def num_weights(self) -> int:
        return self._num_weights

    def initial_weights(self, seed: int) -> Vector:
        """Return the weights with which the module was made, from this seed."""
        parts = [parameter.detach().flatten() for parameter in trained(self.problem.module)]
        return cast(Vector, torch.cat(parts).cpu().numpy())

    def loss(self, w: Any, *batch: Any) -> Any:
        raise AssertionError("a module's loss is computed with its gradient")

    def for_gradients(self) -> ModuleObjective:
        """Return it without its data, of which a worker gets its shard."""
        by_block = self.ranks == 1 or self._is_computed_by_block()
        return self._changed(problem=self.problem._replace(train=(), test=()), by_block=by_block)

    def _is_computed_by_block(self) -> bool:
        """Return whether the loss needs the parameters of each block only while it is called, also not for a
        second derivative, and calls the same blocks for all samples: ranks would wait for each other.
        """
        problem, n = self.problem, length(self.problem.train)
        few = take(problem.train, self.looked_at(_TRIED))
        try:
            with seeded(0), computed_by_block(problem.module) as called:
                self.value_of(problem.loss, problem.module, few)
                needed = called.copy()
                for row in _one_by_one(n):
                    called.clear()
                    with suppress(Exception):  # batch normalization, for one, cannot compute one alone
                        self.value_of(problem.loss, problem.module, take(problem.train, np.array([row])))
                        if called != needed:
                            return False
        except Exception:  # because of these parameters, or also in a rank's trial, which says why
            return False
        return not self._differentiates

    def for_evaluation(self, device: str) -> ModuleObjective:
        """Return it for evaluations on a device, with the training data that they need."""
        train = self.problem.train
        rows = self._rows if estimating(self.problem.module) else self._rows[:0]
        if isinstance(train, tuple):
            train, rows = tuple(part(array, rows) for array in train), np.arange(len(rows))
        problem = self.problem._replace(train=train if len(rows) else ())
        return self._changed(problem=problem, _rows=rows, _evaluated_on=device, _replicas=threading.local())

    def looked_at(self, count: int) -> Indices:
        """Return the numbers of `count` training samples, or of all: the same in each process."""
        return self._rows[:count]

    def _mixed(self, data: Any, count: int | None = None) -> Indices:
        """Return the numbers of samples, or of `count` of them, in an order that is not that of the data: how
        they are stored, class after class for example, does not matter.
        """
        n = length(data) if not isinstance(data, tuple) or data else 0
        if self.edition == 1 or n == 0:
            return np.arange(n)[:count]
        draws = np.random.Generator(np.random.PCG64(_ORDER))
        return draws.permutation(n) if count is None else draws.choice(n, min(n, count), replace=False)

    def _changed(self, **attributes: Any) -> ModuleObjective:
        changed = copy.copy(self)
        changed.__dict__.update(attributes)
        return changed

    def _replica(self, device: str) -> Replica:
        replicas, kind = self._replicas.__dict__, torch.device(device).type  # a process uses one GPU
        if kind not in replicas:
            how = {
                "recomputed": self.recomputed,
                "apart": self.ranks > 1,
                "counting": self.leaves_out is not False,
                "scaled": self.precision == "fp16",
            }
            replicas[kind] = Replica(self.problem.module, device, **how)
        return cast(Replica, replicas[kind])

    def _loss_of(self, mine: Replica) -> Any:
        """Return the loss as it is computed for a gradient, compiled once for each replica."""
        if not self.compiled:
            return self.problem.loss
        if mine.compiled is None:
            mine.compiled = torch.compile(self.problem.loss)
        return mine.compiled

    def try_out(self, shard: Shard) -> None:
        """Compute one gradient, at the initial weights; see whether that draws random numbers.

        Raises ProblemError for a loss that fails or cannot be minimised.
        """
        assert isinstance(shard, ProblemShard)
        few = self.to_try(shard, self.ranks)
        w = torch.from_numpy(self.initial_weights(0)).to(shard.device)[None]
        seed_generators(w.device, 0)
        before = drawn_from()
        with failures_of(self.problem.loss, "its loss cannot be computed: "):
            try:
                mine = self._replica(shard.device)
            except torch.OutOfMemoryError as error:
                raise ProblemError(self.full(shard)) from error
            for some in (few, shard):  # a few may have nothing that counts, like tokens that are no padding
                compute = partial(self._gradient, w[0], some, 0, None, seeds=[0] * self.ranks)
                loss, self.trial = watched(mine.module, mine.carried, compute)
                if torch.isfinite(loss):
                    break
        # torch.compile may not run in two threads at once, and a GPU computes one task after another anyway.
        self.one_thread = drawn_from() != before or self.compiled or w.is_cuda
        self.one_thread |= mine.has_hooks or has_functions(mine.module)
        if not self.recorded and any(made.grad is not None for made in trained(self.problem.module)):
            raise ProblemError(
                "its loss computes with the module that make() returned, and not only with the one that it "
                "gets, which has the weights; use its argument"
            )
        require_unchanged(mine.module, w[0])
        known = LEFT_OUT in self.trial.carried
        if not known and (self.leaves_out or self._leaves_some_out(w[0], shard)):
            mine.carried.names = carried = (*self.trial.carried, LEFT_OUT)
            self.trial = self.trial._replace(carried=carried, rows=mine.carried.rows)
            mine.carried.names = ()
        frozen = [name for name, _ in mine.module.named_parameters() if name in self.trial.carried]
        if frozen and self.ranks > 1:
            raise ProblemError(frozen_in_place(frozen[0]))
        with self._compared(mine, self.problem.loss, "loss in eval mode"):
            found = partial(self._of_first, mine, shard)
            notes = require_parts(found, shard.batch_size, self.ranks, self.accumulate, self.recorded)
            for size in sizes(shard.batch_size, self.ranks, self.accumulate):
                found(np.arange(size))
        if self.ranks * self.accumulate > 1:
            notes += self._in_parts(mine, shard, w[0])
        if mine.has_hooks and self.accumulate > 1:
            notes = (*notes, _ON_PARTS)
        self.trial = self.trial._replace(notes=(*self.trial.notes, *notes, *self.notes))
        require_finite(loss)

    def _leaves_some_out(self, w: Tensor, shard: ProblemShard) -> bool:
        """Return whether there are parameters that some samples do not reach, each on its own."""
        if self.ranks > 1 or self.leaves_out is False:
            return False
        alone = self._changed(ranks=1, slices=1, accumulate=1, compiled=False, _replicas=threading.local())
        # Of other workers too, if their samples are here.
        for seed, row in enumerate(_one_by_one(length(shard.data))):
            one = ProblemShard(0, shard.data, np.array([row]), batch_size=1, seed=0)
            one.device = shard.device
            with suppress(Exception):  # batch normalization, for one, cannot compute one alone
                alone._gradient(w, one, 0, None, seeds=[seed])
        return bool(alone._replica(str(w.device)).carried.reached.left_out())

    def _in_parts(self, mine: Replica, shard: ProblemShard, w: Tensor) -> tuple[str, ...]:
        """Return in a line how a gradient in parts, in training mode, differs from the whole's.

        At least two parts are put together, and more where their outputs are small: the user may have chosen
        parts because the memory holds no more.
        """
        parts = self.ranks * self.accumulate
        each = -(-shard.batch_size // parts)
        with in_eval_mode(mine.module):
            two = partial(self._of_first, mine, shard, np.arange(min(_TRIED, shard.batch_size)))
            parts = min(parts, max(2, _AT_ONCE * _TRIED // largest_output(mine.module, two) // each))
        some = shard.few(parts * each)

        def gradient(in_parts: bool, seed: int) -> Tensor:
            mine.carried.names = self.trial.carried
            mine.carried.write()
            how = {"ranks": 1, "slices": 1, "compiled": False, "precision": "float32"}
            kept = self._replicas if self.precision != "fp16" else threading.local()
            plain = self._changed(**how, accumulate=parts if in_parts else 1, _replicas=kept)
            return plain._gradient(w, some, 0, None, seeds=[seed])[1].clone()

        normalized, option = bool(estimating(mine.module)), option_of_parts(self.ranks, self.accumulate)
        with in_eval_mode(mine.module, *_DRAWING):
            notes = gradient_in_parts(gradient, len(some), option, normalized)
        mine.carried.write()
        mine.carried.names = ()
        return notes

    def to_try(self, shard: ProblemShard, ranks: int) -> ProblemShard:
        """Return what one gradient is tried on: a few samples for each part of a mini-batch.

        The whole mini-batch on a GPU, to see whether its memory suffices, and of a compiled loss, which is
        compiled for its size.
        """
        if shard.device != "cpu" or self.compiled:
            return shard
        return shard.few(_TRIED * ranks * self.accumulate)

    def try_evaluation(self) -> TrialGradient:
        """Compute the loss and the score of a few test samples, near the initial weights.

        Raises ProblemError where one fails or is not one number, and for a score that is no mean over samples
        where there are more of them than are evaluated at once.
        """
        problem = self.problem
        mine = self._replica(self._evaluated_on)
        mine.write(torch.from_numpy(self.initial_weights(0)))
        n, order = length(problem.test), self._mixed(problem.test)
        for name, compute in (("loss", problem.loss), ("score", problem.score)):
            if compute is None:
                continue
            with self._compared(mine, compute, f"{name} of test data"):

                def found(rows: Indices, compute: Callable[..., Any] = compute) -> Any:
                    return self._tested(mine, compute, order[rows])

                if compute is problem.score and problem.score_at_once:
                    total_and_count(self._tested(mine, compute, np.arange(n)), f"{name} of test data")
                    continue
                at_once = self._at_once(mine)
                differs = not_a_mean(found, min(n, max(2, at_once), _COMPARED), f"{name} of test data")
                for size in sizes(n, -(-n // at_once)):
                    found(np.arange(size))
            if differs and n > at_once and compute is problem.score and not self.recorded:
                raise ProblemError(
                    f"{differs}; return its total and its count, if it has them (return total, count), or "
                    "make the Problem with score_at_once=True"
                )
            if differs and (n > at_once or A_SUM in differs):
                note = (
                    f"{differs}; an evaluation's is the mean of those of {at_once} samples each, unless the "
                    "function returns its total and its count (return total, count)"
                )
                note = f"{differs}; {MEAN}" if A_SUM in differs else note
                self.trial = self.trial._replace(notes=(*self.trial.notes, note))
        return self.trial

    @contextmanager
    def _compared(self, mine: Replica, compute: Callable[..., Any], name: str) -> Iterator[None]:
        """Have a replica in eval mode, near the weights that it has."""
        failures = failures_of(compute, f"its {name} cannot be computed: ")
        with failures, in_eval_mode(mine.module), moved(trained(mine.module)):
            yield
        mine.carried.write()

    def _of(self, mine: Replica, shard: ProblemShard, rows: Indices) -> Any:
        """Return what the loss returns for some of a shard's samples, by their numbers in the data."""
        return self.value_of(self.problem.loss, mine.module, shard.samples(rows))

    def _of_first(self, mine: Replica, shard: ProblemShard, rows: Indices) -> Any:
        """Return what the loss returns for some samples of a shard's first mini-batch."""
        return of_samples(shard.batch_rows(0)[rows], partial(self._of, mine, shard))

    def value_of(self, compute: Callable[..., Any], module: torch.nn.Module, batch: Sequence[Any]) -> Any:
        """Return what a loss or a score returns, without its graph, which is only made for one that takes
        derivatives itself: by its input, for example.
        """
        if not self._differentiates:
            try:
                with torch.no_grad():
                    return called(compute, module, batch)
            except RuntimeError as error:
                if "does not require grad" not in str(error):
                    raise
            self._differentiates = True
        with torch.enable_grad():
            found = called(compute, module, batch)
        return tree_map_only(torch.Tensor, torch.Tensor.detach, found)

    def _tested(self, mine: Replica, compute: Callable[..., Any], rows: Indices, batch: Any = None) -> Any:
        """Return what a loss or a score returns for some test samples. batch: these, if they are there."""

        def found(some: Indices) -> Any:
            given = batch if some is rows and batch else moved_to(self._evaluated_on, take(test, some))
            return self.value_of(compute, mine.module, given)

        test = self.problem.test
        return of_samples(rows, found, "test sample")

    def _at_once(self, mine: Replica) -> int:
        """Return how many test samples are evaluated at once; the module is in eval mode."""
        if mine.at_once is None:
            few = self._mixed(self.problem.test, _TRIED)
            mine.at_once = at_once(mine.module, partial(self._tested, mine, self.problem.loss, few), len(few))
        return mine.at_once

    def loss_and_gradient(
        self, w: Tensor, shards: Sequence[Shard], steps: Sequence[int], out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        losses, gradients = [], []
        for p, (shard, step) in enumerate(zip(cast("Sequence[ProblemShard]", shards), steps, strict=True)):
            into = None if out is None else out[p]
            seeds = [shard.torch_seed(step, rank) for rank in range(self.ranks)]
            try:
                loss, g = self._gradient(w[p], shard, step, into, seeds=seeds)
            except BaseException as error:  # a user's code may call sys.exit()
                if not is_of_users_code(error):
                    raise
                where = f"its loss failed in worker {shard.worker}'s mini-batch {step}: "
                raise failure_of(error, self.problem.loss, where, named=True) from error
            end_if_copy()
            losses.append(loss)
            if out is None:
                gradients.append(g.clone())
        if out is None:  # the engines compute row by row: no second copy
            out = gradients[0][None] if len(gradients) == 1 else torch.stack(gradients)
        return torch.stack(losses), out

    def take_up(self, names: Sequence[str], bits: Tensor) -> None:
        carried = self._replica(str(bits.device)).carried
        carried.names = names
        carried.write(bits)

    def left(self, device: str) -> Tensor:
        return self._replica(device).carried.read()

    def times_left_out(self, device: str) -> Tensor | None:
        return self._replica(device).carried.times_left_out(self.parameter_sizes)

    def carried(self, bits: Vector) -> dict[str, Any]:
        """Return the tensors that workers carry, by name, as bits (rows, D) say: arrays of numpy."""
        return self._carried_by(self.problem.module).arrays(torch.from_numpy(bits))

    def gradients_left_out(self, bits: Vector) -> int:
        """Return how many gradients of a worker overflowed in float16, by what it carries (rows, D)."""
        return self._carried_by(self.problem.module).gradients_left_out(torch.from_numpy(bits))

    def _carried_by(self, module: torch.nn.Module) -> Carried:
        scale = ScaledLosses("cpu") if self.precision == "fp16" else None
        carried = Carried(module, self._num_weights, self.problem.module, scale=scale)
        carried.names = self.trial.carried
        return carried

    def norm(self, g: Tensor) -> Tensor:
        """Return the norms (P, 1) of gradients (P, D); those of a group are added up slice by slice."""
        if self.slices == 1:
            return super().norm(g)
        layout, squares = RankLayout(self.shapes, self.slices), []
        for rank in layout.holders:  # one may have nothing
            part = torch.cat([g[:, :0], *(g[:, there] for there in layout.segments(rank))], 1)
            squares.append(part.norm(dim=1, keepdim=True).square())
        return in_order(squares).sqrt()

    def _gradient(
        self, w: Tensor, shard: ProblemShard, step: int, into: Tensor | None, *, seeds: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the gradient (D,) at w (D,), written `into` a vector (D,).

        Without one it is overwritten by the next. seeds: of each rank.
        """
        try:
            mine = self._replica(str(w.device))
            mine.write(w)
            g = mine.g if into is None else into
            sums = []
            mine.begin()
            ranks = mine.gradients_in(g, self.ranks, self.slices)
            for rank in mine.carried.by_rank(ranks) if self.ranks > 1 else ranks:
                seed_generators(w.device, seeds[rank])
                sums.append(self._loss_of_rank(mine, w.device.type, shard, step, rank))
            mine.complete(g)
        except torch.OutOfMemoryError as error:
            raise ProblemError(self.full(shard)) from error
        except BaseException as error:
            end_if_copy(error)
            if is_of_users_code(error):
                found = partial(self._of, self._replica(str(w.device)), shard)
                note_sample(
                    error, shard.batch_rows(step), found, lambda row: f"sample {shard.number_of(row)}"
                )
            raise
        losses, counts = zip(*sums, strict=True)
        return divided(in_order(losses), g, None if counts[0] is None else in_order(counts)), g

    def _loss_of_rank(
        self, mine: Replica, device: str, shard: ProblemShard, step: int, rank: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return a rank's share of the loss, after the backward pass of all its parts, and what the sum is
        divided by at the end, if by anything.
        """
        compute, sums, half = self._loss_of(mine), [], self.half
        for share, batch in shard.parts(step, self.accumulate, rank, self.ranks):
            if half:
                with torch.autocast(device, half):
                    found = called(compute, mine.module, batch)
            else:
                found = called(compute, mine.module, batch)
            loss, count = to_minimise(found, share)
            mine.backward(loss)
            sums.append((loss.detach(), count))
        return added(sums)

    @property
    def half(self) -> torch.dtype | None:
        """The type that autocast computes in; None for float32."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)

    def full(self, shard: ProblemShard, ranks: int = 1) -> str:
        """Return in one line that the memory of a shard's device is full; it computes as one of `ranks`."""
        at_once = -(-shard.batch_size // (ranks * self.accumulate))
        return _full(shard.device, self._num_weights, at_once, ranks)

    def evaluate(self, w: Vector, *test: Any) -> Evaluation | None:
        try:
            before = "its loss or score of test data cannot be computed: "
            with failures_of(self.problem.loss, before, torch.OutOfMemoryError):
                return self._evaluation(w)
        except torch.OutOfMemoryError as error:
            full = _full(
                self._evaluated_on, self._num_weights, self._replica(self._evaluated_on).at_once or 1
            )
            raise ProblemError(full) from error

    def _evaluation(self, w: Vector) -> Evaluation:
        problem, device = self.problem, self._evaluated_on
        mine = self._replica(device)
        mine.write(torch.from_numpy(w[: self._num_weights].copy()))
        self._complete(mine.module, mine.carried, w)
        n, losses, scores = length(problem.test), list[tuple[float, Any]](), list[tuple[float, Any]]()
        routed: list[list[RoutedLayer]] = []
        with in_eval_mode(mine.module):
            count = -(-n // self._at_once(mine))
            seed_generators(torch.device(device), 0)  # for a loss that draws random numbers also here
            for rows in np.array_split(self._mixed(problem.test), count):
                batch = moved_to(device, take(problem.test, rows))
                losses.append((len(rows) / n, self._tested(mine, problem.loss, rows, batch)))
                if problem.routing and (layers := problem.routing.layers(mine.module)):
                    routed.append([of._replace(chosen=_NONE) for of in layers])
                if problem.score and not problem.score_at_once:
                    scores.append((len(rows) / n, self._tested(mine, problem.score, rows, batch)))
            if problem.score and problem.score_at_once:
                scores.append((1.0, self._tested(mine, problem.score, np.arange(n))))
        loss = of_all(losses, "loss of test data")
        score = of_all(scores, "score of test data") if scores else None
        bits = loss / math.log(2) / problem.bytes_per_token if problem.bytes_per_token else None
        use = self._use_of_experts(mine.module, routed) if routed else None
        return Evaluation(loss, score, bits, use)

    def _use_of_experts(self, module: torch.nn.Module, routed: Sequence[Sequence[RoutedLayer]]) -> ExpertUse:
        """Return how experts were used in the passes of an evaluation, each with what its layers did."""
        assert self.problem.routing
        layers = [joined(parts) for parts in zip(*routed, strict=True)]
        return ExpertUse(
            shares([layer.load for layer in layers]),
            tuple(round(float(layer.entropy), 6) for layer in layers),
            self.problem.routing.capacity(module),
        )

    @property
    def has_experts(self) -> bool:
        return self.problem.routing is not None

    def loads_in(self, gradient: Vector) -> Loads | None:
        routing, module = self.problem.routing, self.problem.module
        if routing is None:
            return None
        return shown_by(gradient, spans_of(routing.balances(module), trained(module)))

    def compared(self, found: Evaluation, w: Vector, models: Mapping[int, Vector]) -> Evaluation:
        """Look at an eighth of the test data, so eight models take as long as an evaluation."""
        if found.experts is None:
            return found
        some = max(1, length(self.problem.test) // MOST_WORKERS)
        rows = self._mixed(self.problem.test)[:some]
        of_server = [layer.chosen for layer in self._routed_at(w, rows)]
        of_workers = {worker: self._routed_at(models[worker], rows) for worker in list(models)[:MOST_WORKERS]}
        choices = [[layer.chosen for layer in layers] for layers in of_workers.values()]
        pairs = [agreement(a, b) for a, b in combinations(choices, 2)]
        use = found.experts._replace(
            workers={worker: shares([of.load for of in layers]) for worker, layers in of_workers.items()},
            agreement=fmean(pairs) if pairs else None,
            agreement_with_server=fmean(agreement(own, of_server) for own in choices),
        )
        return found._replace(experts=use)

    def _routed_at(self, w: Vector, rows: Indices) -> Sequence[RoutedLayer]:
        """Return what the layers do with some test samples at the weights w (D,)."""
        problem = self.problem
        assert problem.routing
        mine = self._replica(self._evaluated_on)
        mine.write(torch.from_numpy(w[: self._num_weights].copy()))
        routed = []
        with in_eval_mode(mine.module):
            for some in np.array_split(rows, -(-len(rows) // self._at_once(mine))):
                self._tested(mine, problem.loss, some)
                routed.append(problem.routing.layers(mine.module))
        return [joined(parts) for parts in zip(*routed, strict=True)]

    def module_at(self, w: Vector, *, shared: bool = False) -> torch.nn.Module:
        """Return a copy of the module with the weights w (D,), as an evaluation has it.

        shared: its parameters are views of w, where it is evaluated on the CPU.
        """
        module = copied(self.problem.module).to(self._evaluated_on)
        parameters = trained(module)
        sizes = [parameter.numel() for parameter in parameters]
        shared = shared and self._evaluated_on == "cpu"
        vector = w[: self._num_weights]
        parts = torch.split(torch.from_numpy(vector if shared else vector.copy()), sizes)
        with torch.no_grad():
            for parameter, part in zip(parameters, parts, strict=True):
                if shared:
                    parameter.data = part.view_as(parameter)
                else:
                    parameter.copy_(part.view_as(parameter))
        with seeded(0):
            self._complete(module, self._carried_by(module), w)
        return module.eval().cpu()

    def _complete(self, module: torch.nn.Module, carried: Carried, w: Vector) -> None:
        """Have a module with the weights w (D,) carry what the bits behind them say, if there are any, and
        set its running statistics to the means over some training samples.
        """
        carried.names, behind = self.trial.carried, w[self._num_weights :].copy()
        bits = torch.from_numpy(behind.reshape(self.trial.rows, -1)) if len(behind) else None
        carried.write(bits)
        layers = estimating(module)
        if not layers:
            return

        def run(rows: Indices) -> None:
            batch = moved_to(self._evaluated_on, take(self.problem.train, rows))
            self.value_of(self.problem.loss, module, batch)

        with in_eval_mode(module):
            # Shows whether it takes derivatives, without a pass that counts twice.
            run(self.looked_at(_TRIED))
        seed_generators(torch.device(self._evaluated_on), 0)  # for dropout before such a layer
        with new_statistics(layers):
            for rows in np.array_split(self._rows, -(-len(self._rows) // _ESTIMATED_AT_ONCE)):
                run(rows)
        carried.write(bits)


def _one_by_one(count: int) -> Iterator[int]:
    """Return the numbers of a few of `count` samples, spread evenly."""
    return iter(dict.fromkeys(np.linspace(0, count - 1, _LOOKED_AT, dtype=int).tolist()))


def require_finite(loss: Tensor) -> None:
    """Raise ProblemError for a loss () that is not finite at the start."""
    if not torch.isfinite(loss):
        raise ProblemError(f"its loss is {loss.item()} at the start; look at the data and the weights")


def _full(device: str, num_weights: int, at_once: int, ranks: int = 1) -> str:
    """Return in one line that a device's memory is full, with the sizes and the remedy."""
    sizes = f"{num_weights:,} weights of {_gb(4 * num_weights)} in all, and {at_once} samples at once"
    if ranks > 1:
        sizes += f", as one of {ranks} ranks"
    if "cuda" in device:
        free, total = torch.cuda.mem_get_info()
        sizes += f"; it has {_gb(total)}, of which {_gb(free)} are free"
    more = ", or more --ranks-per-worker" if ranks > 1 else ""
    return (
        f"{device} is out of memory: {sizes}; lower --batch-size, raise --accumulate, or give "
        "--precision bf16 or fewer workers a device" + more
    )


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB"
