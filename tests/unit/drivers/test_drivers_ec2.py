"""Calls of EC2 by an exporter: signatures, sessions, and the output of a console."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from bullpen.drivers.ec2 import added
from bullpen.drivers.ec2_api import CONTENT_TYPE, Grant, signed
from bullpen.provisioners.ec2.sessions import endpoint, session_policy

GRANT = Grant(
    endpoint="https://ec2.eu-central-1.amazonaws.com/",
    region="eu-central-1",
    address="10.0.0.1",
    access_key="AKIDEXAMPLE",
    secret_key="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    session_token="a+token/with=signs",
)


def test_a_request_is_signed_as_botocore_signs_it() -> None:
    body, now = b"Action=StopInstances&InstanceId.1=i-1", datetime(2026, 1, 31, 12, tzinfo=UTC)
    ours = signed(GRANT, body, now=now)
    theirs = AWSRequest(
        method="POST", url=GRANT.endpoint, data=body, headers={"Content-Type": CONTENT_TYPE}
    )
    theirs.context["timestamp"] = "20260131T120000Z"
    theirs.headers["X-Amz-Date"] = "20260131T120000Z"
    theirs.headers["X-Amz-Security-Token"] = GRANT.session_token
    credentials = Credentials(GRANT.access_key, GRANT.secret_key, GRANT.session_token)
    signer = SigV4Auth(credentials, "ec2", GRANT.region)
    text = signer.string_to_sign(theirs, signer.canonical_request(theirs))
    assert ours["Authorization"].endswith(f"Signature={signer.signature(text, theirs)}")


def test_a_session_is_for_one_instance() -> None:
    (statement,) = session_policy("cn-north-1", "i-1")["Statement"]
    assert statement["Resource"] == "arn:aws-cn:ec2:cn-north-1:*:instance/i-1"
    assert not any("Describe" in action or "*" in action for action in statement["Action"])
    assert endpoint("cn-north-1") == "https://ec2.cn-north-1.amazonaws.com.cn/"
    assert endpoint("eu-central-1") == GRANT.endpoint


WINDOW = bytes(range(100))


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        (b"", b"a", b"a"),
        (b"a", b"a", b""),
        (b"a", b"ab", b"b"),
        (b"dropped" + WINDOW, WINDOW + b"new", b"new"),
        (b"abcd", b"xyz", b"xyz"),
        (b"abc", b"", b""),
    ],
    ids=["first", "same", "more", "beginning dropped", "started again", "none yet"],
)
def test_only_new_output_is_shown(before: bytes, after: bytes, new: bytes) -> None:
    assert added(before, after) == new
