"""Objects named on the command line, in kubectl's forms.

``exporters``, ``exporters a b``, ``exporters,leases`` and ``exporter/a lease/b``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import click
from click.shell_completion import CompletionItem

from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.cli.connection import Api, path_of, resource_named
from bullpen.cli.options import default_data_directory
from bullpen.errors import LabError

SUGGESTIONS_MAX = 100


@dataclass(frozen=True, slots=True)
class Chosen:
    """Objects of one resource; without names, all of them."""

    resource: Resource
    names: tuple[str, ...] = ()


def chosen(words: Sequence[str]) -> tuple[Chosen, ...]:
    """What the words mean. Raises ``UsageError`` for a mixture of forms."""
    if not words:
        raise click.UsageError("name a resource, such as exporters, or exporter/NAME")
    if any("/" in word for word in words):
        return tuple(_grouped([pair(word) for word in words]))
    kinds, *names = words
    found = tuple(resource_named(word) for word in kinds.split(",") if word)
    if not found:
        raise click.UsageError(f"{kinds!r} names no resource")
    return tuple(Chosen(resource, tuple(names)) for resource in found)


def one(words: Sequence[str]) -> tuple[Resource, str]:
    """The one object that the words name. Raises ``UsageError`` if it is none, or several."""
    found = chosen(words)
    if len(found) != 1 or len(found[0].names) != 1:
        raise click.UsageError("name one object: RESOURCE/NAME, or RESOURCE NAME")
    return found[0].resource, found[0].names[0]


def pair(word: str) -> tuple[Resource, str]:
    """The object of RESOURCE/NAME. Raises ``UsageError`` for another form."""
    kind, slash, name = word.partition("/")
    if not slash or not kind or not name or "/" in name:
        raise click.UsageError(
            f"{word!r} is not RESOURCE/NAME, such as exporterset/rpi4; either all arguments"
            " have this form, or none"
        )
    return resource_named(kind), name


def _grouped(pairs: list[tuple[Resource, str]]) -> Iterator[Chosen]:
    for resource, same in groupby(pairs, key=lambda pair: pair[0]):
        yield Chosen(resource, tuple(name for _, name in same))


def complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completion in a shell: resources first, then names of objects if the service answers."""
    before = tuple(context.params.get(parameter.name or "") or ())
    kind, slash, name = incomplete.partition("/")
    if slash:
        return [CompletionItem(f"{kind}/{found}") for found in _names(context, kind, name)]
    if before and "/" not in before[0]:
        return [CompletionItem(found) for found in _names(context, before[0], incomplete)]
    return [
        CompletionItem(resource.plural, help=resource.kind)
        for resource in RESOURCES
        if resource.plural.startswith(incomplete)
    ]


def _names(context: click.Context, kind: str, beginning: str) -> list[str]:
    data = context.params.get("data") or default_data_directory()
    namespace = context.params.get("namespace") or "default"
    try:
        resource = resource_named(kind)
        answer: Any = Api.from_data(data).request(
            "GET", path_of(resource, namespace), query={"limit": str(SUGGESTIONS_MAX)}
        )
    except LabError:
        return []  # there is nothing to suggest
    names = (item["metadata"]["name"] for item in answer["items"])
    return [name for name in names if name.startswith(beginning)]
