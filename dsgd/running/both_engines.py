"""One configuration on both engines: the simulator compared with reality."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dsgd.config import TrainConfig
from dsgd.process.outcomes import EXIT_CODES
from dsgd.records.schema import EngineComparison
from dsgd.running.comparison import measured_timing, write_comparison
from dsgd.running.execute import Ended


class Both(NamedTuple):
    """A run on Ray, the same in the simulator, and how far the two differ."""

    ended: Ended
    """The run that ended last: in the simulator or, if that on Ray was not completed, on Ray."""
    compared: EngineComparison | None
    """None if one was not completed."""


def execute_both(cfg: TrainConfig, folder: Path, run_one: Callable[[TrainConfig], Ended]) -> Both:
    """Run on Ray, then in the simulator with this machine's overhead, and compare the two.

    folder: gets the records `ray` and `sim`, and comparison.json.
    run_one: executes one of them, with a record.
    Raises ValueError if the run on Ray made no update.
    """
    output = replace(cfg.output, out=str(folder))
    ended = run_one(replace(cfg, engine="ray", ray=cfg.ray.on("ray"), output=replace(output, run_name="ray")))
    if EXIT_CODES[ended.stopped_by]:
        return Both(ended, None)
    try:
        limited = cfg.timing.server_bytes_per_s < math.inf or not cfg.network.only_servers_link
        timing = measured_timing(cfg.timing, folder / "ray", limited_links=limited)
    except ValueError as error:
        raise ValueError(f"{error}; give the run more --steps") from None
    ended = run_one(
        replace(
            cfg, engine="sim", ray=cfg.ray.on("sim"), timing=timing, output=replace(output, run_name="sim")
        )
    )
    if EXIT_CODES[ended.stopped_by]:
        return Both(ended, None)
    return Both(ended, write_comparison(folder))
