"""The command line: options of the chosen mode, each one a field of its configuration.

Neither torch nor ray is imported here: `--help` and mistakes are answered at once.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro
import yaml
from tyro import _errors as tyro_errors  # private, but the pinned version's one way to a one-line message
from tyro.constructors import (
    MISSING,
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from dsgd.config import DataConfig, TrainConfig
from dsgd.faults.faults_text import FILE_ENDINGS
from dsgd.options import unique_keys
from dsgd.options.constraints import Checked, Option, members, option_fields
from dsgd.options.user_code import located
from dsgd.strategies import config_of, load, mode_of, modes
from dsgd.terminal.help import run_help
from dsgd.terminal.messages import print_page
from dsgd.workloads import names as workloads
from dsgd.workloads import options_of

_DEFAULT_MODE = "ssgd"


class UsageError(Exception):
    """What the user asked for cannot be done; the message is one line."""


def parse(arguments: Sequence[str]) -> TrainConfig:
    """Return the configuration that the command line, and the file after `--config`, ask for.

    Raises UsageError in one line for anything that is wrong. `--help` and `--version` print and raise
    SystemExit.
    """
    arguments = [with_dashes(argument) for argument in arguments]
    if is_given(arguments, "--version"):
        from importlib.metadata import version

        print_page(f"dsgd-lab {version('dsgd-lab')}")
        raise SystemExit(0)
    arguments, config_file = take_option(arguments, "--config")
    file_options = _read_config(config_file) if config_file is not None else {}
    file_options.pop("run_name", None)  # a repetition is another run, with its own name
    return configure(file_options, f"--config {config_file}", arguments)


def configure(file_options: Mapping[str, Any], source: str, arguments: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration that a file's options ask for; `arguments` override them.

    source: what messages call the file. Raises UsageError in one line for anything that is wrong.
    """
    file_options, arguments = dict(file_options), list(arguments)
    mode, strategy_file = _chosen(file_options, arguments)
    workload = _workload(file_options, arguments)
    given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    try:
        strategy = load(mode, strategy_file)
    except ValueError as error:
        is_of_file = "mode" in file_options and _value(arguments, "--mode") is None
        raise UsageError(f"{source}: {error}" if is_of_file else str(error)) from None
    try:
        config_type = config_of(mode, strategy_file, workload)
    except ValueError as error:
        is_of_file = "workload" in file_options and _value(arguments, "--workload") is None
        raise UsageError(f"{source}: {error}" if is_of_file else str(error)) from None
    if {"-h", "--help"} & set(arguments):
        print_page(run_help(strategy, config_type, mode, strategy_file))
        raise SystemExit(0)
    known = option_fields(config_type)
    for key in file_options:
        if key not in known:
            raise UsageError(f"{source}: {_unknown(key, mode, known, spelled=key)}")
    in_file = [key for key in file_options if not given & {f"--{_dashed(key)}", f"--no-{_dashed(key)}"}]
    from_file = [token for key in in_file for token in _tokens(known[key], file_options[key], source)]
    tokens = [*from_file, *arguments]

    def explain(event: tyro_errors.ParseErrorEvent) -> None:
        message = _explain(event, mode, known, tokens)
        culprit = re.match(r"--([\w-]+)", message)
        raise UsageError(f"{source}: {message}" if culprit and _field(culprit[1]) in in_file else message)

    try:
        with tyro_errors.on_parse_error(explain):
            cfg: TrainConfig = tyro.cli(
                config_type,
                prog="main.py",
                args=tokens,
                add_help=False,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed),
                registry=_REGISTRY,
            )
    except UsageError:
        raise
    except Exception as error:
        if strategy_file is None:
            raise
        raise UsageError(f"--strategy-file {strategy_file}: {located(error, Path(strategy_file))}") from None
    return _with_faults_of_file(cfg)


def _with_faults_of_file(cfg: TrainConfig) -> TrainConfig:
    """Return the configuration with the faults that the file of `--faults` lists: it may change later."""
    fault = cfg.fault
    if not fault.faults.endswith(FILE_ENDINGS):
        return cfg
    return replace(cfg, fault=replace(fault, faults="; ".join(map(str, fault.fault_list))))


def _chosen(file_options: dict[str, Any], arguments: list[str]) -> tuple[str, str | None]:
    """Return the mode and the file of `--strategy-file`, if any; then both are put into the arguments.

    If the command line gives one of them, those of the file are ignored.
    """
    mode, file = _value(arguments, "--mode"), _value(arguments, "--strategy-file")
    if mode is None and file is None:
        mode, file = file_options.get("mode"), file_options.get("strategy_file")
    file_options.pop("strategy_file", None)
    if file_options.get("mode") is None:  # `mode: null` in a file
        file_options.pop("mode", None)
    if file in (None, "None"):
        return str(mode or _DEFAULT_MODE), None
    try:
        own = mode_of(str(file))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if mode not in (None, own):
        raise UsageError(f"--mode {mode}: --strategy-file {file} is mode {own}; leave --mode out")
    arguments[:] = take_option(take_option(arguments, "--mode")[0], "--strategy-file")[0]
    arguments += [f"--mode={own}", f"--strategy-file={Path(str(file)).resolve()}"]
    return own, str(file)


