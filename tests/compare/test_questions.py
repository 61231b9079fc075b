"""What an experiment's file asks is answered: factors, baselines, measures, and what differs from what."""

from __future__ import annotations

import math
import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy import stats

import dsgd
from dsgd.show.report.answer import answer
from dsgd.show.report.figures import chosen, draw_sections
from dsgd.show.report.frames import read_folder
from dsgd.show.report.layout import Asked, Factor, Layout, Member, arrange, by_name
from dsgd.show.report.measures import measure
from dsgd.show.report.panels.labels import extent
from dsgd.show.report.panels.levels import Levels, value_axis
from dsgd.show.report.panels.sweep import axis
from dsgd.show.report.questions import Question, questions
from dsgd.show.report.sentences import against_baseline, only_group
from dsgd.show.report.tables import overview
from dsgd.show.report.written_numbers import number

FAST: dict[str, Any] = {"engine": "sim", "mode": "ssgd", "num_workers": 2, "steps": 8, "workload": "none"}


def asked(**keys: Any) -> dict[str, Any]:
    """Return an experiment that takes a moment."""
    return {"title": "T", "question": "Q?", "base": FAST, "seeds": 2} | keys


# One process that imports torch is enough for a moment's runs.
answered = partial(dsgd.experiment, processes=1)


def members(*variants: tuple[str, dict[str, Any], dict[str, str]]) -> list[Member]:
    return [Member(name=name, config=config, parts=parts) for name, config, parts in variants]


GRID = members(
    *(
        (
            f"{law} slack={slack}",
            {"compute_time": text, "slack": slack, "mode": "ssp", "lr": lr},
            {"variants": law, "grid": f"slack={slack}"},
        )
        for law, text, lr in (("heavy tail", "pareto:1.5,1", 0.1), ("even", "constant:1", 0.2))
        for slack in (10, 1, 3)
    )
)


def test_levels_have_the_names_of_the_file_and_the_order_of_numbers() -> None:
    """Named variants keep their names and order, values of an option are sorted, others are ignored."""
    found = arrange(Asked(compare="compute_time", per=("slack",), baseline="even"), GRID, ["lr"])
    assert found.compared.levels == ["heavy tail", "even"]
    assert found.grouped.levels == ["slack=1", "slack=3", "slack=10"]
    assert found.grouped.numbers == {"slack=1": 1, "slack=3": 3, "slack=10": 10}
    assert found.cells["slack=3"] == {"heavy tail": "heavy tail slack=3", "even": "even slack=3"}
    assert found.baseline == "even"
    assert arrange(Asked(compare="slack", per=("compute_time",)), GRID, ["lr"]).cells["even"] == {
        f"slack={slack}": f"even slack={slack}" for slack in (1, 3, 10)
    }


@pytest.mark.parametrize("ignored", [["lr"], []])
def test_variants_are_set_apart_by_what_else_differs(ignored: list[str]) -> None:
    """Without per:, one of the options that go together is enough, under the names of the file."""
    found = arrange(Asked(compare="slack"), GRID, ignored)
    assert found.cells.keys() == {"heavy tail", "even"}
    assert arrange(Asked(compare="variants"), GRID, ignored).cells.keys() == {
        "slack=1",
        "slack=3",
        "slack=10",
    }


@pytest.mark.parametrize("baseline", ["slack=3", "3", "even slack=3", "heavy tail slack=3"])
def test_a_baseline_may_be_a_level_a_value_or_a_variant(baseline: str) -> None:
    """Each of them names the level."""
    assert arrange(Asked(compare="slack", baseline=baseline), GRID).baseline == "slack=3"


@given(st.permutations(GRID), st.sampled_from(["slack", "compute_time", "variants", "grid"]))
def test_every_variant_has_one_place(order: list[Member], compare: str) -> None:
    """Whatever the order of the file, the cells hold each variant exactly once, at its own level."""
    found = arrange(Asked(compare=compare), order)
    placed = [variant for cells in found.cells.values() for variant in cells.values()]
    assert sorted(placed) == sorted(member.name for member in order)
    by_variant = {member.name: member for member in order}
    for level in found.compared.levels:
        own = {cells[level] for cells in found.cells.values()}
        assert len({by_variant[name].value(compare) for name in own}) == 1
    turned = axis(found)  # the figure's arrangement has the same cells
    assert sorted(v for cells in turned.cells.values() for v in cells.values()) == sorted(placed)


