"""Makes the parts of the documents that are derived from the record's types and the table of quantities.

    python -m dsgd.records.documents        # or make docs

They are the tables of docs/record.md and docs/observing.md, and docs/record.schema.json. A table stands
between a comment and `<!-- end -->`. The comments are `<!-- fields of NAME -->`, NAME a type of schema.py,
and `<!-- metrics of runs -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, UnsetType

from dsgd.metrics import families
from dsgd.records import schema

ROOT = Path(__file__).parents[2]
_TABLE = re.compile(r"(?P<begin><!-- (?P<what>.+?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def fields_table(name: str) -> str:
    """Return the table of a type's fields: its own and, after a point, those of what they hold."""
    rows = "".join(f"| {_in(path, unit)} | {text} |\n" for path, unit, text in _rows(_type(name), "", set()))
    return f"| field, unit | meaning |\n|---|---|\n{rows}"


def _in(name: str, unit: str | None) -> str:
    return f"`{name}`, {unit}" if unit else f"`{name}`"


def _type(name: str) -> type[Struct]:
    by_name = {kind.__name__: kind for kind in schema.files().values()}
    kind: type[Struct] = by_name.get(name) or getattr(schema, name)
    return kind


def metrics_table(_: str) -> str:
    """Return the table of Prometheus metrics."""
    rows = "".join(
        f"| {_in(name, one.unit)} | {one.kind} | {_listed(one.labels)} | "
        + f"{one.text} {one.note}".rstrip()
        + " |\n"
        for name, one in families().items()
    )
    heading = "| name, unit | type | more labels | meaning, and how to read it |\n|---|---|---|---|\n"
    return heading + rows


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _rows(kind: type[Struct], before: str, shown: set[type]) -> Iterator[tuple[str, str, str]]:
    """Yield path, unit and meaning of each field; the fields of a type in a list are shown once."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        inner, about = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
        inner = next((part for part in get_args(inner) if UnsetType in get_args(inner)), inner)
        extra = about.extra or {} if about else {}
        held = next((part for part in (inner, *get_args(inner)) if _is_struct(part)), None)
        mapping = get_origin(inner) is dict
        if about and not (held and mapping):
            yield before + name, extra.get("unit", ""), about.description
        if held and (held is not inner or not about) and held not in shown:
            shown.add(held)
            path = f"{before}{name}.{extra['key']}." if mapping else "." if about else f"{before}{name}."
            yield from _rows(held, path, shown)


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


def json_schema() -> str:
    """Return the JSON Schema of a record: an object with an entry for each file, a .jsonl file a list."""
    kinds = list(schema.files().values())
    _, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    entries: dict[str, Any] = {}
    for file, kind in schema.files().items():
        of: dict[str, Any] = {"$ref": f"#/$defs/{kind.__name__}"}
        entries[file] = {"type": "array", "items": of} if file.endswith(".jsonl") else of
    return json.dumps(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "A run record",
            "description": "By file; of a .jsonl file, the list of its lines. docs/record.md explains them.",
            "type": "object",
            "properties": entries,
            "$defs": parts,
        },
        indent=2,
    )


def with_tables(text: str, tables: Mapping[str, Callable[[str], str]]) -> str:
    """Return a document with its tables made again.

    tables: the functions that make them, by the first words of the comment; the last word is the argument.
    """

    def table(match: re.Match[str]) -> str:
        what, _, argument = match["what"].rpartition(" ")
        return match["begin"] + tables[what](argument) + match["end"]

    return _TABLE.sub(table, text)


def documents() -> dict[Path, str]:
    """Return the documents that are made here, whole or in part, as they should be."""
    tables = {"fields of": fields_table, "metrics of": metrics_table}
    made = {
        path: with_tables(path.read_text(), tables)
        for path in (ROOT / "docs/record.md", ROOT / "docs/observing.md")
    }
    return made | {ROOT / "docs/record.schema.json": json_schema() + "\n"}


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
