"""A recorded run as what it trained: its weights, the module that has them, and its data."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.config import TrainConfig
from dsgd.core.model import Classifier, Evaluation, Objective, Workload
from dsgd.core.option_rules import option_fields
from dsgd.core.problem import ProblemError, take
from dsgd.core.weights import Vector
from dsgd.data import DatasetShard, make_workload
from dsgd.models.beginnings import beginning, not_the_same
from dsgd.models.datasets import about
from dsgd.models.file_workload import module_objective
from dsgd.models.networks.sampling import Sampler
from dsgd.models.workloads import make_problem, module_of, name_of
from dsgd.process.user_code import in_one_line
from dsgd.records.reader import is_record, read_meta, read_options, read_summary
from dsgd.records.s3 import CHECKPOINTS
from dsgd.records.schema import RecordError
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import newest_whole, version_of
from dsgd.records.whole import carried_with, damage, last_weights
from dsgd.records.workload_copy import changed_lines, code_in, digest
from dsgd.running.checkpoints.run_state import weights_in
from dsgd.running.first_weights import of_checkpoint
from dsgd.strategies import configured

if TYPE_CHECKING:
    from torch import nn

    from dsgd.core.problem import Problem
    from dsgd.models.objectives.module_call import ModuleCall
    from dsgd.models.objectives.module_objective import ModuleObjective


_NEWEST = "newest"


def recorded_options(path: Path) -> dict[str, Any]:
    """Return a record's options, flat, as config.yaml has them; raises RecordError for what is no record."""
    if not path.is_dir():
        raise RecordError(f"{path}: there is no such folder; give the folder of a run")
    if not is_record(path):
        raise RecordError(f"{path}: is not a run record (it has no config.yaml); give the folder of a run")
    return read_options(path)


