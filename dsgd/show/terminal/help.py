"""What `--help` of a run prints: examples, the strategy's own options first, then those of all runs."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dsgd.config import DataConfig, TrainConfig
from dsgd.core.option_rules import Option, members, option_fields
from dsgd.process.outcomes import program
from dsgd.show.terminal import examples
from dsgd.strategies import Strategy, modes, own_options

NARROWEST, WIDEST = 40, 100
_NAMES = 24  # columns of the options' names
_KEPT = "\N{NO-BREAK SPACE}"  # a space where a line is not broken

OTHER_COMMANDS = (
    ("--experiment FILE", "run what the file compares, and draw a report"),
    ("--report DIR", "draw the report of an experiment or a run again, or an index of runs"),
    ("--replay RUN", "compute a recorded run again, and compare it with its record"),
    ("--evaluate RUN", "compute the loss and the score of what a run trained"),
    ("--export RUN FILE", "write what a run trained to a safetensors file"),
    ("--sample RUN", "print text that a trained language model makes"),
    ("--list [DIR]", "list the runs in a folder"),
    ("--watch DIR", "watch runs in a browser while they go on"),
    ("--new-strategy NAME", "write a strategy of your own: its file, page and test"),
    ("--conformance FILE", "hold a strategy to the laws of all strategies"),
    ("--check LAB ANSWERS", "check answers to docs/labs"),
    ("--version", "print the version"),
)
_FROM_FILES = (
    ("--config FILE", "the config.yaml of an earlier run"),
    ("--resume RUN", "go on with a run that was cut off, with its options; auto: with that of --run-name"),
)


def width() -> int:
    """Return how wide lines may be: as the terminal, within what can be read."""
    return min(WIDEST, max(NARROWEST, shutil.get_terminal_size().columns))


def run_help(strategy: Strategy, config_type: type[TrainConfig], mode: str, strategy_file: str | None) -> str:
    """Return the help page of a mode, for the terminal as wide as it is.

    config_type: its options, with those of a workload, if one is given.
    """
    columns = width()
    title = (strategy.__doc__ or "").strip().partition("\n")[0]
    chosen = f"--strategy-file {strategy_file}" if strategy_file else f"--mode {mode}"
    own, of_all, groups = _sorted(config_type)
    of_workload = [o for group in groups for o in option_fields(group).values() if o not in _of_all(group)]
    page = [
        f"usage: {program()} [OPTIONS]",
        "",
        *paragraph(f"Distributed SGD, one run. Mode {mode}: {title}", columns),
        "",
        "Examples:",
        *examples.lines(examples.of_run(chosen, getattr(strategy, "EXAMPLE", "")), columns),
        "",
        "Modes; --mode MODE --help shows the options of each:",
        *paragraph(", ".join(modes()), columns, "  "),
        "",
        *paragraph("Options from a file; those on the command line override them:", columns),
        *table(_FROM_FILES, columns),
        "",
        "Other commands, each with its own --help:",
        *table(OTHER_COMMANDS, columns),
    ]
    if own:
        page += ["", f"Options of {mode}:", *_options(own, columns)]
    if of_workload:
        page += ["", "Options of the workload:", *_options(of_workload, columns)]
    page += ["", "Options of every run:", *_options(of_all, columns)]
    for group in groups:
        about = DataConfig if issubclass(group, DataConfig) else group
        first, _, more = " ".join((about.__doc__ or "").split()).partition(". ")
        page += ["", *paragraph(f"{first.rstrip('.')}:", columns), *paragraph(more, columns, "  ")]
        page += _options(_of_all(group), columns)
    codes = "0 done, 1 failed, 2 usage, 3 diverged, 130 interrupted"
    return "\n".join([*page, "", "Exit codes:", *paragraph(codes, columns, "  ")])


def _sorted(config_type: type[TrainConfig]) -> tuple[list[Option], list[Option], list[Any]]:
    """Return a strategy's options that not all have, its own first; those of all strategies; the groups."""
    known, own = members(config_type).values(), list(own_options(config_type).values())
    of_all = [member for member in known if isinstance(member, Option) and member not in own]
    return own, of_all, [member for member in known if not isinstance(member, Option)]


def _of_all(group: type) -> list[Option]:
    """Return a group's options, those left out that a workload adds to those that describe data."""
    shared = option_fields(DataConfig if issubclass(group, DataConfig) else group)
    return [option for name, option in option_fields(group).items() if name in shared]


def _options(options: Iterable[Option], columns: int) -> Iterator[str]:
    return table(
        ((_usage(o), f"{o.help()} (default:{_KEPT}{_default(o.default)})") for o in options), columns
    )


def _usage(option: Option) -> str:
    name = option.name.replace("_", "-")
    if option.kind == "bool":
        return f"--{name}, --no-{name}"
    values = {"int": "INT", "float": "FLOAT", "str": "TEXT", "choice": "|".join(option.choices)}
    return f"--{name} {'MODE' if name == 'mode' else values[option.kind]}"


def _default(value: Any) -> str:
    """Return a default as it would be given.

    >>> _default(0.5), _default(None), _default(False), _default("")
    ('0.5', 'None', 'no', "''")
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "inf" if math.isinf(value) else f"{value:g}"
    return str(value) or "''"


def paragraph(text: str, columns: int, indent: str = "") -> list[str]:
    """Return a text as lines; words with a dash stay whole, so that options can be copied."""
    wrapped = textwrap.wrap(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(_KEPT, " ") for line in wrapped]


def table(rows: Iterable[Sequence[str]], columns: int) -> Iterator[str]:
    """Yield rows of a name and a text; a name that is too long has a line for itself."""
    for name, text in rows:
        first, *others = paragraph(text, columns, " " * (_NAMES + 2))
        if len(name) > _NAMES - 2:
            yield f"  {name}"
            yield first
        else:
            yield f"  {name:<{_NAMES}}{first.lstrip()}"
        yield from others