SWEEP = {"grid": {"compute_time": ["constant:1", "constant:2"], "batch_size": [8, 16]}, "base": FAST}
NO_LOSS = {"measure": "last-loss"}
REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"compare": "slack"}, ["compare: slack: there is no such option", "varied are"]),
    ({"compare": "compute_tine"}, ["compare: compute_tine", "did you mean compute_time"]),
    ({"compare": "lr"}, ["compare: lr: is the same in all variants", "compute_time"]),
    ({"compare": ["compute_time"]}, ["compare:", "one name"]),
    ({"compare": "compute_time", "per": "lr"}, ["per: lr: is the same"]),
    ({"compare": "compute_time", "per": "compute_time"}, ["per: compute_time is what compare: names"]),
    ({"compare": "compute_time", "per": 3}, ["per:", "list of options"]),
    ({"per": "num_workers"}, ["per:", "needs compare:"]),
    ({"compare": "compute_time", "baseline": "constant:3"}, ["baseline: constant:3", "must be one of"]),
    ({"baseline": "nobody"}, ["baseline: nobody: must be a variant"]),
    ({"measure": "time-to-loss"}, ["measure: time-to-loss", "target_loss:"]),
    ({"measure": "througput"}, ["did you mean throughput"]),
    ({"measure": "best"}, ["name a tuned option, like best lr"]),
    (NO_LOSS, ["measure: last-loss", "workload none, and so no loss"]),
    ({"measure": "best lr"}, ["lr is not tuned", "tune:"]),
    ({"measure": ["time", 3]}, ["measure: number 2: must be text, not 3"]),
    ({"measure": ["time", "best lr"], "tune": {"lr": [0.1], "seeds": [9]}}, ["best lr", "the only measure"]),
    ({"measure": "best momentum", "tune": {"lr": [0.1, 0.2], "seeds": [9]}}, ["tuned are lr"]),
]


