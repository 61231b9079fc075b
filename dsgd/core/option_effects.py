"""Where options have an effect: with which workloads and on which engine. Rules in a field's type."""

from __future__ import annotations

from dsgd.core.option_rules import NotWith, OnlyWith

BUILT_IN = ("xor", "digits", "quadratic", "none")
"""The workloads that are no torch module."""

SAMPLED = NotWith(workload=("quadratic", "none"))
LEARNED = NotWith(workload=("none",))
OF_PERCEPTRON = OnlyWith(workload=("xor", "digits"))
QUADRATIC = OnlyWith(workload="quadratic")
OF_MODULE = NotWith(workload=BUILT_IN)
ON_RAY = OnlyWith(engine=("ray", "both"))
SIMULATED = OnlyWith(engine="sim")