def recorded_config(path: Path, options: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration that has a record's options. Its workload is the file that was trained, also
    where that has changed, or is not there any more. Raises RecordError, naming the file of the record.
    """
    if module_of(options):
        options = {**options, "workload": str(code_in(path, options))}
    try:
        return configured(options)
    except KeyError as error:
        raise RecordError(f"{path / 'config.yaml'}: has no {error.args[0]}; the record is damaged") from None
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path / 'config.yaml'}: {error}") from None


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainedRun:
    """What a run has trained: `dsgd.load(RUN)`.

    Its code and data are those of the record's options: a workload is the file that was trained, also where
    the user's has changed since.
    """

    path: Path
    cfg: TrainConfig
    """The run's options; `data.workload` is where its file was found."""
    name: str
    """What was learned: the workload's or the data set's name."""
    weights: Vector = field(repr=False)
    """Shape (D,), read-only."""
    version: int
    """How many updates made them."""
    ended: bool
    """Whether they are the run's last; False: those of a checkpoint."""
    damaged: int = 0
    """How many newer checkpoints are damaged; of an ended run's last weights, how many were found instead."""
    changed: str = ""
    """Which lines of the user's file are not those that were trained, in words."""
    carried: Mapping[str, Vector] = field(default_factory=dict, repr=False)
    """What else the first worker's module carried, by name: arrays, or their bytes."""

    def __repr__(self) -> str:
        return f"<TrainedRun: {self.cfg.mode} on {self.name}, {self._weights_in_words}>"

    @property
    def _weights_in_words(self) -> str:
        of = "the last of the run" if self.ended else "of a checkpoint"
        what = ("checkpoint" if self.ended else "newer checkpoint") + ("s" if self.damaged > 1 else "")
        passed = (
            f"; {self.damaged} {what} {'are' if self.damaged > 1 else 'is'} damaged" if self.damaged else ""
        )
        return f"{self.weights.size:,} weights of version {self.version}, {of}{passed}"

    @property
    def in_words(self) -> str:
        """Two lines: which run this is, and which weights; a third if what its workload makes has changed."""
        cfg = self.cfg
        run = f"{cfg.mode} on {cfg.engine}, {cfg.num_workers} workers, {self.name}: {self.path}"
        notes = "".join(f"\nnote      {note}" for note in self.notes)
        return f"run       {run}\nweights   {self._weights_in_words}{notes}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What its workload makes here that is not what the run began with, in a line, once it is made."""
        if self.cfg.data.module is None or "_problem" not in self.__dict__:
            return ()
        return not_the_same(read_meta(self.path).workload, self._begins)

    @cached_property
    def _begins(self) -> Mapping[str, Any]:
        problem = self._problem
        parts = {"train": about(problem.train), "test": about(problem.test)}
        return {**parts, "first": beginning(module_objective(self.cfg, problem))}

    @property
    def facts(self) -> dict[str, str]:
        """What a file of the weights says of where they come from."""
        return {
            "run": self.path.resolve().name,
            "mode": self.cfg.mode,
            "trained_on": self.name,
            "version": str(self.version),
            "weights_sha256": self.weights_sha256,
        }

    @property
    def weights_sha256(self) -> str:
        """SHA-256, in hex, of the weights' 4·D bytes, as in summary.json."""
        return digest(self.weights.tobytes())

    @cached_property
    def _problem(self) -> Problem:
        if self.cfg.data.module is not None:
            return make_problem(self.cfg.data, self.cfg.seed)
        return self._built_in_problem(self._built_in.objective.initial_weights(self.cfg.seed))

    @cached_property
    def _built_in(self) -> Workload:
        made = make_workload(self.cfg)
        self._require_weights_of(made.objective)
        return made

    def _built_in_problem(self, w: Vector) -> Problem:
        from dsgd.running.trained_module import as_problem

        objective, shard = self._built_in.objective, self._built_in.shards[0]
        if not isinstance(objective, Classifier) or not isinstance(shard, DatasetShard):
            raise ValueError(f"{self.path}: --workload {self.name} has no module")
        return as_problem(objective, w, (shard.x, shard.y), self._built_in.test)

    def problem(self) -> Problem:
        """Return the module with its initial weights, the loss and the data, as `make` made them.

        Raises ValueError, in one line, where `make` fails, and for runs that train no module.
        """
        return self._problem

    def module(self, *, shared: bool = False) -> nn.Module:
        """Return a module with these weights, in eval mode.

        shared: its parameters are views of `weights`, not copies.
        The running statistics of batch normalization are estimated from training samples, as before every
        evaluation. Raises ValueError as `problem` does.
        """
        if self.cfg.data.module is None:
            return self._built_in_problem(self.weights).module.eval()
        with self._users_code():
            return self._objective(self._problem).module_at(self.weights, shared=shared)

    def call(self) -> ModuleCall:
        """Return that module with the names, types and shapes of what it takes and returns.

        Raises ValueError as `problem` does, and for a loss that does not call the module.
        """
        from dsgd.models.objectives.module_call import ModuleCall

        try:
            module = self.module(shared=self.weights.flags.writeable)
            with self._users_code():
                return ModuleCall(module, self._problem)
        except ProblemError as error:
            raise ValueError(f"{self.path}: {error}") from None

    def _objective(self, problem: Problem) -> ModuleObjective:
        objective = module_objective(self.cfg, problem)
        self._require_weights_of(objective)
        if self.carried:
            from dsgd.models.objectives.module_state import with_tensors

            try:
                module = with_tensors(objective.problem.module, self.carried)
            except ValueError as error:
                raise ValueError(f"{self.path}: {error}") from None
            objective.problem = objective.problem._replace(module=module)
        return objective

    def _require_weights_of(self, objective: Objective) -> None:
        if objective.num_weights != self.weights.size:
            raise ValueError(
                f"{self.path}: has {self.weights.size:,} weights, and the model that {self.name} makes here "
                f"{objective.num_weights:,}; put its config.yaml, or its workload's file, back as it was"
            )

    def evaluate(self, on: str | Path | None = None) -> Evaluation:
        """Return the loss, and the score if there is one, on the test data.

        on: the test part of what the workload reads from this file or folder in place of its `--data`.
        Raises ValueError, in one line, where that cannot be done.
        """
        if self.cfg.data.module is None:
            if on is not None:
                raise ValueError(f"{self.path}: was trained on --workload {self.name}, which reads no files")
            found = self._built_in.evaluate(self.weights)
            if found is None:
                raise ValueError(f"{self.path}: --workload {self.name} has no weights; nothing was trained")
            return found
        problem = self._problem
        if on is not None:
            other = self._problem_on(str(on))
            problem = problem._replace(test=other.test, bytes_per_token=other.bytes_per_token)
        with self._users_code():
            objective = self._objective(problem)
        try:
            found = objective.evaluate(self.weights)
        except ProblemError as error:
            raise ValueError(f"{self.path}: {error}") from error
        assert found is not None
        return found

    def _users_code(self) -> AbstractContextManager[None]:
        """Give an error of the workload's functions one line, with the line of its file."""
        before = f"{self.path}: its workload {self.name} failed: "
        return in_one_line(Path(str(self.cfg.data.workload)), before, passed=(ValueError,))

    def _problem_on(self, path: str) -> Problem:
        """Return what the workload makes of other data; raises ValueError for another module too."""
        if "data" not in option_fields(type(self.cfg.data)):
            raise ValueError(
                f"{self.path}: its workload {self.name} has no option --data, so it reads no files"
            )
        data: Any = self.cfg.data
        problem = make_problem(replace(data, data=path), self.cfg.seed)
        shapes, others = (
            {name: tensor.shape for name, tensor in made.module.state_dict().items()}
            for made in (self._problem, problem)
        )
        if shapes != others:
            raise ValueError(
                f"{self.path}: its workload {self.name} makes another module for {path}; "
                "give data of the form it was trained on"
            )
        if not _same_tokens(self._problem, problem):
            raise ValueError(
                f"{self.path}: its workload {self.name} learns other tokens from {path}; "
                "only a model of bytes is evaluated on another text"
            )
        return problem

    def sample(self, prompt: str, *, tokens: int = 200, temperature: float = 1.0, seed: int = 0) -> str:
        """Return the text that a language model makes to follow the prompt; the same again for the same seed.

        tokens: how many. temperature: the logits are divided by it before a token is drawn; 0 takes the most
        probable one. Raises ValueError, in one line, for a run of no language model.
        """
        continued = None if self.cfg.data.module is None else self._problem.sample
        if continued is None:
            raise ValueError(f"{self.path}: {self.name} is no language model: its Problem has no `sample`")
        module = self.module()
        with self._users_code():
            return continued(module, prompt, tokens=tokens, temperature=temperature, seed=seed)


def _same_tokens(ours: Problem, theirs: Problem) -> bool:
    """Whether two language models have the same ids for the text that one of them is tested on."""
    if not isinstance(ours.sample, Sampler) or not isinstance(theirs.sample, Sampler):
        return True
    ids = take(theirs.test, np.arange(1))[0].flatten().tolist()
    text = theirs.sample.decode(ids)
    return list(ours.sample.encode(text)) == list(theirs.sample.encode(text))


def trained_run(source: str, *, mapped: bool = False) -> TrainedRun:
    """Return what the run in a folder has trained; `RUN@VERSION` is one of its checkpoints, and `RUN@newest`
    the newest that is whole or, where there is none, what `RUN` is.

    mapped: the weights, and the parameters of what `call` returns, are pages of the record's file, which the
    processes of a machine share; nobody else may write to it.
    Of a run that has not ended, these are the weights of its newest whole checkpoint.
    Raises RecordError, in one line, for what is no record, is damaged, or has no weights yet.
    """
    run, asked = split_version(source)
    path = Path(run)
    options = recorded_options(path)
    cfg = recorded_config(path, options)
    vector, carried, version, ended, damaged = _weights(path, asked, mapped)
    vector.setflags(write=mapped)
    return TrainedRun(
        path=path,
        cfg=cfg,
        name=name_of(options),
        weights=vector,
        version=version,
        ended=ended,
        damaged=damaged,
        changed=changed_lines(path, options),
        carried=carried,
    )


def split_version(source: str) -> tuple[str, str]:
    """Return the run that a source names and, of RUN@VERSION, the version, else an empty text.

    >>> split_version("runs/a@2000"), split_version("runs/me@home")
    (('runs/a', '2000'), ('runs/me@home', ''))
    """
    run, at, version = source.rpartition("@")
    if at and (version.isdigit() or version == _NEWEST) and not Path(source).exists():
        return run, version
    return source, ""


def _weights(path: Path, asked: str, mapped: bool) -> tuple[Vector, Mapping[str, Vector], int, bool, int]:
    """Return the weights, what else is carried, their version, whether they are the run's last, and how many
    checkpoints were damaged.
    """
    has_ended, damaged = (path / "summary.json").exists(), 0
    version = int(asked) if asked.isdigit() else None
    if asked == _NEWEST or (not asked and not has_ended):
        if not asked and (wrong := damage(path)):
            raise RecordError(f"{path}: {wrong[0]}; the record is damaged, and RUN@VERSION is a checkpoint")
        found = newest_whole(DiskStore(path / CHECKPOINTS), weights_in)
        version, damaged = version_of(found.name or ""), len(found.skipped)
    if version is not None:
        try:
            weights, carried = of_checkpoint(path, version, mapped=mapped)
            return (weights.vector if mapped else np.array(weights.vector)), carried, version, False, damaged
        except (OSError, ValueError) as error:
            raise RecordError(f"{path}@{version}: {_reason(error)}") from None
    if not has_ended:
        lost = f" ({damaged} damaged)" if damaged else ""
        raise RecordError(
            f"{path}: its run has not ended and has no whole checkpoint{lost}; wait for its end, or run with "
            "--checkpoint-every"
        )
    summary = read_summary(path)
    last = last_weights(path, summary.weights_sha256, mapped=mapped)
    return last, carried_with(path), summary.updates, True, damaged


def _reason(error: Exception) -> str:
    system = error.strerror if isinstance(error, OSError) else None
    return system or " ".join(str(error).split())
