"""Makes the first part of each strategy's page: what its file says about it, and its options.

    python docs/tools/strategy_pages.py docs/strategies/*.md        # or make docs

The part ends at a line of dashes. Below it stand what is written by hand and the comparison with a reference.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import fill

from dsgd.core.option_rules import HIDDEN, Option
from dsgd.strategies import load, own_options

ROOT = Path(__file__).parents[2]
END = "\n---\n"
_LEFT_OUT = "Members that leave and join:"  # only in the file
_LEADS = re.compile(r"^(?P<lead>Source|Limits|How this differs from the papers?): (?P<first>.)", re.MULTILINE)


def first_part(mode: str) -> str:
    """Return the page of a mode up to the line of dashes."""
    strategy = load(mode)
    title, *paragraphs = (strategy.__doc__ or "").strip().split("\n\n")
    kept = [_LEADS.sub(_as_lead, text) for text in paragraphs if not text.startswith(_LEFT_OUT)]
    at_top = (ROOT / f"train_{mode}.py").is_file()
    file = f"train_{mode}.py" if at_top else f"dsgd/strategies/train_{mode}.py"
    options = own_options(strategy.Config).values()
    shown = ", ".join(_shown(option) for option in options if HIDDEN not in option.rules)
    about = f"Code: [`{file}`](../../{file}). Options: {shown}; see `main.py --mode {mode} --help mode`."
    heading = f"# `{mode}` · {' '.join(title.split()).removesuffix('.')}"
    return "\n\n".join([heading, *kept, fill(about, 110, break_on_hyphens=False)]) + "\n"


def _as_lead(match: re.Match[str]) -> str:
    return f"**{match['lead']}.** {match['first'].upper()}"


def _shown(option: Option) -> str:
    given = "" if option.default is None else f" {option.default}"
    return f"`--{option.name.replace('_', '-')}{given}`"


def with_first_part(mode: str, page: str) -> str:
    """Return the text of a page with its first part made again."""
    return first_part(mode) + END + page.partition(END)[2]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(with_first_part(path.stem, path.read_text(encoding="utf-8")), encoding="utf-8")
