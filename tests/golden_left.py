"""What runs leave, as hashes: which of it no processor changes, and tests/golden/left.json, which keeps that.

The last bits of most sums depend on the processor, so hashes of them hold for one kind of it. Kept are,
of each run,

    exact ones   all that it leaves: their sums are of a few numbers, and lose nothing in any order
    others       the order and times of events, counts, options; and some sums of the weights, to 1e-5, or
                 1e-2 where what one processor rounds otherwise grows

Their bits are compared with an earlier commit's, on the machine at hand, by golden_base.py, which also
writes the file anew: for new runs, and for a change that is meant to move results.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load

from dsgd.strategies import config_of, modes

FOLDER = Path(__file__).parent / "golden"
KEPT = FOLDER / "left.json"

# Names of what is computed from weights, in the files of a record.
_VALUES = frozenset({
    "loss", "training", "evaluation", "accuracy", "bits_per_byte", "perplexity", "experts",
    "drift", "consensus", "extra", "weights_sha256",
})  # fmt: skip
# What a checkpoint has of them: losses, and how long the files are in which they stand as decimals.
_OF_CHECKPOINT = frozenset({"tally", "evaluations", "lengths"})
_EXACT_WORKLOADS = ("none", "quadratic", "tests/workloads/exact.py")
_ADAMW = {mode for mode in modes() if getattr(config_of(mode), "inner", "") == "adamw"}


class Left(NamedTuple):
    """What a run has left."""

    ended: str
    """How each attempt ended, and after how many updates."""
    bits: Mapping[str, str]
    """By file: the hash of its content."""
    facts: Mapping[str, str]
    """By file: the hash of what no processor changes in it, unless that is nothing."""
    sums: Sequence[float]
    """The last loss, the weights' norm, and sums of the weights with different signs."""


def left(ended: str, files: Mapping[str, tuple[bytes, bytes | None]], loss: float, w: Any) -> Left:
    """Return what a run has left. files: by name, the content, and what no processor changes in it."""
    bits = {name: digest(content)[:8] for name, (content, _) in files.items()}
    facts = {name: digest(same)[:8] for name, (_, same) in files.items() if same is not None}
    w = np.asarray(w, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        signed = [float(w @ (1 - 2 * (np.arange(len(w)) >> bit & 1))) for bit in range(4)]
        return Left(ended, bits, facts, [loss, float(np.linalg.norm(w)), *signed])


def digest(content: bytes) -> str:
    """Return the digest of a content."""
    return hashlib.sha256(content).hexdigest()


# --- What no processor changes ------------------------------------------------------------------------------


def unchanging(file: str, content: bytes) -> bytes | None:
    """Return what no processor changes in a file of a record; None: nothing is left of it."""
    if file.endswith(".npy"):
        return None
    if "checkpoints/" in file:
        return _of_checkpoint(content)
    if file.endswith((".json", ".jsonl")):
        lines = content.splitlines() if file.endswith("l") else [content]
        return json.dumps([without_values(json.loads(line)) for line in lines]).encode()
    return content


def without_values(value: Any) -> Any:
    """Return a JSON value in which only the place is left of what is computed from weights."""
    if isinstance(value, dict) and value.keys() == {"keys", "values"}:  # a mapping in a checkpoint
        pairs = zip(value["keys"], value["values"], strict=True)
        same = [_place(it) if str(name) in _VALUES else without_values(it) for name, it in pairs]
        return {"keys": without_values(value["keys"]), "values": same}
    if isinstance(value, dict):
        return {name: _place(it) if name in _VALUES else without_values(it) for name, it in value.items()}
    return [without_values(it) for it in value] if isinstance(value, list) else value


def _place(value: Any) -> Any:
    """Return what is left of a value: its names, and whether it is there."""
    if isinstance(value, dict):
        return {name: _place(it) for name, it in value.items()}
    return value is not None


def _of_checkpoint(content: bytes) -> bytes:
    """Return a checkpoint's document without values, and its arrays of whole numbers and times."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    document = json.loads(header.pop("__metadata__")["dsgd"])
    kept = {name: None if name in _OF_CHECKPOINT else it for name, it in document.items()}
    arrays = [array.tobytes() for _, array in sorted(load(content).items()) if array.dtype != np.float32]
    return json.dumps([header, without_values(kept)]).encode() + b"".join(arrays)


# --- What is kept -------------------------------------------------------------------------------------------


def tolerance(workload: str, mode: str = "", inner: str = "", precision: str = "") -> float:
    """Return by how much sums of a run, relative to the largest, may differ between processors; 0: not a bit.

    Local AdamW steps take torch's square roots, which MKL computes with another routine for each kind of
    processor: 0, 0.7 or 15 % of its float32 roots are not the nearest number (MKL_CBWR=AVX2, AVX512, AVX).
    Where a gradient is almost 0 the steps make such a difference large, for they divide by its size; so does
    bf16, which keeps 8 bits.
    """
    if (inner or ("adamw" if mode in _ADAMW else "")) == "adamw" or precision == "bf16":
        return 1e-2
    return 0 if workload in _EXACT_WORKLOADS else 1e-5


def kept_of(found: Left, tolerance: float) -> dict[str, Any]:
    """Return what the file keeps of a run."""
    if not tolerance:
        return {"ended": found.ended, "bits": found.bits}
    sums = [float(f"{x:.8g}") for x in found.sums]
    return {"ended": found.ended, "facts": found.facts, "sums": sums, "within": tolerance}


def moved(found: Left, kept: Mapping[str, Any]) -> list[str]:
    """Return what of a run is not as the file keeps it, by name."""
    names = ["ended"] if found.ended != kept["ended"] else []
    sort = "bits" if "bits" in kept else "facts"
    names += differing(getattr(found, sort), kept[sort])
    if "sums" in kept and not _close(found.sums, kept["sums"], kept["within"]):
        names.append(f"weights ({found.sums}, were {kept['sums']})")
    return names


def differing(found: Mapping[str, str], kept: Mapping[str, str]) -> list[str]:
    """Return the names of files whose hashes differ, or that only one of both has."""
    return sorted(name for name in found.keys() | kept.keys() if found.get(name) != kept.get(name))


def _close(found: Sequence[float], kept: Sequence[float], tolerance: float) -> bool:
    size = max(map(abs, kept))
    if not math.isfinite(size):
        return not math.isfinite(max(map(abs, found)))
    return all(abs(x - y) <= tolerance * size for x, y in zip(found, kept, strict=True))


def read() -> dict[str, Any]:
    """Return what is kept, by run."""
    found: dict[str, Any] = json.loads(KEPT.read_text())
    return found
