"""YAML in which a key that appears twice is an error: YAML itself silently keeps the last."""

from __future__ import annotations

from typing import Any

import yaml


class DuplicateKeyError(ValueError):
    """A mapping has a key twice; the message is one line and names the line of the text."""


def load(text: str) -> Any:
    """Return what a YAML text holds.

    Raises DuplicateKeyError for a key that appears twice, yaml.YAMLError for what is not YAML, and ValueError
    or RecursionError for values that Python cannot hold.
    """
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    pass


def _unique(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in seen:
            line = key.start_mark.line + 1
            raise DuplicateKeyError(f"line {line}: '{key.value}' appears twice; rename or remove one of them")
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique)
