"""APIService: tells a cluster which server answers an API group. The embedded home has none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from bullpen.api import schema
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import ObjectMeta
from bullpen.api.resource import Resource

GROUP = "apiregistration.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class APIServiceSpec(Struct):
    """The part of it that we write; the chart installs the rest."""

    ca_bundle: str = field(
        default="", metadata=about("The CA of the server's certificate, PEM in base64.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class APIService(Kind):
    """The server of one version of an API group."""

    api_version: ClassVar[str] = f"{GROUP}/v1"
    kind: ClassVar[str] = "APIService"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: APIServiceSpec = field(default=APIServiceSpec(), metadata=about("Where the server is."))


RESOURCE = Resource(
    group=GROUP,
    version="v1",
    kind=APIService.kind,
    plural="apiservices",
    singular="apiservice",
    namespaced=False,
    custom=False,
    partial=True,
    schema=schema.of(APIService),
    value=APIService,
)
