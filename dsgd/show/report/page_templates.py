"""Pages from the templates beside this file: report.html, and the index of a folder of runs."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dsgd.show.report.colours import DARK, LIGHT


def rendered(template: str, **values: object) -> str:
    """Return a page: the template's, with these values and the grounds of light and dark pages."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["svg"] = Markup
    return environment.get_template(template).render(values, light=LIGHT, dark=DARK)
