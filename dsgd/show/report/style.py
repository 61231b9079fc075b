"""How figures look: one colour and one marker per mode, readable on light and on dark.

A mode's name decides its colour and its marker, so both are the same in every figure. Not
everybody can distinguish so many colours, hence the markers. Variants of one mode share the marker, and have
the colours of an ordered ramp around the mode's (dsgd/show/report/colours.py). Figures are drawn for a white
page; on a dark one each colour is replaced by its counterpart, which has the same contrast. Lines have a
contrast of 3 or more and names 4.5; other text and axes have the colour of the text around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from dsgd.show.report.colours import DARK, LIGHT, for_text, on_dark, ramp
from dsgd.strategies import modes as shipped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours and markers of modes. The idea, and the colours of ssgd, asgd, ssp and localsgd, are from Okabe and
# Ito 2008, "Color universal design".
LOOKS = (
    ("#C8384E", "v"),
    ("#85862B", "H"),
    ("#8F6C55", "X"),
    ("#4B8FE0", "<"),
    ("#7560D0", "P"),
    ("#1F8FA3", "h"),
    ("#CC79A7", "D"),
    ("#D55E00", "^"),
    ("#4F9D4F", "1"),
    ("#5C8A1E", "p"),
    ("#6F8FAF", "2"),
    ("#D0459B", "*"),
    ("#009E73", "s"),
    ("#A045AC", ">"),
    ("#C46A3C", "x"),
    ("#B0820A", "d"),
    ("#7B8088", "8"),
    ("#5E6FD8", "+"),
    ("#E0567A", "3"),
    ("#0072B2", "o"),
)
_SEED = 125821  # of the checksum: with it all modes of the repository have different looks

DASHES: Sequence[Any] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)))
INK = "#010203"
"""Stands for the colour of the text around the figure; no mode has it."""

_MOST_SOLID = 6  # variants of a mode that their colours alone tell apart
_FONTS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Verdana, sans-serif"
_STANDALONE = (
    f"<style>svg{{color-scheme:light dark;color:#1f2328;background:{LIGHT};font-family:{_FONTS}}}"
    "*{stroke-linejoin:round}"
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

    @property
    def text(self) -> str:
        """The colour of the variant's name: that of its line, or a darker one that can be read."""
        return for_text(self.colour)


def styles(modes: Mapping[str, str]) -> dict[str, Style]:
    """Return a look for each variant, given its mode: the mode's own, or its place on the mode's ramp.

    The order of the variants is that of the ramp, from pale to dark.

    >>> styles({"ssgd": "ssgd"})["ssgd"]
    Style(colour='#0072B2', dashes='-', marker='o')
    """
    # The repository's modes come first, so that a user's own strategy does not change how they look.
    own = _looks_of_modes(sorted(dict.fromkeys(modes.values()), key=lambda mode: mode not in shipped()))
    looks = {}
    for mode, (colour, marker) in own.items():
        same = [variant for variant in modes if modes[variant] == mode]
        for place, (variant, shade) in enumerate(zip(same, ramp(colour, len(same)), strict=True)):
            dashes = DASHES[place % len(DASHES)] if len(same) > _MOST_SOLID else DASHES[0]
            looks[variant] = Style(shade, dashes, marker)
    return {variant: looks[variant] for variant in modes}


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
    text = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _both, tag[0])
    text = re.sub(r" font-family: [^;\"]*;", "", text)
    return re.sub(r"(\d\.\d\d)\d+", r"\1", text)  # a hundredth of a point is enough


def _both(paint: re.Match[str]) -> str:
    """Return a colour for light and dark pages; first alone, for programs without dark ones."""
    what, colour = paint.groups()
    if colour == INK:
        return f"{what}: currentColor"
    return f"{what}: {colour}; {what}: light-dark({colour}, {on_dark(colour).lower()})"


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
