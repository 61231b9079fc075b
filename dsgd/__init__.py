"""A laboratory for distributed SGD: strategies that read like their papers, on Ray and in a simulator.

From Python, in any folder:

>>> import dsgd
>>> dsgd.run("asgd", engine="sim", num_workers=8, steps=100, workload="none")
<Result: asgd on sim, 8 workers, 800 updates, stopped by budget>

`config`, `data`, `metrics`, the first four strategies and the command line are links to the files at the top
of the repository: their code is there, their name is here, so that no other module called `config` or `data`
gets in the way.
"""

from __future__ import annotations

TYPE_CHECKING = False  # for type checkers it is true; `typing` itself would take most of the time to load
if TYPE_CHECKING:
    from dsgd.api import Comparison as Comparison
    from dsgd.api import Result as Result
    from dsgd.api import Watcher as Watcher
    from dsgd.api import experiment as experiment
    from dsgd.api import load as load
    from dsgd.api import modes as modes
    from dsgd.api import replay as replay
    from dsgd.api import run as run
    from dsgd.api import schedule as schedule
    from dsgd.api import simulation as simulation
    from dsgd.config import DataConfig as DataConfig
    from dsgd.core.problem import Problem as Problem

__all__ = (  # noqa: RUF022 - as the reference shows them
    "run", "experiment", "simulation", "schedule", "replay", "load", "modes",
    "Result", "Comparison", "Watcher", "Problem", "DataConfig",
)  # fmt: skip


def __getattr__(name: str) -> object:
    """Return what `dsgd.api` has, imported when it is first asked for: `import dsgd` alone takes no time."""
    if name not in __all__:
        raise AttributeError(f"module 'dsgd' has no attribute '{name}'")
    if name == "DataConfig":
        from dsgd.config import DataConfig

        return DataConfig
    if name == "Problem":
        from dsgd.core.problem import Problem

        return Problem
    from dsgd import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
