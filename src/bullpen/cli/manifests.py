"""Manifests from files, directories, standard input and the shipped examples."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import bullpen
from bullpen.api import yaml
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.errors import BadRequest, NotFound

_PACKAGE = Path(bullpen.__file__).parent
_PLACES = (_PACKAGE / "examples", _PACKAGE.parents[1] / "examples")


def examples() -> list[str]:
    """The names of the manifests among the examples, without their suffix."""
    place = next((place for place in _PLACES if place.is_dir()), None)
    return sorted(path.stem for path in place.glob("*.yaml")) if place is not None else []


def example(name: str) -> Path:
    """The example file of that name. Raises ``NotFound``."""
    for place in _PLACES:
        if (place / name).exists():
            return place / name
    raise NotFound(f"the example {name} is missing from this installation; reinstall Bullpen")


SUFFIXES = (".yaml", ".yml", ".json")


def read(paths: tuple[str, ...]) -> list[tuple[Resource, Document]]:
    """Every object in ``paths`` with its resource, in file order; ``-`` is standard input."""
    return [_resolved(document, source) for source, document in documents(paths)]


def documents(paths: tuple[str, ...]) -> list[tuple[str, Document]]:
    """Every object in ``paths`` with its file, of whatever kind; ``-`` is standard input."""
    found = [
        (source, document)
        for path in paths
        for source, content in _contents(path)
        for document in _flattened(yaml.load_manifests(content), source)
    ]
    if paths and not found:
        names = ", ".join("standard input" if path == "-" else path for path in paths)
        raise BadRequest(f"{names} has no objects")
    return found


def _contents(path: str) -> Iterator[tuple[str, bytes]]:
    if path == "-":
        yield "standard input", sys.stdin.buffer.read()
        return
    place = Path(path)
    files = (
        sorted(f for f in place.iterdir() if f.suffix in SUFFIXES) if place.is_dir() else [place]
    )
    if not files:
        raise BadRequest(f"{path} has no {', '.join(SUFFIXES)} files")
    for file in files:
        try:
            yield str(file), file.read_bytes()
        except FileNotFoundError:
            raise NotFound(f"{file} does not exist") from None
        except OSError as error:
            raise BadRequest(f"{file} cannot be read: {error.strerror}") from None


def _flattened(documents: tuple[object, ...], source: str) -> Iterator[Document]:
    for document in documents:
        if not isinstance(document, dict):
            raise BadRequest(f"{source} contains a document that is not an object")
        if document.get("kind") == "List":
            yield from _flattened(tuple(document.get("items") or ()), source)
        else:
            yield document


def _resolved(document: Document, source: str) -> tuple[Resource, Document]:
    api_version, kind = document.get("apiVersion"), document.get("kind")
    for field, value in (("kind", kind), ("apiVersion", api_version)):
        if not value:
            raise BadRequest(f"{source}: a document has no {field}; is it a manifest?")
    resource = RESOURCES.of_kind(str(api_version), str(kind))
    if resource is None:
        raise BadRequest(f"{source}: no kind {kind!r} in version {api_version!r} is served here")
    meta = document.get("metadata")
    if not isinstance(meta, dict) or not meta.get("name"):
        raise BadRequest(f"{source}: a {kind} has no metadata.name")
    return resource, document


def namespace_of(resource: Resource, document: Document, default: str) -> str | None:
    """The namespace of the object; None for cluster-scoped kinds."""
    if not resource.namespaced:
        return None
    return str(document["metadata"].get("namespace") or default)


def label(resource: Resource, name: str) -> str:
    """``exporterset.virtualtarget.jumpstarter.dev/x``, as kubectl names objects."""
    group = f".{resource.group}" if resource.group else ""
    return f"{resource.singular}{group}/{name}"
