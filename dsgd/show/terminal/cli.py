"""The command line: options of the chosen mode, each one a field of its configuration.

Neither torch nor ray is imported here: `--help` and mistakes are answered at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from dsgd.config import DataConfig, TrainConfig
from dsgd.core.old_options import old_options, refused, renewed
from dsgd.core.option_effects import BUILT_IN
from dsgd.core.option_rules import Option, from_options, option_fields
from dsgd.models.workloads import PYTHON, options_of
from dsgd.models.workloads import names as workloads
from dsgd.process.checked_yaml import read
from dsgd.process.outcomes import UsageError, print_page
from dsgd.process.user_code import located
from dsgd.records.fixed_options import GONE
from dsgd.scenario.faults_text import FILE_ENDINGS
from dsgd.show.terminal.arguments import (
    dashed,
    field_of,
    read_value,
    take_option,
    value_of,
    values_of,
    with_dashes,
)
from dsgd.show.terminal.help import run_help
from dsgd.show.terminal.scenario_option import with_scenario
from dsgd.strategies import config_of, load, mode_of, modes

_DEFAULT_MODE = "ssgd"


def parse(arguments: Sequence[str]) -> TrainConfig:
    """Return the configuration that the command line, and the file after `--config`, ask for.

    Raises UsageError in one line for anything that is wrong. `--help` prints and raises SystemExit.
    """
    arguments = with_scenario([with_dashes(argument) for argument in arguments])
    for topic, names in (("mode", modes()), ("workload", (*BUILT_IN, *workloads()))):
        if (name := _topic(arguments)) in names:
            arguments = [f"--{topic}", str(name), "--help", topic]
    arguments, config_file = take_option(arguments, "--config")
    file_options = _read_config(config_file) if config_file is not None else {}
    file_options.pop("run_name", None)  # a repetition is another run, with its own name
    fixed = without_auto(arguments)
    if fixed is not arguments:
        from dsgd.running.fitting import largest_batch_size

        try:
            size = largest_batch_size(configure(file_options, f"--config {config_file}", fixed))
        except ValueError as error:
            raise UsageError(str(error)) from None
        arguments = [*fixed, f"--batch-size={size}"]
    return configure(file_options, f"--config {config_file}", arguments)


def without_auto(arguments: list[str]) -> list[str]:
    """Return the arguments without --batch-size if that is auto, else as they are."""
    others, size = take_option(arguments, "--batch-size")
    return others if size == "auto" else arguments


def configure(file_options: Mapping[str, Any], source: str, arguments: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration that a file's options ask for; `arguments` override them.

    source: what messages call the file. Raises UsageError in one line for anything that is wrong.
    """
    file_options, arguments = dict(file_options), list(arguments)
    mode, strategy_file = _chosen(file_options, arguments)
    workload = _workload(file_options, arguments)
    try:
        strategy = load(mode, strategy_file)
    except ValueError as error:
        is_of_file = "mode" in file_options and value_of(arguments, "--mode") is None
        raise UsageError(f"{source}: {error}" if is_of_file else str(error)) from None
    try:
        config_type = config_of(mode, strategy_file, workload)
    except ValueError as error:
        is_of_file = "workload" in file_options and value_of(arguments, "--workload") is None
        raise UsageError(f"{source}: {error}" if is_of_file else str(error)) from None
    if {"-h", "--help"} & set(arguments):
        print_page(run_help(strategy, config_type, mode, strategy_file, _topic(arguments)))
        raise SystemExit(0)
    known = option_fields(config_type)
    file_options = renewed(file_options)
    for key in file_options:
        if key not in known:
            raise UsageError(f"{source}: {_unknown(mode, known, key, key)}")
    given = values_of(arguments, {**old_options(known), **known}, partial(_unknown, mode, known))
    if wrong := refused(given, known):
        raise UsageError(wrong)
    given = renewed(given, {"mode": mode, "workload": workload} | file_options)
    if unknown := [key for key in given if key not in known]:
        raise UsageError(_unknown(mode, known, unknown[0], f"--{dashed(unknown[0])}"))
    in_file = [key for key in file_options if key not in given]
    values = {key: _value_in_file(known[key], file_options[key], source) for key in in_file} | given
    missing = [key for key, option in known.items() if option.default is MISSING and key not in values]
    if missing:
        raise UsageError(f"--{dashed(missing[0])}: has no default; give it a value")
    try:
        cfg = from_options(config_type, values)
    except ValueError as error:
        culprit = re.match(r"--([\w-]+)", str(error))
        is_of_file = culprit is not None and field_of(culprit[1]) in in_file
        raise UsageError(f"{source}: {error}" if is_of_file else str(error)) from None
    except (Exception, SystemExit) as error:  # of the Config in a user's file
        option = "mode" if strategy_file else "workload"
        file = strategy_file or values.get("workload")
        said = located(error, Path(str(file)))
        if not strategy_file and not said.startswith("line "):  # nor is it of a workload's file
            raise
        raise UsageError(f"--{option} {file}: {said}") from None
    return _with_faults_of_file(cfg)


