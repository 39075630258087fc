"""``claims.proto``: its generated code is current, and it has the fields of a DeviceClaim."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bullpen
from bullpen.api import codec
from bullpen.api.claim_allocation import ClaimAllocation
from bullpen.api.fields import Struct, attributes
from bullpen.api.kinds.deviceclaim import DeviceClaimSpec
from bullpen.errors import BadRequest
from bullpen.protocol import claims_pb2
from bullpen.protocol.claim_documents import NOT_IN_MESSAGES, spec_document, spec_message

SOURCE = Path(bullpen.__file__).parents[1]


def test_the_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SOURCE}", *outputs]
    subprocess.run([*command, "bullpen/protocol/claims.proto"], check=True, cwd=SOURCE)
    generated = sorted((tmp_path / "bullpen/protocol").iterdir())
    assert len(generated) == 3
    for path in generated:
        kept = SOURCE / "bullpen/protocol" / path.name
        assert kept.read_text() == path.read_text(), "run: make proto"


def fields_of(cls: type[Struct]) -> Iterator[tuple[str, type[Struct] | None]]:
    """The fields of a value as JSON names them, with the type of nested values."""
    hints = typing.get_type_hints(cls, include_extras=False)
    for attribute in attributes(cls):
        yield attribute.wire, nested(hints[attribute.name])


def nested(hint: Any) -> type[Struct] | None:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and issubclass(hint, Struct):
        return hint
    origin = typing.get_origin(hint)
    if origin is UnionType or origin is typing.Union or origin is tuple:
        found = (nested(part) for part in typing.get_args(hint))
        return next((each for each in found if each is not None), None)
    return None


def check_same(cls: type[Struct], descriptor: Any, path: str = "spec") -> int:
    """Compare the fields of a value and of a message, however deep; how many there are."""
    here = {field.json_name: field for field in descriptor.fields}
    wanted = dict(fields_of(cls))
    if cls is DeviceClaimSpec:
        wanted = {name: part for name, part in wanted.items() if name not in NOT_IN_MESSAGES}
    assert set(here) == set(wanted), path
    return len(wanted) + sum(
        check_same(part, here[name].message_type, f"{path}.{name}")
        for name, part in wanted.items()
        if part is not None
    )


def test_a_spec_has_the_same_fields_in_both_forms() -> None:
    assert check_same(DeviceClaimSpec, claims_pb2.ClaimSpec.DESCRIPTOR) > 40


def test_an_allocation_has_the_same_fields_in_both_forms() -> None:
    assert check_same(ClaimAllocation, claims_pb2.Allocation.DESCRIPTOR, "status.allocation") == 9


WHOLE: Mapping[str, Any] = {
    "requests": [
        {
            "name": "dut",
            "firstAvailable": [
                {"name": "real", "deviceClassName": "board", "count": 2},
                {"name": "emulated", "deviceClassName": "qemu", "after": "1h30m"},
            ],
        },
        {
            "name": "memory",
            "exactly": {
                "deviceClassName": "host",
                "allocationMode": "ExactCount",
                "selectors": [
                    {"cel": {"expression": "device.slots > 3"}},
                    {"labels": {"matchLabels": {"a": "b"}}},
                ],
                "capacity": {"memory": "2Gi", "slots": 3},
                "totals": {"memory": "8Gi"},
                "maxCount": 4,
                "tolerations": [{"key": "broken", "operator": "Exists"}],
            },
        },
    ],
    "constraints": [{"matchAttribute": "site", "requests": ["dut"], "prefer": True}],
    "duration": "2h",
    "beginTime": "2030-01-02T03:04:05Z",
    "priority": -3,
    "preemptible": True,
    "memberLoss": "Replace",
}


def test_a_spec_survives_being_sent() -> None:
    sent = spec_document(spec_message({**WHOLE, "clientRef": {"name": "alice"}}))
    client = {"clientRef": {"name": "alice"}}
    capacity = sent["requests"][1]["exactly"]["capacity"]
    assert capacity == {"memory": "2Gi", "slots": "3"}
    capacity["slots"] = 3
    assert codec.decode(DeviceClaimSpec, {**sent, **client}) == codec.decode(
        DeviceClaimSpec, {**WHOLE, **client}
    )


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"duration": "soon"}, "soon"),
        ({"duration": "1h", "requests": "dut"}, "requests"),
        ({"duration": "1h", "nonsense": 1}, "nonsense"),
        ({"duration": "1h", "priority": "high"}, "priority"),
        ({"duration": "9999999h"}, "cannot be read"),
    ],
)
def test_what_is_no_spec_is_refused(spec: Mapping[str, Any], text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        spec_message(spec)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_spec_or_are_refused(data: bytes) -> None:
    try:
        message = claims_pb2.ClaimSpec.FromString(data)
    except Exception as error:
        assert type(error).__name__ == "DecodeError"  # noqa: PT017 - protobuf's own
        return
    try:
        spec_document(message)
    except BadRequest as error:
        assert "out of range" in error.message  # noqa: PT017
