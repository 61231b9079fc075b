"""Options that are a name and what follows it: each mistake has a message of its kind."""

from __future__ import annotations

import pytest

from dsgd.running.quick_run import config

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
