"""Options that are a name and what follows it: each mistake has a message of its kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsgd.core.option_texts import Restarts, checkpoint_mtbf, checkpoint_tiers
from dsgd.core.time_laws import parse_law
from dsgd.process.outcomes import UsageError
from dsgd.running.quick_run import config
from dsgd.scenario.faults_text import parse_faults
from dsgd.scenario.group_options import RankLink
from dsgd.scenario.network_options import Racks
from dsgd.show.terminal.cli import configure, parse

LIARS = "F must be a whole number of at least 0, like "
ALL = "must be none, topk:SHARE, randk:SHARE[,scaled], sign[:positive], qsgd:LEVELS, int8, fp4"
MISTAKES = [
    ("compress", "gzip", f"{ALL}, powersgd:RANK or dgc:SHARE[,MOMENTUM[,WARMUP[,CLIP]]]"),
    ("compress", "topk", "topk needs SHARE, like topk:.01"),
    ("compress", "topk:0", "SHARE must be a number above 0 and at most 1, like topk:.01"),
    ("compress", "topk:x", "SHARE must be a number above 0 and at most 1, like topk:.01"),
    ("compress", "randk:.1,s",
     "scaled must be the word scaled, or left out, like randk:.01 or randk:.01,scaled"),
    ("compress", "int8:1", "nothing may follow int8; give int8 alone"),
    ("compress", "sign:1", "positive must be the word positive, or left out, like sign"),
    ("compress", "dgc:.1,1", "MOMENTUM must be a number from 0 to below 1, like dgc:.001,.9,400"),
    ("compress", "dgc:.1,.9,1,1,1", "dgc needs SHARE[,MOMENTUM[,WARMUP[,CLIP]]], like dgc:.001,.9,400"),
    ("compress", "dgc:", "SHARE must be a number above 0 and at most 1, like dgc:.001,.9,400"),
    ("compress_down", "dgc:.1", f"{ALL} or powersgd:RANK"),
    ("compress_down", "qsgd:128", "LEVELS must be a whole number from 1 to 127, like qsgd:8"),
    ("compress_down", "powersgd:1.5", "RANK must be a whole number from 1 to 1024, like powersgd:2"),
    ("aggregate", "average",
     "must be mean, median, trimmed:F, krum:F, multikrum:F,M, geometric, clip:RADIUS or bulyan:F"),
    ("aggregate", "trimmed", "trimmed needs F, like trimmed:2"),
    ("aggregate", "krum:-1", LIARS + "krum:2"),
    ("aggregate", "multikrum:2", "multikrum needs F,M, like multikrum:2,4"),
    ("aggregate", "multikrum:1,0", "M must be a whole number of at least 1, like multikrum:2,4"),
    ("aggregate", "clip:nan", "RADIUS must be a number above 0, like clip:10"),
    ("aggregate", "median:2", "nothing may follow median; give median alone"),
    ("aggregate", "pairs+median", "before +: must be nnm:F or bucketing:SIZE"),
    ("aggregate", "bucketing:1+median",
     "before +: SIZE must be a whole number of at least 2, like bucketing:2"),
    ("filter", "kardam", "kardam needs F, like kardam:1"),
    ("filter", "kardam:x", LIARS + "kardam:1"),
    ("filter", "zeno", "zeno needs RHO[,EPSILON], like zeno:.1 or zeno:.1,.01"),
    ("filter", "zeno:1", "RHO alone is the least cosine, so must be below 1; or give zeno:RHO,EPSILON"),
    ("filter", "zeno:.1,x", "EPSILON must be a number of at least 0, like zeno:.1 or zeno:.1,.01"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "text", "rule"), MISTAKES, ids=lambda value: str(value)[:20])
def test_a_mistake_is_named_with_its_rule_and_a_remedy(option: str, text: str, rule: str) -> None:
    """An unknown name, too few or too many numbers, no number, or one out of range."""
    with pytest.raises(ValueError, match=r"^--") as refused:
        config("asgd", **{option: text})
    assert str(refused.value) == f"--{option.replace('_', '-')} {text}: {rule}"


# Each in one unit and in the options' own: 1 Mbit is 125,000 bytes.
WITH_UNITS = [
    ("--bytes-per-s 200Mbit", "--bytes-per-s 25e6"),
    ("--bytes-per-s 25MB/s", "--bytes-per-s 25e6"),
    ("--bytes-per-s 1.5Gbit/s", "--bytes-per-s 187500000"),
    ("--server-bytes-per-s 800kbit/s", "--server-bytes-per-s 100000"),
    ("--server-bytes-per-s 12B/s", "--server-bytes-per-s 12"),
    ("--bytes-per-s 12M", "--bytes-per-s 12e6"),
    ("--padding-mb 500kB", "--padding-mb .5"),
    ("--padding-mb 8Mbit", "--padding-mb 1"),
    ("--latency-s 8.2ms", "--latency-s .0082"),
    ("--latency-s 20us", "--latency-s .00002"),
    ("--max-seconds 1.5min", "--max-seconds 90"),
    ("--suspect-after 2h", "--suspect-after 7200"),
    ("--start-timeout-s 2min", "--start-timeout-s 120"),
]


@pytest.mark.parametrize(("given", "same"), WITH_UNITS)
def test_a_number_may_have_a_unit(given: str, same: str) -> None:
    """On the command line and in files, rates in bits and bytes and times of any size."""
    needed = ["--engine", "ray" if "timeout" in given or "suspect" in given else "sim"]
    assert parse([*given.split(), *needed]) == parse([*same.split(), *needed])
    option, text = given[2:].split()
    in_file = configure({option.replace("-", "_"): text, "engine": needed[1]}, "f")
    assert in_file == parse([*same.split(), *needed])


MEANINGS: list[tuple[Callable[[str], object], str, str]] = [
    (parse_law, "constant:8.2ms", "constant:.0082"),
    (parse_law, "shifted-exponential:1ms,80ms", "shifted-exponential:.001,.08"),
    (parse_law, "markov:1ms,1min,.05,.2", "markov:.001,60,.05,.2"),
    (parse_law, "lognormal:20ms,.5", "lognormal:.02,.5"),
    (parse_faults, "kill:1@t=5min+30s; pause:0=500ms@t=1h", "kill:1@t=300+30; pause:0=.5@t=3600"),
    (parse_faults, "spot:mtbf=10min,back=30s", "spot:mtbf=600,back=30"),
    (parse_faults, "lie:1=signflip@t=1min+2min", "lie:1=signflip@t=60+120"),
    (Racks.parse, "2,80Mbit", "2,1e7"),
    (RankLink.parse, "400Gbit,10us", "5e10,1e-5"),
    (checkpoint_tiers, "memory=500ms,disk=2min", "memory=.5,disk=120"),
    (checkpoint_mtbf, "auto,mtbf=1h", "auto,mtbf=3600"),
    (Restarts.parse, "1,within=1min", "1,within=60"),
]


@pytest.mark.parametrize(("meaning", "given", "same"), MEANINGS)
def test_a_text_has_units_where_it_has_times_and_rates(
    meaning: Callable[[str], object], given: str, same: str
) -> None:
    """Laws, faults, racks, checkpoints, restarts: each number that is seconds or bytes a second."""
    assert meaning(given) == meaning(same)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("--bytes-per-s 200Mb", "must be a number, or have a unit, like 200Mbit or 25MB"),
        ("--latency-s 80mss", "must be a number, or have a unit, like 80ms or 2h"),
        ("--latency-s ms", "must be a number, or have a unit, like 80ms or 2h"),
        ("--latency-s -1ms", "must be finite and at least 0"),
        ("--lr 5ms", "must be a number"),
        ("--compute-time lognormal:1,5ms", "every parameter must be a finite number"),
        ("--faults slow:0=4s@t=1", "the size must be a finite number of at least 0, not '4s'"),
        ("--faults kill:0@update=4s", "the trigger must be a finite number of at least 0, not '4s'"),
    ],
)
def test_an_unknown_unit_is_refused(given: str, rule: str) -> None:
    """As a letter that could be a bit or a byte is, and a unit where there can be none."""
    with pytest.raises(UsageError) as refused:
        parse([*given.split(), "--engine", "sim"])
    assert rule in str(refused.value)
    assert "\n" not in str(refused.value)
