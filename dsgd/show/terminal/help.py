"""What `--help TOPIC` prints: examples, and the options of that topic, those of the strategy first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from dsgd.config import DataConfig, TrainConfig
from dsgd.core.option_rules import HIDDEN, Option, members, option_fields
from dsgd.process.outcomes import UsageError, program
from dsgd.show.terminal import examples
from dsgd.show.terminal.front_page import TOPICS
from dsgd.show.terminal.paragraphs import KEPT, paragraph, table, width
from dsgd.show.terminal.scenario_option import scenarios_page
from dsgd.strategies import Strategy, own_options

_TOPIC_OF = {field: topic for topic, fields in TOPICS.items() for field in fields}


def run_help(
    strategy: Strategy,
    config_type: type[TrainConfig],
    mode: str,
    strategy_file: str | None,
    topic: str | None,
) -> str:
    """Return the help page of a topic, for the terminal as wide as it is; None: of the mode and the workload.

    config_type: its options, with those of a workload, if one is given. Raises UsageError for another topic.
    """
    if topic is not None and topic not in TOPICS:
        from dsgd.process.checked_yaml import did_you_mean

        raise UsageError(f"--help {topic}: is not a topic; {did_you_mean(topic, TOPICS)}")
    columns = width()
    if topic == "scenarios":
        return "\n".join(scenarios_page(columns))
    title = (strategy.__doc__ or "").strip().partition("\n")[0]
    chosen = f"--mode {strategy_file or mode}"
    page = [f"usage: {program()} [OPTIONS]"]
    if topic in (None, "mode", "all"):
        shown = examples.of_run(chosen, getattr(strategy, "EXAMPLE", ""))
        page += ["", *paragraph(f"Mode {mode}: {title}", columns), ""]
        page += ["Examples:", *examples.lines(shown, columns)]
    for heading, about, options in _sections(config_type, mode, topic):
        if topic != "all":
            options = [option for option in options if HIDDEN not in option.rules]
        page += ["", *paragraph(f"{heading}:", columns), *paragraph(about, columns, "  ")]
        page += table(option_rows(options), columns)
    return "\n".join([*page, "", *paragraph(f"More: --help TOPIC; topics are {', '.join(TOPICS)}.", columns)])


def _sections(
    config_type: type[TrainConfig], mode: str, topic: str | None
) -> Iterator[tuple[str, str, list[Option]]]:
    """Yield what a page shows: a heading, a text, and options."""
    own, of_all, groups = _sorted(config_type)
    of_workload = [
        o for group in groups.values() for o in option_fields(group).values() if o not in _of_all(group)
    ]
    if own and topic in (None, "mode", "all"):
        yield f"Options of {mode}", "", own
    if of_workload and topic in (None, "workload", "all"):
        yield "Options of the workload", "", of_workload
    if topic is None:
        return
    if shown := [o for o in of_all if topic in ("all", _TOPIC_OF.get(o.name, "learning"))]:
        yield "Options of every run", "", shown
    for name, group in groups.items():
        if topic in ("all", _TOPIC_OF[name]):
            about = DataConfig if issubclass(group, DataConfig) else group
            first, _, more = " ".join((about.__doc__ or "").split()).partition(". ")
            yield first.rstrip("."), more, _of_all(group)


def _sorted(config_type: type[TrainConfig]) -> tuple[list[Option], list[Option], dict[str, Any]]:
    """Return a strategy's options that not all have, its own first; those of all strategies; the groups."""
    known, own = members(config_type), list(own_options(config_type).values())
    of_all = [member for member in known.values() if isinstance(member, Option) and member not in own]
    return own, of_all, {name: group for name, group in known.items() if not isinstance(group, Option)}


def _of_all(group: type) -> list[Option]:
    """Return a group's options, those left out that a workload adds to those that describe data."""
    shared = option_fields(DataConfig if issubclass(group, DataConfig) else group)
    return [option for name, option in option_fields(group).items() if name in shared]


def option_rows(options: Iterable[Option]) -> Iterator[tuple[str, str]]:
    """Yield a row for each option: its name and kind of value, and its text with its default."""
    for option in options:
        yield _usage(option), f"{option.help()} (default:{KEPT}{_default(option.default)})"


def _usage(option: Option) -> str:
    name = option.name.replace("_", "-")
    if option.kind == "bool":
        return f"--no-{name}" if option.default is True else f"--{name}"
    values = {"int": "INT", "float": "FLOAT", "choice": "|".join(option.choices)}
    return f"--{name} {'MODE' if name == 'mode' else values.get(option.kind, 'TEXT')}"


def _default(value: Any) -> str:
    r"""Return a default as it would be given.

    >>> _default(0.5), _default(None), _default(False), _default("")
    ('0.5', 'None', 'no', "''")
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "inf" if math.isinf(value) else f"{value:g}"
    return "none" if value == () else str(value) if str(value).strip() else repr(value)
