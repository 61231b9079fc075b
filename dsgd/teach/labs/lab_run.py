"""The run of an exercise with the student's options, and the runs that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgd.config import TrainConfig
from dsgd.core.option_rules import option_fields
from dsgd.running.quick_run import QuickRun, config, run
from dsgd.strategies import load
from dsgd.teach.labs import quantities
from dsgd.teach.labs.quantities import Value
from dsgd.teach.labs.wording import function


class Trial:
    """Runs the options of a lab, changed as asked, each of them once.

    All that runs raises ValueError, in one line, for options that do not go together.
    """

    def __init__(self, options: Mapping[str, Any], runs: dict[str, QuickRun] | None = None) -> None:
        """Prepare the runs; none is made yet. runs: those that other trials have made, and will make."""
        self.options = options
        self._runs = {} if runs is None else runs

    def run(self, **changes: Any) -> QuickRun:
        """Return the run with some options changed."""
        options = self._with(changes)
        key = repr(sorted(options.items()))
        if key not in self._runs:
            self._runs[key] = run(**options)
        return self._runs[key]

    def configured(self, **changes: Any) -> TrainConfig:
        """Return the configuration of such a run."""
        return config(**self._with(changes))

    def value(self, quantity: str, of: Mapping[str, Any] | None = None, **changes: Any) -> Value:
        """Return a quantity of such a run. of: the quantity's arguments."""
        found: Value = function(quantities, quantity)(self.run(**changes), **(of or {}))
        return found

    def _with(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        options = {**self.options, **changes}
        return floats(options, load(options["mode"]).Config)


def floats(options: Mapping[str, Any], config_type: type) -> dict[str, Any]:
    """Return options with their numbers as the command line reads them: as floats, whole numbers or text."""
    fields = option_fields(config_type)

    def read(name: str, value: Any) -> Any:
        kind = fields[name].kind if name in fields else ""
        if kind == "float":
            return float(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return str(value) if kind == "str" and number else value

    return {name: read(name, value) for name, value in options.items()}
