"""What an experiment varies, as a table: its variants by the levels that are compared and by group.

An experiment's file may say what it asks: `compare: local_steps` compares the levels of that option, `per:
partition` does so for each partition. The file is checked with the same code that arranges the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from dsgd.process.checked_yaml import did_you_mean
from dsgd.show.report.measures import BEST
from dsgd.show.report.written_numbers import listed, option_text

PARTS = ("variants", "grid")
"""Parts of a file whose names may stand for an option: `compare: variants` compares them by these names."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What an experiment's file asks of its report: the keys compare, per, baseline and measure."""

    compare: str | None = None
    per: Sequence[str] = ()
    baseline: str | None = None
    measures: Sequence[str] = ()

    def __bool__(self) -> bool:
        return any((self.compare, self.per, self.baseline, self.measures))

    @property
    def tuned(self) -> str | None:
        """The option of `measure: best OPTION`."""
        first = next(iter(self.measures), "")
        return first.removeprefix(BEST) if first.startswith(BEST) else None


@dataclass(frozen=True, kw_only=True)
class Member:
    """A variant, and what it is made of."""

    name: str
    config: Mapping[str, Any]
    """All its options, flat."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """The names that it has in the file, by PARTS."""

    def key(self, factors: Sequence[str]) -> tuple[str, ...]:
        """Return its values of some options or parts."""
        return tuple(self.value(factor) for factor in factors)

    def value(self, factor: str) -> str:
        if factor in PARTS:
            return self.parts.get(factor, "")
        return option_text(self.config.get(factor))


@dataclass(frozen=True, kw_only=True)
class Factor:
    """Something that is varied, and its levels in order."""

    option: str
    """The option, or several; empty for the variants themselves."""
    levels: Sequence[str]
    """By their names: the file's own where it has them, else like slack=4."""
    numbers: Mapping[str, float]
    """By level, if all of them are numbers; else empty."""

    def short(self, level: str) -> str:
        """Return a level's name without the option's.

        >>> Factor(option="slack", levels=["slack=1"], numbers={"slack=1": 1.0}).short("slack=1")
        '1'
        """
        return level.removeprefix(f"{self.option}=") if self.option else level


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The variants of an experiment by group and level. Some may be missing, if none of their runs ended."""

    compared: Factor
    grouped: Factor
    cells: Mapping[str, Mapping[str, str]]
    """The variant by group and level. A single group's name is empty."""
    baseline: str | None = None
    """The level that the others are compared with."""

    @property
    def groups(self) -> dict[str, list[str]]:
        """The variants of each group."""
        return {group: list(cells.values()) for group, cells in self.cells.items()}

    def level(self, group: str, variant: str) -> str:
        """Return what a variant is called in its group."""
        return next(level for level, other in self.cells[group].items() if other == variant)


def by_name(groups: Mapping[str, Mapping[str, str]], baseline: str | None = None) -> Layout:
    """Return a layout of variants that no option arranges.

    groups: the variants by group and by what they are called there. baseline: such a name, or a variant's.
    """
    levels = list(dict.fromkeys(level for cells in groups.values() for level in cells))
    named = {variant: level for cells in groups.values() for level, variant in cells.items()}
    return Layout(
        compared=Factor(option="", levels=levels, numbers={}),
        grouped=Factor(option="", levels=list(groups), numbers={}),
        cells=groups,
        baseline=baseline if baseline is None or baseline in levels else named.get(baseline),
    )


def alone(variants: Sequence[str]) -> Layout:
    """Return a layout of variants in a single group."""
    return by_name({"": {variant: variant for variant in variants}})


def arrange(asked: Asked, members: Sequence[Member], ignored: Sequence[str] = ()) -> Layout:
    """Return the variants as `asked.compare` and `asked.per` arrange them.

    Without `per`, variants with the same level are set apart by all the options in which they differ.
    ignored: options that are no factors: those tuned, and those that do not define a variant.

    Raises ValueError, in one line, for an option that is not varied, variants that the two keys do not set
    apart, and a baseline that is not a level.
    """
    assert asked.compare is not None
    options = list(dict.fromkeys(option for member in members for option in member.config))
    varied = [o for o in options if o not in ignored and len({m.value(o) for m in members}) > 1]
    varied += [part for part in PARTS if len({m.value(part) for m in members}) > 1]
    for name, factor in (("compare", asked.compare), *(("per", one) for one in asked.per)):
        _require_varied(name, factor, members, varied)
    if asked.compare in asked.per:
        raise ValueError(f"per: {asked.compare} is what compare: names; name another option")
    per = list(asked.per) or _set_apart(asked.compare, members, [o for o in varied if o not in PARTS])
    _require_one_a_cell(asked, per, members, varied)
    compared = _factor([asked.compare], members)
    grouped = _factor(per, members)
    cells: dict[str, dict[str, str]] = {group: {} for group in grouped[0].levels}
    for level in compared[0].levels:
        for member in members:
            if compared[1][member.name] == level:
                cells[grouped[1][member.name]][level] = member.name
    baseline = _baseline(asked.baseline, compared, members)
    return Layout(compared=compared[0], grouped=grouped[0], cells=cells, baseline=baseline)


