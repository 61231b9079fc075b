"""What does not fit a Struct: one line with the place, the rule and what was meant."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct, field

from dsgd.process.checked_yaml import Finite, convert, rule
from dsgd.process.outcomes import UsageError


class Inner(Struct, kw_only=True, forbid_unknown_fields=True):
    """Is in mappings and lists of the next."""

    within: Annotated[float, Meta(gt=0, lt=1), rule("must be a share")]
    kind: Literal["slow", "fast"] = "slow"
    law: str = field(default="", name="is")

    def __post_init__(self) -> None:
        if self.law == "none":
            raise ValueError("is: there is no law - at `all`")


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """Has no key."""


class Whole(Struct, kw_only=True, forbid_unknown_fields=True):
    """Has whatever the files of users have."""

    title: Annotated[str, Meta(pattern=r"\S"), rule("must be in words")] = "A"
    by_name: dict[str, dict[str, Inner]] = {}
    listed: list[Inner] | dict[str, int] = []
    number: Finite | None = None
    names: str | tuple[str, ...] = "a"
    nothing: Nothing = Nothing()
    counts: Annotated[dict[int, bool], Meta(min_length=1)] | None = None


FITS = {"within": 0.5}
TWO = {"a": {"b": FITS}, "c": {"d": FITS, "e": {"within": 5}}}
REFUSED: list[tuple[Any, str]] = [
    ([1], "must be a mapping of names and values, not [1]"),
    (None, "must be a mapping of names and values, not nothing"),
    ({"titel": 1}, "there is no key titel; did you mean title?"),
    ({"q - at `$.x": 1}, "there is no key q - at `$.x; the keys are title, by_name, "),
    ({"title": " "}, "title: must be in words, not nothing"),
    ({"by_name": TWO}, "by_name: c: e: within: must be a share, not 5"),
    ({"by_name": {"a": {"b": {}}}}, "by_name: a: b: needs within:, which must be a share"),
    ({"by_name": {"a": {"b": FITS | {"q`": 1}}}}, "by_name: a: b: there is no key q`; the keys are within, "),
    ({"by_name": {"a": {"b": FITS}, 3: {}}}, "by_name: the name 3 must be text"),
    (
        {"listed": [FITS, FITS | {"kind": "fats"}]},
        "listed: number 2: kind: there is no fats; did you mean fast",
    ),
    ({"listed": [FITS | {"is": "none"}]}, "listed: number 1: is: there is no law - at `all`"),
    ({"listed": {"a": 1, "b": "2"}}, "listed: b: must be a whole number, not 2"),
    ({"number": float("nan")}, "number: must be a number, not nan"),
    ({"number": True}, "number: must be a number, not true"),
    ({"names": 3}, "names: must be text or a list, not 3"),
    ({"names": ["a", ["\x1b[31m"]]}, r"names: number 2: must be text, not ['\x1b[31m']"),
    ({"nothing": {"worker": 1}}, "nothing: there is no key worker; leave it out"),
    ({"counts": {}}, "counts: is empty; give at least one entry"),
    ({"counts": {"1": True, "one": True}}, "counts: the name one must be a whole number"),
    ({"counts": {"1": "x" * 999}}, "counts: 1: must be true or false, not xxx"),
]


@pytest.mark.parametrize(("content", "line"), REFUSED, ids=[str(content)[:60] for content, _ in REFUSED])
def test_what_does_not_fit_is_said_in_one_line(content: Any, line: str) -> None:
    """With the names that lead there, also inside mappings, and whatever a name looks like."""
    with pytest.raises(UsageError) as refused:
        convert(content, Whole, "here")
    said = str(refused.value)
    assert said.startswith(f"here: {line}")
    assert len(said) < 300
    assert said.isprintable()


def test_what_fits_is_taken_as_it_is() -> None:
    """A whole number is a number; names of a mapping of whole numbers are text in YAML."""
    whole = convert({"number": 3, "counts": {"7": False}, "listed": {}}, Whole, "here")
    assert (whole.number, whole.counts, whole.listed) == (3.0, {7: False}, {})
