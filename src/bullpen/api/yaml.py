"""YAML input and output, as Kubernetes tools write it.

Loading yields plain JSON values: dates stay text, keys must be text. In YAML from the
network, aliases are rejected: a few lines of them can expand to gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from bullpen.errors import BadRequest

DEPTH_MAX = 200
"""More nesting than any real manifest has, and less than the recursion limit."""


NODES_MAX = 1_000_000
"""Values in one document; the content of an alias counts each time it is used."""


class _JsonLoader(yaml.SafeLoader):
    """YAML restricted to JSON values."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # Checked while parsing: unclosed nesting would be parsed to its end, ever more slowly.
        if self._depth > DEPTH_MAX:
            raise _too_deep()
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - as PyYAML calls it
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                line = key.start_mark.line + 1
                raise BadRequest(f"key {key.value!r} is given twice (line {line}); keep one")
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


class _AliasFreeLoader(_JsonLoader):
    """The same, for untrusted text."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise BadRequest(
                f"YAML aliases are not accepted here (line {self.line + 1}); write it out"
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


# Dates, binaries and sets exist in YAML but not in JSON: such scalars stay text.
_JSON_TAGS = ("bool", "float", "int", "null", "merge")
_JsonLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] in _JSON_TAGS]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str | bytes) -> Any:
    """The single document in ``text``, which comes from the network."""
    return next(_load_all(text, _AliasFreeLoader), None)


def load_manifests(text: str | bytes) -> tuple[Any, ...]:
    """Every document of a user's own file; empty ones are skipped."""
    return tuple(document for document in _load_all(text, _JsonLoader) if document is not None)


def dump(document: object) -> str:
    """``document`` as readable YAML, in its own key order."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


_UNSEEN = frozenset("\r\x85\u2028\u2029\ufeff")
"""Line breaks that YAML folds unless they are escaped."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _UNSEEN & set(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _load_all(text: str | bytes, loader: type[yaml.SafeLoader]) -> Iterator[Any]:
    try:
        for document in yaml.load_all(text, Loader=loader):
            yield _checked(document, depth=0, left=_Allowance())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadRequest(f"the YAML cannot be read: {_where(error)}") from None


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"{problem}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(problem)


class _Allowance:
    """How many more values a document may contain."""

    def __init__(self) -> None:
        self._left = NODES_MAX

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise BadRequest(f"the document has more than {NODES_MAX} values, aliases written out")


def _checked(value: Any, *, depth: int, left: _Allowance) -> Any:
    left.take()
    if depth > DEPTH_MAX:
        raise _too_deep()
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise BadRequest(f"key {key!r} is not text; quote it")
            _check_text(key)
        return {key: _checked(item, depth=depth + 1, left=left) for key, item in value.items()}
    if isinstance(value, list):
        return [_checked(item, depth=depth + 1, left=left) for item in value]
    if isinstance(value, str):
        _check_text(value)
    elif value is not None and not isinstance(value, bool | int | float):
        raise BadRequest(f"a {type(value).__name__} is nothing JSON can say; leave its tag out")
    return value


def _too_deep() -> BadRequest:
    return BadRequest(f"the document is nested deeper than {DEPTH_MAX} levels")


def _check_text(text: str) -> None:
    # A lone surrogate is valid in YAML's escapes only.
    if not text.isascii() and text != text.encode(errors="replace").decode():
        raise BadRequest(f"{text[:40]!r} holds half a character")
