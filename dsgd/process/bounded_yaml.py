"""Reads YAML that anybody may have written: no key twice, its size, depth and numbers bounded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode

from dsgd.process.outcomes import echoed

_MOST_DEPTH = 64  # deeper, and what walks through the values reaches Python's limit, or crashes in C
_DATES, _WHOLE = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int"
_WHOLE_NUMBERS = re.compile("(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
"""Those of YAML 1.2: with the rule of 1.1, which PyYAML has, 010 is 8, and 1:30 is 90."""
_NO_NAMES = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "null", "int", "float"))

# libyaml's parser, where it is there, is five times faster; its own composer has no bound on the depth.
_SafeLoaders: Any = (Composer, yaml.CSafeLoader) if hasattr(yaml, "CSafeLoader") else (yaml.SafeLoader,)


class YamlError(ValueError):
    """A text cannot be read as YAML; the message is one line, with the line of the text, not the file."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)


def read_yaml(path: Path, remedy: str = "", most_mb: int = 4) -> Any:
    """Return what a YAML file holds; raises YamlError, whose message ends with the remedy if there is one."""
    return load_yaml(read_text(path, remedy, most_mb), remedy)


def read_text(path: Path, remedy: str = "", most_mb: int = 4) -> str:
    """Return a text file of at most that size, in UTF-8; raises YamlError."""
    try:
        with path.open("rb") as file:
            content = file.read((most_mb << 20) + 1)
        if len(content) <= most_mb << 20:
            return content.decode()
        reason = f"is larger than {most_mb} MB"
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError as error:
        reason = f"is not text in UTF-8 (byte {error.start})"
    raise YamlError(reason, remedy)


def load_yaml(text: str, remedy: str = "") -> Any:
    """Return what a YAML text holds, a date as text; raises YamlError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader with bounds
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        line = f"line {mark.line + 1}: " if mark else ""
    raise YamlError(f"is not YAML ({line}{echoed(str(problem))})", remedy)


class _Loader(*_SafeLoaders):  # type: ignore[misc]  # which bases, depends on the installation
    yaml_implicit_resolvers: ClassVar = {
        first: [
            (tag, _WHOLE_NUMBERS if tag == _WHOLE else pattern) for tag, pattern in rules if tag != _DATES
        ]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        _SafeLoaders[-1].__init__(self, text)
        Composer.__init__(self)
        self._depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            at = self.peek_event().start_mark
            raise YamlError(f"line {at.line + 1}: is over {_MOST_DEPTH} levels deep")
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Construct it at once: a value that holds itself is an error then."""
        try:
            if node.tag == _WHOLE:
                value = int(node.value, 0 if node.value[1:2] in ("o", "x") else 10)
            else:
                value = super().construct_object(node, deep=True)
        except YamlError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            _refuse(node, "cannot be read as a value; correct it")
        if isinstance(value, int) and value.bit_length() > 64:
            _refuse(node, "has more than 64 bits; give a smaller number, or a text in quotes")
        return value

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[str, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, ScalarNode):
                if key.value in seen:
                    _refuse(key, "appears twice; rename or remove one of them")
                if key.tag in _NO_NAMES:
                    value = self.construct_object(key)
                    if isinstance(value, bool) or str(value) != key.value:
                        _refuse(key, f"is {value} in YAML, and no name; put it in quotes")
                seen.add(key.value)
        return {str(key): value for key, value in super().construct_mapping(node, deep=deep).items()}


def _refuse(node: Node, rule: str) -> NoReturn:
    raise YamlError(f"line {node.start_mark.line + 1}: '{echoed(str(node.value), 40)}' {rule}") from None
