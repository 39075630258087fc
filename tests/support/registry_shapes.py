"""A schema with one field of every shape, and documents that fit it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer"},
                "mode": {"type": "string"},
                "options": {"type": "object", "additionalProperties": {"type": "string"}},
                "ports": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "port": {"type": "integer"},
                            "tags": {
                                "type": "array",
                                "items": {"type": "string"},
                                "x-kubernetes-list-type": "set",
                            },
                        },
                    },
                },
                "tags": {
                    "type": "array",
                    "items": {"type": "string"},
                    "x-kubernetes-list-type": "set",
                },
                "args": {"type": "array", "items": {"type": "string"}},
                "point": {
                    "type": "object",
                    "x-kubernetes-map-type": "atomic",
                    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
    },
}

small = st.integers(min_value=0, max_value=2)
words = st.sampled_from(["a", "b", "c"])
unique_words = st.lists(words, unique=True, max_size=3)

ports = st.fixed_dictionaries({"name": words}, optional={"port": small, "tags": unique_words})
free = st.recursive(small, lambda inner: st.dictionaries(words, inner, max_size=2), max_leaves=4)

specs = st.fixed_dictionaries(
    {},
    optional={
        "size": small,
        "mode": words,
        "options": st.dictionaries(words, words, max_size=3),
        "ports": st.lists(ports, unique_by=lambda port: port["name"], max_size=3),
        "tags": unique_words,
        "args": st.lists(words, max_size=2),
        "point": st.fixed_dictionaries({}, optional={"x": small, "y": small}),
        "free": st.dictionaries(words, free, max_size=2),
    },
)

metadata = st.fixed_dictionaries(
    {"name": st.just("a")}, optional={"labels": st.dictionaries(words, words, max_size=2)}
)

documents = st.fixed_dictionaries(
    {
        "apiVersion": st.just("v1"),
        "kind": st.just("Thing"),
        "metadata": metadata,
        "spec": specs,
    }
)