def _workload(file_options: dict[str, Any], arguments: list[str]) -> str | None:
    """Return the workload, if any. Its path and that of its data are put into the arguments as ones that hold
    in any folder.
    """
    data = _value(arguments, "--data")
    if data not in (None, "", "None") and "://" not in data:
        whole = Path(data).expanduser().absolute()
        arguments[:] = [*take_option(arguments, "--data")[0], "--data", str(whole)]
    workload = _value(arguments, "--workload") or file_options.get("workload")
    if workload in (None, "None") or not isinstance(workload, str):  # other types are refused as all are
        return None
    if workload.endswith(".py"):
        workload = str(Path(workload).resolve())
        arguments[:] = [*take_option(arguments, "--workload")[0], f"--workload={workload}"]
    return workload


_REGISTRY = ConstructorRegistry()


@_REGISTRY.struct_rule
def _config_type(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Describe a configuration to tyro: by its own reading of the texts, it would keep their line breaks."""
    config_type: Any = info.type
    if Checked not in getattr(config_type, "__mro__", ()):
        return None
    return StructConstructorSpec(
        instantiate=config_type,
        fields=tuple(
            StructFieldSpec(name, member.type, member.default, member.help)
            if isinstance(member, Option)
            else StructFieldSpec(name, member, MISSING)
            for name, member in members(config_type).items()
        ),
    )


def _explain(
    event: tyro_errors.ParseErrorEvent, mode: str, known: Mapping[str, Option], tokens: Sequence[str]
) -> str:
    match event:
        case tyro_errors.UnrecognizedArgs(tokens=unknown):
            if not unknown[0].startswith("-"):
                return f"'{unknown[0]}' is not an option; options are written --name value, see --help"
            return _unknown(_field(unknown[0]), mode, known, spelled=unknown[0])
        case tyro_errors.InvalidChoice(argument=argument, value=value):
            option = _name(argument)
            return f"{option} {value}: {known[_field(option)].kind_in_words}"
        case tyro_errors.BadValue(argument=argument):
            option = _name(argument)
            asked = known[_field(option)]
            rule = "; --help describes it" if asked.kind == "str" else f", which {asked.kind_in_words}"
            return f"{option}: needs a value{rule}"
        case tyro_errors.InstantiationFailure(message=message, argument=None):
            return message.strip()
        case tyro_errors.InstantiationFailure(argument=argument):
            option = _name(argument)
            return f"{option} {_value(tokens, option)}: {known[_field(option)].kind_in_words}"
    return f"the command line cannot be read ({type(event).__name__}); see --help"


def _name(argument: Any) -> str:
    return str(argument.display_name())


def _unknown(key: str, mode: str, known: Mapping[str, Option], *, spelled: str) -> str:
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
    return f"--{_dashed(key)}" if spelled.startswith("-") else key


def _read_config(path: str) -> dict[str, Any]:
    try:
        content = unique_keys.load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"--config {path}: cannot be read ({error.strerror}); give a run's config.yaml"
        ) from None
    except unique_keys.DuplicateKeyError as error:
        raise UsageError(f"--config {path}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"--config {path}: is not YAML ({reason}); give a run's config.yaml") from None
    if content is None:
        raise UsageError(f"--config {path}: is empty; give a run's config.yaml")
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: must be a mapping of options to values, like a run's config.yaml")
    return {str(key).replace("-", "_"): value for key, value in content.items()}


def _tokens(option_field: Option, value: Any, source: str) -> list[str]:
    """Return an option of a file as it would stand on the command line."""
    key, is_switch = option_field.name, option_field.kind == "bool"
    option = f"--{_dashed(key)}"
    if isinstance(value, bool) != is_switch:
        rule = "true or false" if is_switch else f"a value, not {str(value).lower()}"
        raise UsageError(f"{source}: '{key}' must be {rule}")
    if isinstance(value, bool):
        return [option if value else f"--no-{_dashed(key)}"]
    if value is None:
        return [option, "None"]
    if isinstance(value, float) and math.isinf(value):
        return [option, str(value)]
    if isinstance(value, str | int | float):
        return [f"{option}={value}"]
    raise UsageError(f"{source}: '{key}' must be one value, not a {type(value).__name__}")


def with_dashes(argument: str) -> str:
    """Return an argument with dashes in its option's name, which may be written with underscores."""
    name, sign, value = argument.partition("=")
    return f"--{_dashed(name[2:])}{sign}{value}" if name.startswith("--") else argument


def take_option(arguments: Sequence[str], option: str) -> tuple[list[str], str | None]:
    """Return the arguments without `option` and its value, and the value."""
    value = _value(arguments, option)
    kept, skip = [], False
    for argument in arguments:
        if skip or argument == option or argument.startswith(f"{option}="):
            skip = argument == option and not skip
        else:
            kept.append(argument)
    return kept, value


def _value(arguments: Sequence[str], option: str) -> str | None:
    """Return the last value given for `option`."""
    value = None
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
        elif argument == option:
            if not following or following.startswith("--"):
                raise UsageError(f"{option}: needs a value; --help describes it")
            value = following
    return value


def is_given(arguments: Sequence[str], option: str) -> bool:
    """Return whether `option` is among the arguments."""
    return any(argument == option or argument.startswith(f"{option}=") for argument in arguments)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _field(name: str) -> str:
    return name.partition("=")[0].removeprefix("--").replace("-", "_")
