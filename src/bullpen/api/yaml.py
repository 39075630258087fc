"""YAML in and out, as Kubernetes tools write it.

Loading yields plain JSON values: dates stay text, keys must be text. From a
network, aliases are refused: a few lines of them can stand for gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from bullpen.errors import BadRequest

DEPTH_MAX = 200
"""Nesting no real manifest comes near, and no recursion limit either."""


class _JsonLoader(yaml.SafeLoader):
    """YAML restricted to what JSON can say."""


class _AliasFreeLoader(_JsonLoader):
    """The same, for text from strangers."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise BadRequest(
                f"YAML aliases are not accepted here (line {self.line + 1}); write it out"
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


# Dates, binaries and sets are YAML's, not JSON's: leave such scalars as the text they are.
_JSON_TAGS = ("bool", "float", "int", "null", "merge")
_JsonLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] in _JSON_TAGS]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str | bytes) -> Any:
    """The one document in ``text``, which comes from the network."""
    return next(_load_all(text, _AliasFreeLoader), None)


def load_manifests(text: str | bytes) -> tuple[Any, ...]:
    """Every document of a user's own file; empty ones are left out."""
    return tuple(document for document in _load_all(text, _JsonLoader) if document is not None)


def dump(document: object) -> str:
    """``document`` as a person likes to read it, in its own key order."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


_UNSEEN = frozenset("\r\x85\u2028\u2029\ufeff")
"""Breaks of lines that YAML folds away unless they are escaped."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _UNSEEN & set(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _load_all(text: str | bytes, loader: type[yaml.SafeLoader]) -> Iterator[Any]:
    try:
        for document in yaml.load_all(text, Loader=loader):
            yield _checked(document, depth=0)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadRequest(f"the YAML cannot be read: {_where(error)}") from None


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"{problem}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(problem)


def _checked(value: Any, *, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise BadRequest(f"the document is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise BadRequest(f"key {key!r} is not text; quote it")
        return {key: _checked(item, depth=depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_checked(item, depth=depth + 1) for item in value]
    return value
