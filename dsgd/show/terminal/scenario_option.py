"""`--scenario NAME`: times, network and faults that belong together, by the options that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsgd.core.option_rules import option_fields
from dsgd.process.checked_yaml import convert, did_you_mean, read
from dsgd.process.outcomes import UsageError
from dsgd.scenario.fault_options import FaultConfig
from dsgd.scenario.network_options import NetworkConfig
from dsgd.scenario.timing_options import TimingConfig
from dsgd.show.terminal.arguments import dashed, take_option
from dsgd.show.terminal.paragraphs import paragraph

FOLDER = Path(__file__).parents[2] / "scenarios"
_OPTIONS = {name for group in (TimingConfig, NetworkConfig, FaultConfig) for name in option_fields(group)}


def names() -> list[str]:
    """Return the names of the scenarios that are there."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def options_of_scenario(text: str) -> dict[str, Any]:
    """Return the options that scenarios stand for. text: names, or files of yours, between commas.

    Raises UsageError for what is no scenario, and for two that do not go together.
    """
    found: dict[str, Any] = {}
    for name in text.split(","):
        options = {key.replace("-", "_"): value for key, value in _content(name).items() if key != "about"}
        for key in options:
            if key not in _OPTIONS:
                hint = did_you_mean(key, _OPTIONS, "it may set times, the network and faults")
                raise UsageError(f"--scenario {name}: {key} is no option of a scenario; {hint}")
            if found.get(key, options[key]) != options[key]:
                raise UsageError(f"--scenario {text}: both set {key}, and not alike; give one of them")
        found |= options
    return found


def with_scenario(arguments: Sequence[str]) -> list[str]:
    """Return a command line with a scenario's options in its place, before all others, which override it."""
    rest, text = take_option(arguments, "--scenario")
    options = {} if text is None else options_of_scenario(text)
    return [*(f"--{dashed(name)}={value}" for name, value in options.items()), *rest]


def scenarios_page(columns: int) -> Iterator[str]:
    """Yield what `--help scenarios` shows: each with the options that it stands for."""
    about = "--scenario NAME stands for options, which others override. Two may be joined: one-slow,wan."
    yield from paragraph(about, columns)
    for name in names():
        yield ""
        yield f"{name}:"
        yield from paragraph(str(_content(name)["about"]), columns, "  ")
        given = (f"--{dashed(key)} {value}" for key, value in options_of_scenario(name).items())
        yield from paragraph(" ".join(given), columns, "    ")


def _content(name: str) -> Mapping[str, Any]:
    is_file = name.endswith((".yaml", ".yml"))
    if not is_file and name not in names():
        hint = did_you_mean(name, names())
        raise UsageError(f"--scenario {name}: is no scenario; {hint}, or give a file")
    file = Path(name) if is_file else FOLDER / f"{name}.yaml"
    where, remedy = f"--scenario {name}", "give a scenario's file, as in experiments/scenarios"
    return convert(read(file, where, remedy), dict[str, Any], where)