@pytest.mark.parametrize(("keys", "parts"), REFUSED, ids=[str(keys) for keys, _ in REFUSED])
def test_what_cannot_be_answered_is_refused_before_anything_runs(
    keys: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    """One line that names the key and the remedy; no folder is made."""
    grid = {"compute_time": ["constant:1", "constant:2"], "num_workers": [2, 4]}
    with pytest.raises(ValueError, match=r"dsgd\.experiment") as refused:
        answered(asked(grid=grid, **keys), out=tmp_path / "out")
    assert "\n" not in str(refused.value)
    for part in parts:
        assert part in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_third_option_that_varies_must_be_named() -> None:
    """Two variants in one cell are an error that names them, the option and the key to add it to."""
    three = [
        Member(name=f"{m.name} {mode}", config={**m.config, "mode": mode}, parts={})
        for m in GRID
        for mode in ("ssp", "dssp")
    ]
    with pytest.raises(ValueError, match=r"variants .* and .* differ in mode; name it in per:"):
        arrange(Asked(compare="slack", per=("compute_time",)), three)


# --- answers ------------------------------------------------------------------------------------------------


def test_a_ratio_that_is_known_is_answered(tmp_path: Path) -> None:
    """Where every mini-batch takes twice as long, the budget takes 2 times as long, with any workers;
    a second measure is a second point, and has its own figure.
    """
    found = answered(
        asked(
            variants={"fast": {"compute_time": "constant:1"}, "slow": {"compute_time": "constant:2"}},
            grid={"num_workers": [2, 4, 8]},
            compare="compute_time",
            baseline="fast",
            per="num_workers",
            measure=["time", "throughput"],
        ),
        out=tmp_path,
    )
    assert found.answer.startswith(
        "Compared with fast, slow takes 2 times as long for the same budget in all 3 cases."
    )
    frames = read_folder(tmp_path / "experiment")
    assert "Compared with fast, slow has 0.5 times the throughput in all 3 cases." in answer(frames).points
    assert chosen(frames)[0] == "sweep"
    section = next(draw_sections(frames))
    assert [panel.name for panel in section.panels] == ["sweep", "sweep-throughput", "ratio"]
    table = answer(frames).table
    assert table is not None
    assert table.headings == ["num_workers \\ compute_time", "fast", "slow"]
    assert [row[2].split("\n") for row in table.rows] == 3 * [["16", "× 2"]]


@pytest.mark.parametrize(
    ("measure", "panels"),
    [("idle_share", ["sweep"]), ("drift", ["throughput", "idle"]), ("staleness", ["sweep", "ratio"])],
)
def test_what_has_no_ratio_or_no_value_is_not_drawn(measure: str, panels: list[str], tmp_path: Path) -> None:
    """Nobody idles, and no mode here drifts: without ratios, or values, there is no such figure."""
    answered(
        asked(
            base=FAST | {"mode": "asgd", "compute_time": "constant:1"},
            variants={"two": {"num_workers": 2}, "four": {"num_workers": 4}},
            compare="variants",
            baseline="two",
            measure=measure,
            show=["throughput"],
        ),
        out=tmp_path,
    )
    first = next(draw_sections(read_folder(tmp_path / "experiment")))
    assert [panel.name for panel in first.panels] == panels


def test_the_best_level_is_named_for_each_group(tmp_path: Path) -> None:
    """Local steps save messages: with a slow network more of them are best, without one none is better."""
    found = answered(
        asked(
            base=FAST | {"mode": "localsgd", "compute_time": "constant:1"},
            variants={"near": {"latency_s": 0.0}, "far": {"latency_s": 4.0}},
            grid={"local_steps": [1, 2, 8]},
            compare="local_steps",
            measure="time",
        ),
        out=tmp_path,
    )
    assert "the best local_steps is" in found.answer
    assert "8 with far" in found.answer
    assert "near local_steps=1, near local_steps=2 and near local_steps=8 are identical runs" not in (
        found.answer
    )  # their updates differ
    assert "the best local_steps is 1, 2 and 8 (level) with near" in found.answer
    frames = read_folder(tmp_path / "experiment")
    table = answer(frames).table
    assert table is not None
    assert table.best == {(0, 1), (0, 2), (0, 3), (1, 3)}  # in bold letters
    assert overview(frames, questions(frames)).best == {(0, 1), (1, 1), (2, 1), (5, 1)}
    assert not any(cell.endswith(" ≈") for row in table.rows for cell in row)


@pytest.mark.thorough
def test_the_best_value_is_what_tuning_chose(tmp_path: Path) -> None:
    """`measure: best lr` says for each level the value with the lowest median loss in the records."""
    values = [0.05, 0.4, 1.6]
    found = answered(
        asked(
            base=FAST | {"mode": "asgd", "workload": "xor", "steps": 40, "compute_time": "exponential:1"},
            grid={"P=2": {"num_workers": 2}, "P=8": {"num_workers": 8, "steps": 10}},
            tune={"lr": values, "seeds": [100, 101, 102]},
            compare="num_workers",
            measure="best lr",
        ),
        out=tmp_path,
    )
    folder = tmp_path / "experiment"
    for variant in ("P=2", "P=8"):
        losses = {
            lr: sorted(
                dsgd_loss(folder / "tuning" / f"{variant}+lr={lr}-s{seed}") for seed in (100, 101, 102)
            )[1]
            for lr in values
        }
        best = min(losses, key=lambda lr: losses[lr])
        assert found.chosen[variant] == {"lr": best}
        assert f"{best:g} with " in found.answer
        assert variant in found.answer
    assert found.answer.startswith("The best lr is ")
    assert [s.name for s in draw_sections(read_folder(folder))][:2] == ["sweep", "tuning"]


def test_what_nobody_chose_is_named() -> None:
    """Choices at an edge, of variants that lose too, and defaults that could change the order; not what the
    file gives, be it the default.
    """
    steps = {"workload": "quadratic", "dim": 3, "grad_noise": 0.0, "steps": 40, "lr": 0.1, "eval_every": 1}
    local = {"mode": "diloco", "inner": "sgd", "local_steps": 5}
    other = local | {"mode": "streaming", "outer_momentum": 0.1}
    found = answered(
        asked(
            base=FAST | steps,
            variants={"ssgd": {"mode": "ssgd"}, "lost": local, "other": other},
            tune={"outer_lr": [0.001, 0.002], "seeds": [100]},
            target_loss=0.1,
            show=["throughput"],
        )
    )
    assert "so a better one may lie beyond: outer_lr 0.002 (lost and other)." in found.answer
    said = found.answer.partition("Left at the defaults: ")[2]
    assert said.startswith("outer_momentum 0.9 (lost), sample_clients none (lost), fragments 2 (other)")
    assert "messages that take no time; others may change the order." in said
    assert "lr 0.1" not in said


def dsgd_loss(record: Path) -> float:
    """Return the loss at the end of a record, as its file has it."""
    return float(yaml.safe_load((record / "summary.json").read_text())["eval"]["loss"])


def test_a_choice_at_an_edge_is_pointed_out() -> None:
    """Of two values that were tried, both are edges."""
    grid = {f"P={p}": {"num_workers": p, "steps": 80 // p} for p in (2, 4, 8)}
    found = answered(
        asked(
            base=FAST | {"mode": "asgd", "workload": "xor", "compute_time": "exponential:1"},
            grid=grid,
            tune={"lr": [0.05, 1.6], "seeds": [100]},
            compare="num_workers",
            measure="best lr",
        )
    )
    assert "At the edge of what was tried, so a better one may lie beyond: lr " in found.answer


def test_the_largest_level_compared_is_pointed_out() -> None:
    """Where the best is the last number that was compared, a better one may lie beyond; 0, 1 and inf end."""
    shorter = {"localsgd": {"mode": "localsgd", "latency_s": 4.0, "compute_time": "constant:1"}}
    keys = {"compare": "local_steps", "measure": "time"}
    more = answered(asked(variants=shorter, grid={"local_steps": [1, 2, 8]}, **keys)).answer
    assert "local_steps=8 is the largest compared; a better one may lie beyond." in more
    base = FAST | {"mode": "ssp", "compute_time": "exponential:1", "steps": 40}
    slack = answered(asked(base=base, grid={"slack": [0, 4, math.inf]}, compare="slack", measure="time"))
    assert "slack=inf has the best median" in slack.answer
    assert "compared; a better one" not in slack.answer


# --- ratios, intervals, resolution --------------------------------------------------------------------------

TWO = by_name({"": {"a": "a", "b": "b"}}, "a")
SECONDS = measure("time", None, "virtual s")


def question(found: dict[str, dict[int, float]], layout: Layout = TWO, **more: Any) -> Question:
    return Question(measure=SECONDS, values=found, layout=layout, **more)


@given(
    st.lists(st.floats(0.1, 100), min_size=1, max_size=9),
    st.floats(0.1, 10),
)
def test_a_common_factor_is_the_ratio(times: list[float], factor: float) -> None:
    """Whatever the seeds' own times, a variant that takes k times as long with each has the ratio k."""
    x = dict(enumerate(times))
    found = question({"a": x, "b": {seed: factor * t for seed, t in x.items()}}).ratio("b", "a")
    assert found is not None
    assert found.centre == pytest.approx(factor)
    assert found.low == pytest.approx(factor)


@pytest.mark.parametrize(
    ("a", "b", "centre"),
    [
        ({0: 1.0, 1: 2.0}, {0: math.inf, 1: math.inf}, math.inf),  # b never gets there
        ({0: math.inf, 1: math.inf}, {0: 1.0, 1: 2.0}, None),  # the baseline never does
        ({0: math.inf, 1: math.inf}, {0: math.inf, 1: math.inf}, None),
        ({0: 2.0}, {1: 3.0}, 1.5),  # no common seed: of the medians
        ({0: 0.0, 1: 0.0}, {0: 1.0, 1: 1.0}, None),  # no ratio to nothing
    ],
)
def test_never_has_no_ratio(a: dict[int, float], b: dict[int, float], centre: float | None) -> None:
    """A ratio to a baseline that never gets there, or takes no time, is not given."""
    found = question({"a": a, "b": b}).ratio("b", "a")
    assert (None if found is None else found.centre) == centre


CLAIM = {
    None: r"^(?!.*its lead over any other is not significant|Every variant diverges)",
    "a": r"times faster|times as long|diverges|where a",
}


@pytest.mark.parametrize(("seeds", "never"), [(2, 0.0), (3, 0.0), (6, 0.0), (6, 0.3), (9, 0.3)])
@pytest.mark.parametrize("baseline", CLAIM)
def test_equal_variants_are_seldom_said_to_differ(baseline: str | None, seeds: int, never: float) -> None:
    """At most 5 % of 200 experiments claim a difference of four variants that differ by chance, or 18: 99 %
    of such samples have no more. never: the share of runs that diverge.
    """
    draws = np.random.default_rng(seeds)
    layout, claims = by_name({"": {name: name for name in "abcd"}}, baseline), 0
    for _ in range(200):
        seconds = draws.lognormal(size=seeds) * draws.lognormal(0, 0.2, (4, seeds))
        seconds[draws.random((4, seeds)) < never] = math.inf
        found = {name: dict(enumerate(map(float, row))) for name, row in zip("abcd", seconds, strict=True)}
        asked_of = question(found, layout)
        said = only_group(asked_of) if baseline is None else against_baseline(asked_of, baseline)
        claims += re.search(CLAIM[baseline], said) is not None
    assert claims <= 18


def test_a_lead_has_its_intervals_and_its_p() -> None:
    """Of five seeds intervals are the whole range; p is that of Student's test of the logarithms."""
    x, noise = np.random.default_rng(1).lognormal(size=5), np.random.default_rng(2).lognormal(1, 0.2, 5)
    p = stats.ttest_rel(np.log(x * noise), np.log(x)).pvalue
    found = {"a": dict(enumerate(map(float, x))), "b": dict(enumerate(map(float, x * noise)))}
    said = only_group(question(found, by_name({"": {"a": "a", "b": "b"}})))
    value = f"{number(float(np.median(x)))} [{number(min(x))}, {number(max(x))}]"
    times = f"{np.median(noise):.2g} [{min(noise):.3g}, {max(noise):.2g}]"  # hundredths below 2
    first = f"a is the first to spend the budget, after {value} virtual s"
    assert said == f"{first}; b, the next, takes {times} times as long (p = {p:.2g})."


def test_what_the_seeds_do_not_show_is_said_of_all_levels_together() -> None:
    """With its interval; what they show has an interval too, and what is faster is said to be."""
    layout = by_name({"": {name: name for name in "abcd"}}, "a")
    rates = {"a": 1.0, "b": 1.02, "c": 4.0, "d": 0.98}
    noise = np.random.default_rng(0).lognormal(0, 0.1, (4, 6))
    found = {name: dict(enumerate(noise[at] / rates[name])) for at, name in enumerate(rates)}
    assert against_baseline(question(found, layout), "a") == (
        "Compared with a, c is 4.3 [4, 5.1] times faster for the same budget; "
        "b (0.96 [0.85, 1.1] times) and d (1.03 [0.94, 1.16] times) show no clear difference with 6 seeds."
    )


def test_of_many_levels_the_best_multiples_are_named() -> None:
    """With more levels than a sentence holds, it has the best three, in order; no value comes last."""
    layout = by_name({"": {name: name for name in "abcdef"}}, "a")
    medians = {"a": 10.0, "b": 20.0, "c": 5.0, "d": 1.0, "e": 2.0}  # f has no run
    said = against_baseline(question({name: {0: x, 1: x} for name, x in medians.items()}, layout), "a")
    assert said == (
        "Compared with a, d is 10 times faster for the same budget, e 5 times and c 2 times; "
        "the other 2 are in the table."
    )


@pytest.mark.parametrize(
    ("name", "label"),
    [("idle_share", "idle share"), ("clock_s", "clock s (virtual s)"), ("updates_per_s", "updates per s")],
)
def test_a_share_has_no_unit(name: str, label: str) -> None:
    """Shares and rates of a quantity do not have its unit."""
    assert measure(name, None, "virtual s").label == label


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (2.0, math.inf, "b does not reach loss 0.5 in the median of its seeds"),
        (math.inf, 2.0, "b reaches loss 0.5 in the median of its seeds, where a does not"),
        (math.inf, math.inf, "neither b nor a reaches loss 0.5 in the median of its seeds"),
        (0.0, 2.0, "b has time to loss 0.5 2 against 0"),
    ],
)
def test_where_there_is_no_ratio_the_sentence_says_what_there_is(a: float, b: float, says: str) -> None:
    """Who never gets there, or that the baseline takes no time, is said; nothing is left out."""
    by = measure("time-to-loss", 0.5, "s")
    asked_of = Question(measure=by, values={"a": {0: a, 1: a}, "b": {0: b, 1: b}}, layout=TWO)
    assert against_baseline(asked_of, "a") == f"Compared with a, {says}."


@given(st.floats(0, 20), st.floats(0.5, 10))
def test_a_lead_is_resolved_if_it_exceeds_the_distance_of_evaluations(lead: float, between: float) -> None:
    """Medians that differ by one evaluation interval or less are not told apart by it."""
    one = question({"a": {0: 10.0}, "b": {0: 10.0 + lead}}, between={"a": between, "b": between / 2})
    clearly = abs(lead - between) > 1e-6
    if clearly:
        assert one.resolved("a", "b") == (lead > between)
    assert one.resolved("b", "a") == one.resolved("a", "b")


# --- axes ---------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=8, unique=True))
def test_levels_stand_in_the_order_of_their_numbers(numbers: list[float]) -> None:
    """On every axis, a larger number is farther right; an axis with 0 or infinity is never logarithmic."""
    ordered = sorted(numbers)
    names = [f"x={x!r}" for x in ordered]
    for last in (ordered[-1], math.inf):
        by_level = dict(zip(names, [*ordered[:-1], last], strict=True))
        levels = Levels(Factor(option="x", levels=names, numbers=by_level))
        places = [levels.at(name) for name in names]
        assert places == sorted(places)
        assert len(set(places)) == len(places)
        if 0 in by_level.values() or math.inf in by_level.values():
            assert levels.scale != "log"


@given(st.lists(st.floats(1e-4, 1e6), min_size=2, max_size=40, unique_by=lambda x: f"{x:.3g}"))
def test_names_of_levels_do_not_run_into_each_other(numbers: list[float]) -> None:
    """Below an axis of many levels, those that have room are named, the last one always."""
    by_level = {f"x={x:.3g}": float(f"{x:.3g}") for x in sorted(numbers)}
    axes = Figure(figsize=(3, 2)).add_axes((0, 0, 1, 1))
    Levels(Factor(option="x", levels=list(by_level), numbers=by_level)).set_up(axes)
    share = axes.transData - axes.transAxes
    ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    named = [(3 * share.transform((x, 0))[0], name) for x, t in ticks if (name := t.get_text())]
    assert named[-1][1] == list(by_level)[-1].removeprefix("x=")
    for (x, text), (beyond, other) in pairwise(named):
        assert x + extent(text)[0] / 2 < beyond - extent(other)[0] / 2


@given(st.lists(st.one_of(st.floats(1e-6, 1e6), st.just(math.inf)), min_size=1, max_size=8))
def test_never_is_above_everything(found: list[float]) -> None:
    """The lane of “never” is above each value, and there just if something never gets there."""
    vertical = value_axis(found)
    assert vertical.lane == any(map(math.isinf, found))
    assert all(vertical.place(x) < vertical.lane_at for x in found if math.isfinite(x))
