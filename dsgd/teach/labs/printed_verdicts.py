"""Verdicts as a student reads them in a terminal, and as a program does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dsgd.teach.labs.lab_verdicts import Verdict


def lines(
    part: Sequence[Verdict], heading: str, first: Mapping[str, float], *, reveal: bool, quiet: bool
) -> Iterator[str]:
    """Yield one part's lines: what fails with its reason, what follows from it, then the rest.

    first: first guesses by prediction. reveal: show what theory says. quiet: only what fails.
    """
    shown = [v for v in part if v.finding.holds is False] if quiet else part
    if not shown:
        return
    yield ""
    yield heading
    untested = [v for v in shown if v.finding.holds is None and v.part == "strategy"]
    for verdict in shown:
        if verdict in untested[:1]:
            yield f"  open   {_laws(len(untested))} {verdict.finding.seen}"
        if verdict.cause or verdict in untested:
            continue
        yield f"  {verdict.mark:<5}  {verdict.text}"
        if verdict.part != "strategy" or not verdict.finding.holds:
            yield f"         {_seen(verdict, first, reveal)}"
        if verdict.finding.command:
            yield f"         run: {verdict.finding.command}"
        followers = [v for v in shown if v.cause == verdict.text]
        if followers:
            yield "         these fail too, probably for that reason:"
        yield from (f"         - {v.text}" for v in followers)


def _laws(number: int) -> str:
    return f"{number} law{'s' * (number > 1)}"


def _seen(verdict: Verdict, first: Mapping[str, float], reveal: bool) -> str:
    finding, guess = verdict.finding, first.get(verdict.name)
    parts = [finding.seen]
    if verdict.said is not None and guess not in (None, verdict.said):
        parts.append(f"your first guess: {guess:g}")
    if reveal and finding.theory:
        parts.append(finding.theory)
    return "; ".join(parts)


def tally(found: Iterable[Verdict]) -> str:
    """Return how many hold, fail and are open, in one line."""
    count = Counter(v.mark for v in found)
    return f"{count['holds']} of {count.total()} hold" + "".join(
        f", {count[mark]} {word}" for mark, word in (("FAILS", "fail"), ("open", "open")) if count[mark]
    )


def as_json(
    found: Sequence[Verdict],
    title: str,
    chosen: Mapping[str, Any],
    first: Mapping[str, float],
    *,
    reveal: bool,
) -> dict[str, Any]:
    """Return the verdicts as JSON has them. chosen: the exercise's options. first: first guesses."""
    return {
        "lab": title,
        "points": sum(v.mark == "holds" for v in found),
        "of": len(found),
        "exercise": dict(chosen),
        "questions": [
            {
                "part": v.part,
                "name": v.name,
                "text": v.text,
                "mark": v.mark.lower(),
                "first": first.get(v.name) if v.part == "predictions" else None,
                "answer": v.said,
                "seen": v.finding.seen,
                "run": v.finding.command or None,
                "follows_from": v.cause or None,
                **({"theory": v.finding.theory or None} if reveal else {}),
            }
            for v in found
        ],
    }
