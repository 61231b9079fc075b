"""A comparison without a file: `compare ssgd asgd ssp --slowdown 0=4 --target-loss .3`.

What is named becomes the content of an experiment's file, which is printed to be kept and changed.
Runs are simulated unless --engine says otherwise, and each mode's step size is tuned unless --lr gives one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dsgd.compare.experiment_file import NOT_HERE
from dsgd.core.option_rules import Option, option_fields
from dsgd.process.checked_yaml import did_you_mean
from dsgd.process.outcomes import UsageError
from dsgd.records.variants import option_text
from dsgd.show.report.written_numbers import listed
from dsgd.strategies import config_of, mode_of, modes

SEEDS = 5
"""Of each mode, where the command line does not say how many."""


def named(words: Sequence[str]) -> list[str]:
    """Return those of the words of a command line that name a mode, or the file of one."""
    return [word for word in words if word in modes() or _is_file(word)]


def options_of_runs(words: Sequence[str], workload: str | None) -> dict[str, Mapping[str, Option]]:
    """Return the options that runs of each mode may be given, by the word that names it.

    Raises UsageError for a strategy or a workload that cannot be loaded.
    """
    try:
        types = {word: config_of(*_strategy(word), workload) for word in words}
    except ValueError as error:
        raise UsageError(str(error)) from None
    left_out = {"mode", "strategy_file", *NOT_HERE}
    return {
        word: {name: option for name, option in option_fields(of).items() if name not in left_out}
        for word, of in types.items()
    }


def content_of(
    words: Sequence[str],
    known: Mapping[str, Mapping[str, Option]],
    given: Mapping[str, Any],
    seeds: int | None,
) -> dict[str, Any]:
    """Return what an experiment's file would have in it; raises UsageError for words that name no two modes.

    known: as `options_of_runs` returns it. given: values of such options; one that not all modes have goes to
    those that have it.
    """
    for word in words:
        if word not in known:
            raise UsageError(f"compare {word}: is no mode; {did_you_mean(word, modes())}")
    if len(known) < 2:
        raise UsageError(f"compare {words[0]}: a comparison needs two modes; name another")
    given = dict(sorted(given.items()))  # so that their order makes no other experiment
    target = given.pop("target_loss", None)
    learns = given.get("workload") != "none"
    if target is not None and not learns:
        raise UsageError(f"--target-loss {target:g}: --workload none has no loss; leave it out")
    aim = "has the lowest loss after the same work" if learns else "does the same work first"
    aim = aim if target is None else f"reaches loss {target:g} first"
    with_ = listed([f"{name} {option_text(value)}" for name, value in given.items()])
    names = [_strategy(word)[0] for word in known]
    of_all = {name: value for name, value in given.items() if all(name in own for own in known.values())}
    content = {
        "title": f"{', '.join(names[:-1])} or {names[-1]}?",
        "question": f"Which {aim}{', with ' * bool(with_)}{with_}?",
        "base": {"engine": "sim", **of_all},
        "variants": {
            name: {"mode": word}
            | {option: given[option] for option in given if option in own and option not in of_all}
            for name, (word, own) in zip(names, known.items(), strict=True)
        },
        "tune": "auto" if learns and "lr" not in given else None,
        "seeds": seeds or SEEDS,
        "target_loss": target,
    }
    return {key: value for key, value in content.items() if value is not None}


def name_of(content: Mapping[str, Any]) -> str:
    """Return the name of the experiment; other options have another one."""
    digest = hashlib.sha256(text_of(content).encode()).hexdigest()
    return f"{'-'.join(content['variants'])}-{digest[:6]}"


def text_of(content: Mapping[str, Any]) -> str:
    """Return the experiment's file."""
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=100)


def _is_file(word: str) -> bool:
    return re.fullmatch(r"train_\w+\.py", Path(word).name) is not None


def _strategy(word: str) -> tuple[str, str | None]:
    return (mode_of(word), word) if _is_file(word) else (word, None)
