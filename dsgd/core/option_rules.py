"""Rules in a field's type, and the one check that holds a configuration to them.

A configuration is a frozen, keyword-only dataclass that derives from `Checked`. A field's type carries its
rules, and what its text means is a `Parsed` value, computed once:

    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    hidden: Annotated[str, OnlyWith(workload=("xor", "digits"))] = "16"
    hidden_sizes = Parsed("hidden", layer_sizes)

Bounds are those of annotated-types (Ge, Gt, Le, Lt). None is always allowed where the type says so. A rule
that concerns several fields is code in `__post_init__`, after `super().__post_init__()`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import pairwise
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from annotated_types import Ge, Gt, Le, Lt

T = TypeVar("T")
Kind = Literal["int", "float", "str", "bool", "choice", "tuple"]
"""tuple: of texts, from a command's option that is REPEATED; runs have none."""


def _once(function: Callable[[type], T]) -> Callable[[type], T]:
    """Return a function of classes that computes once for each; mypy takes classes for unhashable here."""
    return cache(function)


@dataclass(frozen=True)
class Must:
    """A rule in words: `holds(value)`, or the message is `words`."""

    words: str
    holds: Callable[[Any], bool]


FINITE = Must("must be a finite number", math.isfinite)
"""Neither infinite nor NaN; joined with bounds: `must be finite and above 0`."""


def matches(pattern: str, words: str) -> Must:
    """Return the rule that a text matches a regular expression, all of it."""
    return Must(words, lambda text: bool(re.fullmatch(pattern, text)))


def whole_or_inf(least: int) -> Must:
    """Return the rule of a bound that is a number of mini-batches or updates, or none at all."""
    return Must(
        f"must be a whole number of at least {least}, or inf",
        lambda x: x >= least and (x == math.inf or float(x).is_integer()),
    )


HIDDEN = "hidden"
"""Marks an option that few need: only `--help all` shows it."""

REPEATED = "repeated"
"""Marks an option that may be given several times: a tuple of texts."""

GIVEN = "any value"
"""In `OnlyWith`: the other option is given, whatever its value."""


class OnlyWith:
    """The option has an effect only where each of the other options has one of these values; GIVEN: is given.

    >>> OnlyWith(workload=("xor", "digits"), engine="sim").allowed
    {'workload': ('xor', 'digits'), 'engine': ('sim',)}
    """

    def __init__(self, **allowed: str | tuple[str, ...]) -> None:
        self.allowed = {k: v if isinstance(v, tuple) else (v,) for k, v in allowed.items()}


class NotWith:
    """The option has no effect where another option has one of these values."""

    def __init__(self, **others: tuple[str, ...]) -> None:
        self.others = others


class Parsed(Generic[T]):
    """What the text of an option means: computed once, when the configuration is made.

    parse: from the option's value; raises ValueError with the rule, like `must be all or none`.
    """

    def __init__(self, option: str, parse: Callable[[Any], T]) -> None:
        self.option, self._parse = option, parse

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, config: None, owner: type) -> Parsed[T]: ...
    @overload
    def __get__(self, config: object, owner: type) -> T: ...
    def __get__(self, config: object | None, owner: type) -> Parsed[T] | T:
        if config is None:
            return self
        value: T = self._parse(getattr(config, self.option))
        vars(config)[self._name] = value  # from now on Python finds it there, before this method
        return value


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: a field of a configuration or of one of its groups."""

    name: str
    kind: Kind
    choices: tuple[str, ...]
    """Of kind `choice`."""
    optional: bool
    """Whether it may be None."""
    default: Any
    rules: tuple[Any, ...]
    type: Any
    """The type as it is written, rules included."""
    config_type: Any
    """The dataclass whose field it is."""

    @property
    def kind_in_words(self) -> str:
        """The rule that its kind of value sets, like `must be a whole number or None`."""
        kinds = {"int": "a whole number", "float": "a number", "bool": "true or false"}
        kinds |= {"str": "text", "tuple": "text"}
        kind = kinds.get(self.kind) or f"one of {', '.join(self.choices)}"
        return f"must be {kind}{' or None' * self.optional}"

    def help(self) -> str:
        """Return the text below its field, in one line."""
        return next(
            (docs[self.name] for c in self.config_type.__mro__ if self.name in (docs := _docs(c))), ""
        )

    def broken_rule(self, value: Any) -> str | None:
        """Return the first rule that a value breaks, as words; None if it keeps all of them."""
        if not self.is_of_its_kind(value):
            return self.kind_in_words
        if value is None:
            return None
        for rule in self.rules:
            match rule:
                case Must(words, holds) if not holds(value):
                    return _bounds_in_words(self.rules) if rule is FINITE else words
                case Ge() | Gt() | Le() | Lt() if not _within(value, rule):
                    return _bounds_in_words(self.rules)
        return None

    def is_of_its_kind(self, value: Any) -> bool:
        """Whether a value is of the option's type, whatever its other rules are."""
        if value is None:
            return self.optional
        match self.kind:
            case "choice":
                return value in self.choices
            case "bool":
                return isinstance(value, bool)
            case "str":
                return isinstance(value, str)
            case "tuple":
                return isinstance(value, tuple)
            case "int":
                return isinstance(value, Integral) and not isinstance(value, bool)
            case "float":
                return isinstance(value, Real) and not isinstance(value, bool)


