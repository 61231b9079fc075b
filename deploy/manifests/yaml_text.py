"""YAML as people write it: lists indented, texts of several lines as they are, no aliases."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def yaml_text(document: dict[str, Any]) -> str:
    """Return a document as YAML, keys in their order."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
