"""Numbers with a unit, as people write them: 200Mbit/s, 25MB, 80ms, 2h.

An option's name says its unit: `..._s` are seconds, `...bytes_per_s` bytes a second, `..._mb` megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BYTES = {f"{prefix}B": size for prefix, size in _PREFIXES.items()}
_BITS = {f"{prefix}bit": size / 8 for prefix, size in _PREFIXES.items()}
_OTHER_SECONDS = ("max_seconds", "suspect_after", "upload_every")


def seconds(text: str) -> float:
    """Return a time in seconds, which is its unit unless it has another one; raises ValueError.

    >>> seconds("8.2ms"), seconds("1.5 min"), seconds(".5")
    (0.0082, 90.0, 0.5)
    """
    return _read(text, SECONDS)


def bytes_per_s(text: str) -> float:
    """Return a rate in bytes a second, which is its unit unless it has another one; raises ValueError.

    >>> bytes_per_s("200Mbit/s"), bytes_per_s("25MB"), bytes_per_s("25e6")
    (25000000.0, 25000000.0, 25000000.0)
    """
    return _read(text.removesuffix("/s"), _BYTES | _BITS | _PREFIXES)


def megabytes(text: str) -> float:
    """Return a size in MB (10^6 bytes), which is its unit unless it has another one; raises ValueError.

    >>> megabytes("500kB"), megabytes("25")
    (0.5, 25.0)
    """
    return _read(text, {unit: size / 1e6 for unit, size in (_BYTES | _BITS).items()})


def reader_of(option: str) -> tuple[Callable[[str], float], str]:
    """Return what reads an option's number, and in words which units it may have."""
    if option.endswith("bytes_per_s"):
        return bytes_per_s, ", or have a unit, like 200Mbit or 25MB"
    if option.endswith("_s") or option in _OTHER_SECONDS:
        return seconds, ", or have a unit, like 80ms or 2h"
    return (megabytes, ", or have a unit, like 500kB") if option.endswith("_mb") else (float, "")


def _read(text: str, units: Mapping[str, float]) -> float:
    try:
        return float(text)
    except ValueError:
        for unit in sorted(filter(None, units), key=len, reverse=True):
            if text.endswith(unit):
                with suppress(InvalidOperation):  # decimals: 8.2 * 1e-3 is not .0082
                    return float(Decimal(text.removesuffix(unit).strip()) * Decimal(str(units[unit])))
        raise
