"""The options of compression: `--compress`, `--error-feedback` and `--compress-down`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, cast

from dsgd.core.option_effects import LEARNED
from dsgd.core.option_forms import Form, number, parsed
from dsgd.core.option_rules import Checked, Parsed, require
from dsgd.transforms.codecs import CODECS, SHARE, Codec, TopK, parse_codec
from dsgd.transforms.compressed import Compression, MomentumCorrection


class Dgc(NamedTuple):
    """Deep gradient compression, as `--compress dgc:…` asks for it."""

    share: float
    momentum: float = 0.9
    warmup: float = 0
    clip: float = math.inf


_DGC = Form(
    Dgc,
    (
        SHARE,
        number("MOMENTUM", "from 0 to below 1", lambda m: 0 <= m < 1, optional=True),
        number("WARMUP", "of mini-batches, 0 or more", lambda n: 0 <= n < math.inf, optional=True),
        number("CLIP", "above 0", lambda clip: clip > 0, optional=True),
    ),
    "dgc:.001,.9,400",
)


def codec_or_dgc(text: str) -> Codec | Dgc | None:
    """Return what `--compress` names. Raises ValueError with the rule.

    >>> codec_or_dgc("dgc:.001,.9,400")
    Dgc(share=0.001, momentum=0.9, warmup=400.0, clip=inf)
    """
    forms: Mapping[str, Form[Any]] = {**CODECS, "dgc": _DGC}
    return cast("Codec | Dgc | None", parsed(text, forms, "none"))


@dataclass(frozen=True, kw_only=True)
class CompressConfig(Checked):
    """Compression of what is sent (docs/network.md). CODEC: none | topk:SHARE (of the numbers) |
    randk:SHARE | randk:SHARE,scaled | sign | qsgd:LEVELS | int8 | fp4 | powersgd:RANK.
    """

    compress: Annotated[str, LEARNED] = "none"
    """CODEC of the results on their way to the server, or dgc:SHARE,MOMENTUM,WARMUP,CLIP (deep gradient
    compression; only SHARE is needed, MOMENTUM is 0.9, WARMUP counts a worker's mini-batches)."""
    results = Parsed("compress", codec_or_dgc)

    error_feedback: Literal["none", "ef", "ef21"] | None = None
    """What a worker does with what was not sent. none: nothing. ef: it adds it to what it sends next. ef21:
    it sends changes, which the server adds up. None: none with an unbiased codec (qsgd, int8, randk scaled),
    else ef."""

    compress_down: Annotated[str, LEARNED] = "none"
    """CODEC of the weights on their way to the workers: what has changed in them is sent to all. Only in
    modes in which every update waits for all workers."""
    weights = Parsed("compress_down", parse_codec)

    def __post_init__(self) -> None:
        super().__post_init__()
        codec, memory = self.results, self.error_feedback
        rule = "has no effect without --compress; leave it out"
        require(codec is not None or memory is None, "error-feedback", memory, rule)
        rule = f"--compress {self.compress} has a memory already; leave it out"
        require(not isinstance(codec, Dgc) or memory is None, "error-feedback", memory, rule)
        rule = f"needs a codec that never sends more than it gets, and {self.compress} may; use none"
        contracts = codec is None or isinstance(codec, Dgc) or codec.contracts
        require(contracts or memory in (None, "none"), "error-feedback", memory, rule)
        rule = "must bring workers closer to the weights each time; choose topk, sign, int8, fp4 or powersgd"
        down = self.weights is None or self.weights.contracts
        require(down, "compress-down", self.compress_down, rule)

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for codecs that the run's mode has no use for."""
        rule = f"is for results on their way to a server, and --mode {run.mode} has none; leave it out"
        require(run.traits.has_server or self.results is None, "compress", self.compress, rule)
        down = self.weights is None or run.traits.waits_for_all
        rule = f"needs a mode in which every update waits for all workers, not {run.mode}; leave it out"
        require(down, "compress-down", self.compress_down, rule)
        if isinstance(self.results, Dgc):
            rule = "needs a mode whose workers send gradients, and --optimizer sgd; choose another codec"
            require(getattr(run, "optimizer", None) == "sgd", "compress", self.compress, rule)
            rule = f"--compress {self.compress} has a momentum already; leave it out"
            require(not run.momentum, "momentum", run.momentum, rule)

    def of_results(self, num_workers: int) -> Compression | None:
        """Return how results travel; None: as they are."""
        match self.results:
            case None:
                return None
            case Dgc(share, momentum, warmup, clip):
                # Of P gradients, each may be so long that their mean keeps to the limit (Lin et al., 3.2).
                own_clip = None if clip == math.inf else clip / math.sqrt(num_workers)
                correction = MomentumCorrection(momentum=momentum, clip=own_clip, everything=share == 1)
                return Compression(codec=TopK(share), memory=correction, warmup=math.ceil(warmup))
            case codec:
                return Compression.of(codec, self.error_feedback)