class Checked:
    """Base of all configurations: checks itself when it is made, by `dataclasses.replace` too.

    Raises ValueError, in one line that names the option, for the first rule that is broken.
    """

    def __post_init__(self) -> None:
        for name, member in members(type(self)).items():
            value = getattr(self, name)
            if isinstance(member, Option) and (rule := member.broken_rule(value)):
                require(False, name, value, rule)
        for name, parsed in _parsed(type(self)):
            try:
                getattr(self, name)
            except ValueError as error:
                require(False, parsed.option, getattr(self, parsed.option), str(error))
        values = options(self)
        for name, option in option_fields(type(self)).items():
            for rule in option.rules:
                if isinstance(rule, OnlyWith | NotWith) and values[name] != option.default:
                    _require_effect(name, values, rule)

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for options of a group that cannot be in a run. run: its `TrainConfig`."""


def require(condition: bool, option: str, got: object, rule: str) -> None:
    """Raise ValueError, naming the option and its value, unless the condition holds."""
    if not condition:
        shown = got if str(got).strip() else repr(got)
        raise ValueError(f"--{option.replace('_', '-')} {shown}: {rule}")


@_once
def option_fields(config_type: type) -> Mapping[str, Option]:
    """Return the options of a configuration by name, those of its groups among them."""
    found: dict[str, Option] = {}
    for name, member in members(config_type).items():
        found |= {name: member} if isinstance(member, Option) else option_fields(member)
    return MappingProxyType(found)


def options(cfg: Any) -> dict[str, Any]:
    """Return a configuration as a flat mapping from option to value, as `config.yaml` has it."""
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(cfg):
        value = getattr(cfg, f.name)
        flat |= options(value) if is_dataclass(value) else {f.name: value}
    return flat


def from_options(config_type: type[T], flat: Mapping[str, Any]) -> T:
    """Return the configuration that has these options, named flat as in `config.yaml`: `options` reversed.

    A group may be given whole, too. Raises TypeError for an option that it does not have, and ValueError for
    a bad value.
    """
    rest, groups = dict(flat), dict[str, Any]()
    for name, member in members(config_type).items():
        if isinstance(member, Option):
            continue
        if isinstance(rest.get(name), member):
            groups[name] = rest.pop(name)
        else:
            groups[name] = member(**{key: rest.pop(key) for key in option_fields(member) if key in rest})
    return config_type(**groups, **rest)


@_once
def members(config_type: type) -> Mapping[str, Option | type]:
    """Return the fields of a configuration: options, and the types of its groups."""
    hints = get_type_hints(config_type, include_extras=True)
    found: dict[str, Option | type] = {}
    for f in dataclasses.fields(config_type):
        group = f.default_factory
        if isinstance(group, type) and is_dataclass(group):
            found[f.name] = group
            continue
        types, rules = _taken_apart(hints[f.name])
        choices = tuple(choice for t in types if get_origin(t) is Literal for choice in get_args(t))
        kind = "choice" if choices else next(t.__name__ for t in types if t is not NoneType)
        if kind not in get_args(Kind) or (kind == "tuple" and REPEATED not in rules):
            raise TypeError(
                f"{config_type.__name__}.{f.name}: an option is an int, float, str, bool or Literal"
            )
        found[f.name] = Option(
            name=f.name,
            kind=cast(Kind, kind),
            choices=choices,
            optional=NoneType in types,
            default=f.default,
            rules=rules,
            type=hints[f.name],
            config_type=config_type,
        )
    return MappingProxyType(found)


@_once
def _parsed(config_type: type) -> Sequence[tuple[str, Parsed[Any]]]:
    return inspect.getmembers_static(config_type, lambda member: isinstance(member, Parsed))


def _taken_apart(hint: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the types that a value may have, and all rules.

    >>> _taken_apart(Annotated[int, Ge(1)] | None)
    ([<class 'int'>, <class 'NoneType'>], (Ge(ge=1),))
    """
    if get_origin(hint) is Annotated:
        types, rules = _taken_apart(hint.__origin__)
        return types, (*rules, *hint.__metadata__)
    if get_origin(hint) in (Union, UnionType):
        parts = [_taken_apart(part) for part in get_args(hint)]
        return [t for types, _ in parts for t in types], tuple(r for _, rules in parts for r in rules)
    return [hint], ()