def _with_faults_of_file(cfg: TrainConfig) -> TrainConfig:
    """Return the configuration with the faults that the file of `--faults` lists: it may change later."""
    fault = cfg.fault
    if not fault.faults.endswith(FILE_ENDINGS):
        return cfg
    return replace(cfg, fault=replace(fault, faults="; ".join(map(str, fault.fault_list))))


def _chosen(file_options: dict[str, Any], arguments: list[str]) -> tuple[str, str | None]:
    """Return the mode and the file of the user's strategy, if any; then both are put into the arguments.

    If the command line gives one of them, those of the file are ignored.
    """
    mode, file = value_of(arguments, "--mode"), value_of(arguments, "--strategy-file")
    if mode is None and file is None:
        mode, file = file_options.get("mode"), file_options.get("strategy_file")
    file_options.pop("strategy_file", None)
    if str(mode).endswith(".py"):
        mode, file = None, mode
    if file_options.get("mode") is None:  # `mode: null` in a file
        file_options.pop("mode", None)
    if file in (None, "None"):
        return str(mode or _DEFAULT_MODE), None
    try:
        own = mode_of(str(file))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if mode not in (None, own):
        raise UsageError(f"--mode {mode}: the strategy in {file} is {own}; give --mode {file} alone")
    arguments[:] = take_option(take_option(arguments, "--mode")[0], "--strategy-file")[0]
    arguments += [f"--mode={own}", f"--strategy-file={Path(str(file)).resolve()}"]
    return own, str(file)


def _workload(file_options: dict[str, Any], arguments: list[str]) -> str | None:
    """Return the workload, if any. Its path and that of its data are put into the arguments as ones that hold
    in any folder.
    """
    data = value_of(arguments, "--data")
    if data not in (None, "", "None", PYTHON) and "://" not in data:
        whole = Path(data).expanduser().absolute()
        arguments[:] = [*take_option(arguments, "--data")[0], "--data", str(whole)]
    workload = value_of(arguments, "--workload") or file_options.get("workload")
    if not isinstance(workload, str):  # other types are refused as all are
        return None
    if workload.endswith(".py"):
        workload = str(Path(workload).resolve())
        arguments[:] = [*take_option(arguments, "--workload")[0], f"--workload={workload}"]
    return workload


def _topic(arguments: Sequence[str]) -> str | None:
    """Return what `--help` is asked about: the word after it."""
    return next(
        (after for word, after in pairwise(arguments) if word in ("-h", "--help") and after[:1] != "-"), None
    )


def _unknown(mode: str, known: Mapping[str, Option], key: str, spelled: str) -> str:
    others = [m for m in modes() if m != mode and key in option_fields(load(m).Config)]
    if others:
        return (
            f"{spelled} is an option of --mode {', '.join(others)}, not of --mode {mode}; "
            "leave it out or choose that mode"
        )
    if of := ", ".join(w for w in workloads() if key in option_fields(options_of(w) or DataConfig)):
        return f"{spelled} is an option of --workload {of}; leave it out or choose that workload"
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {_like(spelled, near[0])}?" if near else "--help lists the options and the modes"
    return f"{spelled}: there is no such option in --mode {mode}; {hint}"


def _like(spelled: str, key: str) -> str:
    return f"--{dashed(key)}" if spelled.startswith("-") else key


def _read_config(path: str) -> dict[str, Any]:
    content = read(Path(path), f"--config {path}", "give a run's config.yaml")
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: must be a mapping of options to values, like a run's config.yaml")
    given = {key.replace("-", "_"): value for key, value in content.items()}
    return {name: value for name, value in given.items() if name not in GONE}


def _value_in_file(option: Option, value: Any, source: str) -> Any:
    """Return the value of an option in a file: a text means what it means on the command line."""
    key, is_switch = option.name, option.kind == "bool"
    if isinstance(value, bool) != is_switch:
        rule = "true or false" if is_switch else f"a value, not {str(value).lower()}"
        raise UsageError(f"{source}: '{key}' must be {rule}")
    if isinstance(value, bool):
        return value
    if not isinstance(value, str | int | float | None):
        raise UsageError(f"{source}: '{key}' must be one value, not a {type(value).__name__}")
    try:
        return read_value(option, str(value))
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
