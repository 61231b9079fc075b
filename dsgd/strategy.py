"""All that a strategy's file imports: `from dsgd.strategy import *`.

A strategy is a `Config`, its options, and `train(cluster, w, cfg)`, a generator that hands out tasks and
yields an `Update` for each new version of the weights. train_ssgd.py is the shortest; CONTRIBUTING.md leads
through a new one.

    GradientConfig, AsynchronousConfig    options where a server applies gradients: after a barrier, or each
    LocalConfig, ExchangeConfig           where workers take local steps between two exchanges
    PeerConfig, TrainConfig               where there is no server; what all runs have
    Ge, Gt, Le, Lt, FINITE, OnlyWith, ... rules in an option's type; require: those of several options
    Traits                                what its workers send, and whether an update waits for all of them
    gradient, local_sgd, inner_steps, ... tasks: what a worker computes from weights and mini-batches
    run_all, start_idle, next_round, ...  who gets a task, and who is waited for
    server_rule, chain and its parts      how the server makes new weights of results
    Laws, Limit                           what the strategy claims; `dsgd check FILE` tests it

Formulas that predict its runs are in dsgd/theory: `closed_forms` has the quantities they may give.
"""

from __future__ import annotations

from annotated_types import Ge, Gt, Le, Lt

from dsgd.config import (
    AsynchronousConfig,
    ExchangeConfig,
    GradientConfig,
    LocalConfig,
    PeerConfig,
    TrainConfig,
)
from dsgd.core.option_rules import FINITE, HIDDEN, OnlyWith, require, whole_or_inf
from dsgd.core.protocol import (
    Cluster,
    Done,
    Update,
    in_worker_order,
    next_round,
    run_all,
    start_all,
    start_idle,
    start_portions,
)
from dsgd.core.rules import (
    Average,
    Compensate,
    DelayedNesterov,
    Descend,
    Momentum,
    Moved,
    Pull,
    Rule,
    Slots,
    TaskResult,
    chain,
)
from dsgd.core.tasks import Elastic, LocalAdamW, LocalSGD, Task, gradient
from dsgd.core.traits import Traits
from dsgd.core.weights import Vector, Weights, consensus, mean
from dsgd.strategies.conformance import Laws, Limit
from dsgd.strategies.optimizers import inner_steps, local_sgd, schedule, server_rule

__all__ = [
    "FINITE",
    "HIDDEN",
    "AsynchronousConfig",
    "Average",
    "Cluster",
    "Compensate",
    "DelayedNesterov",
    "Descend",
    "Done",
    "Elastic",
    "ExchangeConfig",
    "Ge",
    "GradientConfig",
    "Gt",
    "Laws",
    "Le",
    "Limit",
    "LocalAdamW",
    "LocalConfig",
    "LocalSGD",
    "Lt",
    "Momentum",
    "Moved",
    "OnlyWith",
    "PeerConfig",
    "Pull",
    "Rule",
    "Slots",
    "Task",
    "TaskResult",
    "TrainConfig",
    "Traits",
    "Update",
    "Vector",
    "Weights",
    "chain",
    "consensus",
    "gradient",
    "in_worker_order",
    "inner_steps",
    "local_sgd",
    "mean",
    "next_round",
    "require",
    "run_all",
    "schedule",
    "server_rule",
    "start_all",
    "start_idle",
    "start_portions",
    "whole_or_inf",
]
