"""How figures look: one colour and one marker per mode, readable on light and on dark.

A mode's name decides its colour and its marker, so both are the same in every figure. Not
everybody can distinguish so many colours, hence the markers. Variants of one mode share both, and differ by
lightness and dashes. All colours have a contrast of 3 or more on white and on the pages' dark ground; text
and axes have the colour of the text around them.
"""

from __future__ import annotations

import colorsys
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from dsgd.strategies import modes as shipped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours and markers of modes. The idea, and the colours of ssgd, asgd, ssp and localsgd, are from Okabe and
# Ito 2008, "Color universal design".
LOOKS = (
    ("#5C8A1E", "p"),
    ("#B0820A", "d"),
    ("#A045AC", ">"),
    ("#85862B", "H"),
    ("#009E73", "s"),
    ("#D0459B", "*"),
    ("#4B8FE0", "<"),
    ("#1F8FA3", "h"),
    ("#8F6C55", "X"),
    ("#CC79A7", "D"),
    ("#7B8088", "8"),
    ("#C8384E", "v"),
    ("#D55E00", "^"),
    ("#7560D0", "P"),
    ("#0072B2", "o"),
)
_SEED = 8493  # of the checksum: with it the modes that were there first have different looks

DASHES: Sequence[Any] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)))
LIGHT, DARK = "#ffffff", "#12161b"
"""The grounds of the pages."""

INK = "#010203"
"""Stands for the colour of the text around the figure; no mode has it."""

_DARKEST, _LIGHTEST = 0.135, 0.295  # relative luminance: contrast of 3 to both grounds
_FONTS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Verdana, sans-serif"
_STANDALONE = (
    f"<style>svg{{color:#1f2328;background:{LIGHT};font-family:{_FONTS}}}*{{stroke-linejoin:round}}"
    f"@media(prefers-color-scheme:dark){{svg{{color:#e6e9ed;background:{DARK}}}}}</style>"
)
RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.hashsalt": "dsgd",  # the same figure gives the same file
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.6,
    "axes.facecolor": "none",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.5,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}


class Style(NamedTuple):
    """How a variant looks."""

    colour: str
    dashes: Any
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Options of a line."""
        return {"color": self.colour, "linestyle": self.dashes, "marker": self.marker}


def styles(modes: Mapping[str, str]) -> dict[str, Style]:
    """Return a look for each variant, given its mode: the mode's own, or one made lighter or darker from it.

    >>> styles({"ssgd": "ssgd"})["ssgd"]
    Style(colour='#0072B2', dashes='-', marker='o')
    """
    # The repository's modes come first, so that a user's own strategy does not change how they look.
    own = _looks_of_modes(sorted(dict.fromkeys(modes.values()), key=lambda mode: mode not in shipped()))
    looks = {}
    for variant, mode in modes.items():
        colour, marker = own[mode]
        same = [other for other in modes if modes[other] == mode]
        place = same.index(variant)
        if len(same) > 1:
            share = place / (len(same) - 1)
            colour = with_luminance(colour, _DARKEST * (_LIGHTEST / _DARKEST) ** share)
        looks[variant] = Style(colour, DASHES[place % len(DASHES)], marker)
    return looks


def look(mode: str) -> int:
    """Return which of the LOOKS is a mode's.

    >>> LOOKS[look("ssgd")]
    ('#0072B2', 'o')
    """
    return crc32(mode.encode(), _SEED) % len(LOOKS)


def _looks_of_modes(modes: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the looks of a figure's modes; of two with the same look, the later takes the next free."""
    taken: dict[int, str] = {}
    for mode in modes:
        first = look(mode)
        free = (place % len(LOOKS) for place in range(first, first + len(LOOKS)))
        taken[next((place for place in free if place not in taken), len(LOOKS) + len(taken))] = mode
    return {mode: LOOKS[place % len(LOOKS)] for place, mode in taken.items()}


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


def with_luminance(colour: str, wanted: float) -> str:
    """Return the colour lighter or darker, with the relative luminance wanted and its hue and saturation."""
    hue, _, saturation = colorsys.rgb_to_hls(*_rgb(colour))
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        found = _hex(colorsys.hls_to_rgb(hue, middle, saturation))
        low, high = (middle, high) if luminance(found) < wanted else (low, middle)
    return _hex(colorsys.hls_to_rgb(hue, high, saturation))


def inline_svg(figure: Figure, title: str) -> str:
    """Return a figure as an <svg> element for a page: the page's text colour and fonts, no ground."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue().decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r"<g id=\"[^\"]*\">", "<g>", svg
    )  # nothing refers to groups, and on a page they would repeat
    svg = re.sub(r"<[^>]*>", _adapted, svg)  # in tags only: labels are the reader's words
    svg = re.sub(r"\n\s*", "\n", svg)
    width, height = (72 * inches for inches in figure.get_size_inches())
    opening = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return opening + svg[svg.index(">") + 1 :]


def _adapted(tag: re.Match[str]) -> str:
    text = tag[0].replace(INK, "currentColor")
    text = re.sub(r" font-family: [^;\"]*;", "", text)
    return re.sub(r"(\d\.\d\d)\d+", r"\1", text)  # a hundredth of a point is enough


def standalone_svg(inline: str) -> str:
    """Return a page's <svg> element as a file: with its own ground and fonts, light or dark."""
    viewbox = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', inline)
    assert viewbox
    end = inline.index(">")
    size = f' width="{viewbox[1]}pt" height="{viewbox[2]}pt"'
    return f"{inline[:end]}{size}>{_STANDALONE}{inline[end + 1 :]}"


def png(figure: Figure, dpi: int = 200) -> bytes:
    """Return a figure as a PNG on a white ground."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor=LIGHT, metadata={"Software": None})
    return buffer.getvalue()


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def _linear(colour: str) -> list[float]:
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _rgb(colour)]


def _hex(rgb: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * c):02X}" for c in rgb)
