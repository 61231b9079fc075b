"""`--open`: shows a finished page in the user's browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from dsgd.process.messages import program


def open_page(page: Path) -> None:
    """Open a page in the browser; where there is none, say in one line where the page is.

    Python's `webbrowser` chooses it: what BROWSER names, else the desktop's. Browsers that would take over
    the terminal (lynx, w3m) count as none, unless BROWSER names one.
    """
    url = page.resolve().as_uri()
    if not _opened(url):
        print(f"{program()}: --open: no browser can be opened here; the page is {url}", file=sys.stderr)


def _opened(url: str) -> bool:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    in_terminal = type(browser) is webbrowser.GenericBrowser and not os.environ.get("BROWSER")
    return not in_terminal and browser.open(url)
