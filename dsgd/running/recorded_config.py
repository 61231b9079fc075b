"""The configuration of a recorded run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsgd.config import TrainConfig
from dsgd.records.reader import is_record, read_yaml
from dsgd.records.schema import RecordError
from dsgd.records.workload_copy import code_in
from dsgd.strategies import configured


def recorded_options(path: Path) -> dict[str, Any]:
    """Return a record's options, flat, as config.yaml has them; raises RecordError for what is no record."""
    if not path.is_dir():
        raise RecordError(f"{path}: there is no such folder; give the folder of a run")
    if not is_record(path):
        raise RecordError(f"{path}: is not a run record (it has no config.yaml); give the folder of a run")
    return read_yaml(path / "config.yaml")


def recorded_config(path: Path, options: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration that has a record's options. Its workload is the file that was trained, also
    where that has changed, or is not there any more. Raises RecordError, naming the file of the record.
    """
    if options.get("workload") is not None:
        options = {**options, "workload": str(code_in(path, options))}
    try:
        return configured(options)
    except KeyError as error:
        raise RecordError(f"{path / 'config.yaml'}: has no {error.args[0]}; the record is damaged") from None
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path / 'config.yaml'}: {error}") from None