def _require_varied(key: str, factor: str, members: Sequence[Member], varied: Sequence[str]) -> None:
    if factor in varied and all(factor in PARTS or factor in member.config for member in members):
        return
    without = [m.name for m in members if factor not in PARTS and factor not in m.config]
    choices = listed([o for o in varied if o in PARTS or all(o in m.config for m in members)])
    if without and len(without) < len(members):
        rule = f"variant {without[0]} has no such option; compare what all have: {choices}"
    elif without:
        rule = f"there is no such option; {did_you_mean(factor, varied, f'varied are {choices}')}"
    else:
        rule = f"is the same in all variants; varied are {choices}"
    raise ValueError(f"{key}: {factor}: {rule}")


def _set_apart(compare: str, members: Sequence[Member], varied: Sequence[str]) -> list[str]:
    """Return the options in which variants with the same level differ."""
    found = []
    for option in varied:
        values: dict[str, set[str]] = {}
        for member in members:
            values.setdefault(member.value(compare), set()).add(member.value(option))
        if option != compare and any(len(v) > 1 for v in values.values()):
            found.append(option)
    for option in found:  # one is enough where the others go with it
        if len({m.key([option]) for m in members}) == len({m.key(found) for m in members}):
            return [option]
    return found


def _require_one_a_cell(
    asked: Asked, per: Sequence[str], members: Sequence[Member], varied: Sequence[str]
) -> None:
    assert asked.compare is not None
    keys = [asked.compare, *per]
    for a, b in combinations(members, 2):
        if a.key(keys) == b.key(keys):
            differ = [o for o in varied if o not in PARTS and a.value(o) != b.value(o)]
            rule = f"are the same by {listed(keys)}, and differ in {listed(differ) or 'nothing else'}"
            raise ValueError(
                f"compare: {asked.compare}: variants {a.name} and {b.name} {rule}; name it in per:"
            )


def _factor(options: Sequence[str], members: Sequence[Member]) -> tuple[Factor, dict[str, str]]:
    """Return the levels of some options, and each variant's; one level without a name for no options."""
    keys = list(dict.fromkeys(member.key(options) for member in members))
    names = _own_names(options, keys, members)
    numbers = _numbers([key[0] for key in keys]) if len(options) == 1 else {}
    if numbers:
        keys.sort(key=lambda key: numbers[key[0]])
    # "variants" and "grid" stand for names: their levels have nothing to be called by.
    option = "" if list(options) in [[part] for part in PARTS] else " ".join(options)
    factor = Factor(
        option=option,
        levels=[names[key] for key in keys],
        numbers={names[key]: numbers[key[0]] for key in keys} if numbers else {},
    )
    return factor, {member.name: names[member.key(options)] for member in members}


def _own_names(
    options: Sequence[str], keys: Sequence[tuple[str, ...]], members: Sequence[Member]
) -> dict[tuple[str, ...], str]:
    """Return the names of levels: the file's, if one part of it has exactly one for each; else the values."""
    for part in PARTS:
        pairs = {(member.key(options), member.value(part)) for member in members}
        names = dict(pairs)
        if len(pairs) == len(keys) == len(set(names.values())) and all(names.values()) and options:
            return names
    if len(options) > 1:  # each option under its names
        alone = [
            _own_names([option], list(dict.fromkeys((key[at],) for key in keys)), members)
            for at, option in enumerate(options)
        ]
        return {
            key: " ".join(names[(value,)] for names, value in zip(alone, key, strict=True)) for key in keys
        }
    return {
        key: " ".join(
            value if option in PARTS else f"{option}={value}" if value else f"no {option}"
            for option, value in zip(options, key, strict=True)
        )
        for key in keys
    }


def _numbers(texts: Sequence[str]) -> dict[str, float]:
    try:
        return {text: float(text) for text in texts}
    except ValueError:
        return {}


def _baseline(
    wanted: str | None, compared: tuple[Factor, Mapping[str, str]], members: Sequence[Member]
) -> str | None:
    factor, level_of = compared
    if wanted is None:
        return None
    by_name = {**level_of, **{factor.short(level): level for level in factor.levels}}
    by_name |= {level: level for level in factor.levels}
    by_name |= {m.value(factor.option): level_of[m.name] for m in members if factor.option}
    if wanted in by_name:
        return by_name[wanted]
    raise ValueError(f"baseline: {wanted}: must be one of what is compared: {', '.join(factor.levels)}")
