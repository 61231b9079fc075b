"""Colours: their contrast, an ordered ramp around one of them, and the same colour for a dark page."""

from __future__ import annotations

import math
from collections.abc import Sequence

LIGHT, DARK = "#ffffff", "#12161b"
"""The grounds of the pages."""

TEXT = 4.5
"""The contrast that WCAG 2.2 asks of text; of lines it asks 3."""

# A ramp of lightness in Oklab (Björn Ottosson 2020, "A perceptual color space for image processing"),
# on white from the palest with a contrast of 3 to the darkest that still shows its hue.
_PALEST, _DARKEST = 0.655, 0.285
_STEP = 0.17  # of lightness, between neighbours of a short ramp
_TURN = 0.45  # radians of hue from end to end: lightness alone would look like fading
_STRONG = 5.4  # a contrast that no mode's own colour exceeds
_COOL = 4.7  # radians: blue, to which the dark end turns, as shades do

Lab = tuple[float, float, float]


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, 0 to 1 (WCAG 2.2).

    >>> luminance("#ffffff")
    1.0
    """
    red, green, blue = _linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2.2).

    >>> contrast("#ffffff", "#000000")
    21.0
    """
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def distance(a: str, b: str) -> float:
    """Return how different two colours look: their distance in Oklab, where black and white are 1 apart.

    >>> round(distance("#000000", "#ffffff"), 3)
    1.0
    """
    return math.dist(oklab(a), oklab(b))


def ramp(colour: str, n: int) -> list[str]:
    """Return n colours of one family, in order: each is darker than the one before, on a light page.

    >>> ramp("#0072B2", 1)
    ['#0072B2']
    """
    if n == 1:
        return [colour]
    _, chroma, hue = _polar(oklab(colour))
    step = min(_STEP, (_PALEST - _DARKEST) / (n - 1))
    middle = (_PALEST + _DARKEST) / 2
    turn = math.copysign(_TURN, math.sin(_COOL - hue))
    found = []
    for place in range(n):
        away = (place - (n - 1) / 2) * step  # of the middle
        towards = hue + turn * away / (_PALEST - _DARKEST)
        found.append(_in_gamut(middle - away, max(chroma, 0.05), towards))
    return found


def shades(colour: str, n: int) -> list[str]:
    """Return n colours of one family, in no order: the colour itself, and others of a different lightness.

    None is as dark as the end of a ramp: two hues there are hard to distinguish in a thin line.
    """
    found, free = [colour], ramp(colour, 24)[:16]
    while len(found) < n:
        found.append(max(free, key=lambda one: min(abs(oklab(one)[0] - oklab(other)[0]) for other in found)))
    return found


def for_text(colour: str) -> str:
    """Return the colour, darker where text in it could not be read on white."""
    darkest = 1.05 / TEXT - 0.05
    return colour if luminance(colour) <= darkest else _with_luminance(colour, 0.98 * darkest)


def on_dark(colour: str) -> str:
    """Return the colour for the dark ground: the same hue, with a little more than its contrast to white.

    A thin line of low contrast is harder to see on a dark ground than on a light one. Of dark colours the
    contrast grows more slowly: else they would all be white.

    >>> on_dark("#ffffff")
    '#12161B'
    """
    if colour == LIGHT:
        return DARK.upper()
    to_white = contrast(colour, LIGHT)
    wanted = min(to_white, _STRONG) ** 1.1 * max(1.0, to_white / _STRONG) ** 0.78
    return _with_luminance(colour, wanted * (luminance(DARK) + 0.05) - 0.05)


def _with_luminance(colour: str, wanted: float) -> str:
    """Return a colour with this relative luminance and the hue, no more colourful than it."""
    _, chroma, hue = _polar(oklab(colour))
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if luminance(_in_gamut(middle, chroma, hue)) < wanted else (low, middle)
    return _in_gamut(high, chroma, hue)


def oklab(colour: str) -> Lab:
    """Return a colour's lightness, and its place between green and red, and between blue and yellow."""
    cones = [math.cbrt(_dot(row, _linear(colour))) for row in _TO_CONES]
    lightness, a, b = (_dot(row, cones) for row in _TO_LAB)
    return lightness, a, b


def _polar(lab: Lab) -> tuple[float, float, float]:
    """Return lightness, chroma and hue in radians."""
    lightness, a, b = lab
    return lightness, math.hypot(a, b), math.atan2(b, a)


def _in_gamut(lightness: float, chroma: float, hue: float) -> str:
    """Return the colour with this lightness and hue, less colourful where a screen cannot show it."""
    low, high = 0.0, chroma
    if not _shown(lightness, chroma, hue):
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (middle, high) if _shown(lightness, middle, hue) else (low, middle)
        chroma = low
    return "#" + "".join(f"{round(255 * _encoded(x)):02X}" for x in _rgb(lightness, chroma, hue))


def _shown(lightness: float, chroma: float, hue: float) -> bool:
    return all(-1e-4 <= x <= 1 + 1e-4 for x in _rgb(lightness, chroma, hue))


def _rgb(lightness: float, chroma: float, hue: float) -> list[float]:
    """Return linear red, green and blue, beyond 0 to 1 where a screen cannot show the colour."""
    lab = (lightness, chroma * math.cos(hue), chroma * math.sin(hue))
    cones = [_dot(row, lab) ** 3 for row in _FROM_LAB]
    return [_dot(row, cones) for row in _FROM_CONES]


def _linear(colour: str) -> list[float]:
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]


def _encoded(x: float) -> float:
    x = min(1.0, max(0.0, x))
    return 12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055


def _dot(row: Sequence[float], vector: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(row, vector, strict=True))


# Oklab's matrices, as its author publishes them.
_TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_TO_LAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
_FROM_LAB = (
    (1.0, 0.3963377774, 0.2158037573),
    (1.0, -0.1055613458, -0.0638541728),
    (1.0, -0.0894841775, -1.2914855480),
)
_FROM_CONES = (
    (4.0767416621, -3.3077115913, 0.2309699292),
    (-1.2684380046, 2.6097574011, -0.3413193965),
    (-0.0041960863, -0.7034186147, 1.7076147010),
)
