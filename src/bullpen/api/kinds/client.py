"""Client: a user or a pipeline that may lease targets."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from bullpen.api.columns import Column
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import Condition, LocalObjectReference, ObjectMeta
from bullpen.api.resource import resource

GROUP_VERSION = "jumpstarter.dev/v1alpha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec(Struct):
    """Who the client is."""

    username: str = field(
        default="", metadata=about("External identity of the client, such as dex:alice.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus(Struct):
    """What the controller gave the client."""

    conditions: tuple[Condition, ...] = field(
        default=(), metadata=about("Latest observations: TokenExpiring.", list_keys=("type",))
    )
    credential: LocalObjectReference | None = field(
        default=None, metadata=about("Secret with the client's token.")
    )
    endpoint: str = field(
        default="", metadata=about("Endpoint of the controller that serves the client.")
    )
    token_expires_at: datetime | None = field(
        default=None, metadata=about("When the token in the credential stops being valid.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Client(Kind):
    """A user or a pipeline that may lease targets."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "Client"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: ClientSpec = field(
        default=ClientSpec(), metadata=about("Who the client is.", defaulted=True)
    )
    status: ClientStatus = field(
        default=ClientStatus(), metadata=about("What the controller gave the client.")
    )


RESOURCES = (
    resource(
        Client,
        "clients",
        status=True,
        columns=(Column(name="Token Expires", path=".status.tokenExpiresAt"),),
    ),
)
