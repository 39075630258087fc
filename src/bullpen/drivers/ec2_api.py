"""The few calls of EC2 that an exporter makes for its own instance, with a signature (SigV4).

Exporters do not load botocore, which needs more memory than the rest of them together.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

import aiohttp

VERSION = "2016-11-15"
SERVICE = "ec2"
CONNECT_SECONDS_MAX = 10
CALL_SECONDS_MAX = 60
ANSWER_BYTES_MAX = 1 << 20
CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"


class ApiError(Exception):
    """A call that failed, with the code of EC2, or without one if there was no answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What lets an exporter switch one instance, and where that is. A secret."""

    endpoint: str
    region: str
    address: str
    """Of the instance; empty while it has none."""

    access_key: str
    secret_key: str
    session_token: str


async def call(grant: Grant, action: str, **fields: str) -> ElementTree.Element:
    """The answer of EC2, without namespaces."""
    body = urlencode({"Action": action, "Version": VERSION, **fields}, quote_via=quote).encode()
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - of the signature
    headers = signed(grant, body, now=now)
    limit = aiohttp.ClientTimeout(total=CALL_SECONDS_MAX, sock_connect=CONNECT_SECONDS_MAX)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.post(grant.endpoint, data=body, headers=headers) as answer,
        ):
            text = await answer.content.read(ANSWER_BYTES_MAX)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ApiError("", f"EC2 does not answer: {str(error) or type(error).__name__}") from None
    return _read(text)


def _read(text: bytes) -> ElementTree.Element:
    try:
        found = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        raise ApiError("", "the answer of EC2 cannot be read") from None
    for element in found.iter():
        element.tag = element.tag.rpartition("}")[2]
    if found.tag == "Response":
        raise ApiError(found.findtext(".//Code", ""), found.findtext(".//Message", ""))
    return found


def signed(grant: Grant, body: bytes, *, now: datetime.datetime) -> Mapping[str, str]:
    """The headers of a request to the root of the endpoint."""
    time = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{time[:8]}/{grant.region}/{SERVICE}/aws4_request"
    headers = {
        "content-type": CONTENT_TYPE,
        "host": urlsplit(grant.endpoint).netloc,
        "x-amz-date": time,
        "x-amz-security-token": grant.session_token,
    }
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{grant.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={grant.access_key}/{scope}"
    authorization = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "Authorization": authorization}
