"""Writes the dashboards' JSON, for Grafana to provision: `python -m deploy.observability.dashboards`.

They are made of panels/NAME.yaml, a row a panel: its kind, which is one of panels/grafana.yaml, with title,
unit and width in the grid of 24 columns; then the query, or several by their legends, and the text that
explains it. Some kinds have more: `decimals` of a number, `log` of lines, `repeat` (a variable: the panel is
shown for each of its values), `columns` of a table, and the `x_axis` of a curve.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from string import ascii_uppercase
from typing import Any, TypeAlias

import yaml

Json: TypeAlias = dict[str, Any]

FOLDER = Path(__file__).parent / "dashboards"
_PANELS = Path(__file__).parent / "panels"
_NAMES = ("compare-modes", "one-run", "trends", "nodes")  # as links have them
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_GRID_COLUMNS = 24


def _read(name: str) -> Json:
    found: Json = yaml.safe_load((_PANELS / f"{name}.yaml").read_text())
    return found


_BASE = _read("grafana")


def render() -> dict[str, str]:
    """Return the text of each dashboard's file, by its name."""
    specs = {name: _read(name) for name in _NAMES}
    made = {f"{name}.json": _dashboard(name, specs) for name in sorted(specs)}
    return {name: json.dumps(found, indent=2, sort_keys=True) + "\n" for name, found in made.items()}


def _dashboard(name: str, specs: Mapping[str, Json]) -> Json:
    spec = specs[name]
    source = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}
    variables = [_variable(name, of) for name, of in spec["variables"].items()]
    return {
        **_BASE["dashboard"],
        "uid": f"dsgd-{name}",  # fixed, so that links to it and its later versions find it
        "title": spec["title"],
        "description": spec["description"],
        "time": {"from": spec.get("since", "now-15m"), "to": "now"},
        "templating": {"list": [_BASE["variable"] | source, *variables]},
        "panels": list(_placed(spec["rows"])),
        "links": [_link(other, specs[other]["title"]) for other in _NAMES if other != name],
    }


def _variable(name: str, spec: Json) -> Json:
    """Return a variable with the values of a label; `values` is Grafana's label_values(metric, label)."""
    values = spec["values"]
    return {
        **_BASE["variable"],
        **_BASE["of_a_label"],
        **(_BASE["of_many_labels"] if spec.get("multi") else {}),
        "name": name,
        "label": spec["label"],
        "datasource": _DATASOURCE,
        "query": {"query": values, "refId": f"variable-{name}"},
        "definition": values,
    }


def _link(name: str, title: str) -> Json:
    short = title.partition(": ")[2]
    short = short[0].upper() + short[1:]
    return {**_BASE["link"], "title": short, "tooltip": short, "url": f"/d/dsgd-{name}"}


def _placed(rows: Mapping[str, list[Json]]) -> Iterator[Json]:
    """Yield the panels of titled rows, numbered and placed on the grid, left to right, top to bottom."""
    number = top = 0
    for title, panels in rows.items():
        number += 1
        place = {"x": 0, "y": top, "w": _GRID_COLUMNS, "h": 1}
        row = {"type": "row", "title": title, "collapsed": False, "panels": []}
        yield row | {"id": number, "gridPos": place}
        left, top, height = 0, top + 1, 0
        for spec in panels:
            number += 1
            found = panel_of(spec)
            place = found["gridPos"]
            if left + place["w"] > _GRID_COLUMNS:
                left, top, height = 0, top + height, 0
            yield found | {"id": number, "gridPos": place | {"x": left, "y": top}}
            left, height = left + place["w"], max(height, place["h"])
        top += height


def panel_of(row: Mapping[str, Any]) -> Json:
    """Return a row's panel, not yet placed; raises ValueError for what a row cannot have."""
    spec, kinds = dict(row), _BASE["kinds"]
    name_of_kind = next(iter(spec))
    if name_of_kind not in kinds or not {"query", "text"} <= spec.keys():
        rule = f"a row begins with its kind ({', '.join(kinds)}), and has a query and a text"
        raise ValueError(f"panel {spec[name_of_kind]}: {rule}")
    title, unit, width = spec.pop(name_of_kind)
    kind = deepcopy(kinds[name_of_kind])
    queries = _queries(spec.pop("query"), kind)
    form = {"format": kind["format"]} if "format" in kind else {}
    defaults = kind["defaults"] | {"unit": unit, "color": {"mode": "palette-classic"}}
    overrides: list[Json] = []
    found = {
        **_BASE["panel"],
        "type": kind["type"],
        "title": title,
        "description": spec.pop("text"),
        "datasource": _DATASOURCE,
        "targets": [
            {"refId": letter, "expr": expr, "legendFormat": legend, "range": True, "datasource": _DATASOURCE}
            | form
            for letter, (legend, expr) in zip(ascii_uppercase, queries, strict=False)
        ],
        "gridPos": {"w": width, "h": kind["height"]},
        "options": kind["options"],
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
    }
    if transformations := kind.get("transformations"):
        found["transformations"] = transformations
    for option, value in spec.items():
        match option:
            case "decimals":
                defaults["decimals"] = value
            case "log":
                defaults["custom"]["scaleDistribution"] = {"type": "log", "log": 10}
            case "repeat":
                found |= {"repeat": value, "maxPerRow": 4}
            case "columns":
                fields = {column: {"operation": "groupby", "aggregations": []} for column in value}
                found["transformations"] = [{"id": "groupBy", "options": {"fields": fields}}]
            case "x_axis":
                properties = [{"id": name, "value": of_x} for name, of_x in value.items()]
                matcher = {"id": "byName", "options": "Value #A"}
                overrides.append({"matcher": matcher, "properties": properties})
            case _:
                raise ValueError(f"panel {title!r}: {option} is nothing that a row has; remove it")
    return found


def _queries(given: str | Mapping[str, str], kind: Json) -> list[tuple[str, str]]:
    """Return legends and queries; where a kind has a legend, all have that."""
    by_legend = {"__auto": given} if isinstance(given, str) else given
    return [(kind.get("legend", legend), expr) for legend, expr in by_legend.items()]


def main() -> int:
    """Write the files; print their paths."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in render().items():
        (FOLDER / name).write_text(text)
        print(FOLDER / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
