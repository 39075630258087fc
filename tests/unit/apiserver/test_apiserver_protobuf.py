"""Kubernetes protobuf bodies: what they say, and that no bytes can hurt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.apiserver import protobuf
from bullpen.errors import Rejected, UnsupportedMediaType


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def text(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def body(api_version: str, kind: str, raw: bytes) -> bytes:
    return protobuf.MAGIC + text(1, text(1, api_version) + text(2, kind)) + text(2, raw)


def test_a_secret_is_read_with_its_bytes_as_base64() -> None:
    meta = text(1, "s") + text(11, text(1, "team") + text(2, "a")) + text(3, "")
    raw = text(1, meta) + text(2, text(1, "user") + text(2, b"\x00\xff")) + text(3, "Opaque")
    assert protobuf.decode(body("v1", "Secret", raw)) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "labels": {"team": "a"}},
        "data": {"user": "AP8="},
        "type": "Opaque",
    }


def test_owners_finalizers_and_times_are_read() -> None:
    owner = text(1, "Exporter") + text(3, "e") + text(4, "u") + text(5, "v1") + number(6, 1)
    meta = text(1, "x") + text(13, owner) + text(14, "a/b") + text(8, number(1, 86_400))
    found = protobuf.decode(body("v1", "ConfigMap", text(1, meta)))["metadata"]
    assert found["ownerReferences"] == [
        {"kind": "Exporter", "name": "e", "uid": "u", "apiVersion": "v1", "controller": True}
    ]
    assert found["finalizers"] == ["a/b"]
    assert found["creationTimestamp"] == "1970-01-02T00:00:00Z"


def test_a_kind_without_a_table_is_refused_with_what_to_send_instead() -> None:
    with pytest.raises(UnsupportedMediaType, match="application/json"):
        protobuf.decode(body("apps/v1", "Deployment", b""))


@given(st.sampled_from(sorted(protobuf.KINDS)), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(kind: tuple[str, str], raw: bytes) -> None:
    try:
        found = protobuf.decode(body(*kind, raw))
    except Rejected:
        return
    assert found["kind"] == kind[1]


@given(st.binary(max_size=100))
def test_any_envelope_is_read_or_refused(data: bytes) -> None:
    with pytest.raises(Rejected):
        protobuf.decode(protobuf.MAGIC + data)