def _within(value: Any, bound: Ge | Gt | Le | Lt) -> bool:
    match bound:
        case Ge(ge=least):
            return bool(value >= least)
        case Gt(gt=below):
            return bool(value > below)
        case Le(le=most):
            return bool(value <= most)
        case Lt(lt=above):
            return bool(value < above)


def _bounds_in_words(rules: Sequence[Any]) -> str:
    """Return what the bounds among a field's rules say together.

    >>> _bounds_in_words([Ge(0), Lt(1)]), _bounds_in_words([FINITE, Gt(0)])
    ('must lie in [0, 1)', 'must be finite and above 0')
    """
    low = next(((r, x) for r in rules if isinstance(r, Ge | Gt) for x in dataclasses.astuple(r)), None)
    high = next(((r, x) for r in rules if isinstance(r, Le | Lt) for x in dataclasses.astuple(r)), None)
    if low and high:
        left, right = "[" if isinstance(low[0], Ge) else "(", "]" if isinstance(high[0], Le) else ")"
        return f"must lie in {left}{_number(low[1])}, {_number(high[1])}{right}"
    finite = "finite and " if FINITE in rules else ""
    if low:
        return f"must be {finite}{'at least' if isinstance(low[0], Ge) else 'above'} {_number(low[1])}"
    if high:
        return f"must be {finite}{'at most' if isinstance(high[0], Le) else 'below'} {_number(high[1])}"
    return FINITE.words


def _number(x: Any) -> str:
    """Return a bound as people write it.

    >>> _number(65535), _number(2**63)
    ('65535', '2^63')
    """
    large = isinstance(x, int) and x > 2**20 and x.bit_count() == 1
    return f"2^{x.bit_length() - 1}" if large else str(x)


def _require_effect(name: str, values: Mapping[str, Any], rule: OnlyWith | NotWith) -> None:
    """Raise ValueError for an option that is set but, given these options, has no effect."""
    if isinstance(rule, NotWith):
        for other, refused in rule.others.items():
            has = f"has no effect with --{other.replace('_', '-')} {values.get(other)}; leave it out"
            require(values.get(other) not in refused, name, values[name], has)
        return
    for other, allowed in rule.allowed.items():
        with_ = f"--{other.replace('_', '-')}"
        if allowed == (GIVEN,):
            given = other not in values or values[other] is not None
            require(given, name, values[name], f"has an effect only with {with_}; leave it out")
        elif other in values and values[other] not in allowed:
            has = f"has no effect with {with_} {values[other]}, only with {with_} {' or '.join(allowed)}"
            require(False, name, values[name], f"{has}; leave it out")


@_once
def _docs(config_type: type) -> Mapping[str, str]:
    """Return the text below each field of a class, those of its bases left out."""
    try:
        source = textwrap.dedent(inspect.getsource(config_type))
    except (OSError, TypeError):  # object; a class that was typed into an interpreter
        return {}
    return dict(_texts_below_fields(ast.parse(source).body[0]))


def _texts_below_fields(definition: ast.AST) -> Iterator[tuple[str, str]]:
    for above, below in pairwise(getattr(definition, "body", ())):
        match above, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
