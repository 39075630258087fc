"""The API server behind the APIService: what it needs of the cluster, and its port.

It runs in the controller that leads. The certificate is from our own authority, which this
module writes into the APIService, so that the cluster's API server can verify it.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from bullpen.api.apiservice import APIService, APIServiceSpec
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.aggregated import AggregatedService
from bullpen.apiserver.asgi import CLIENT_CERTIFICATE, Asgi
from bullpen.apiserver.routes import SUBRESOURCES
from bullpen.app.cluster_process import Joined, taken_port
from bullpen.app.httpserver import serving
from bullpen.cluster import front_proxy, reviews
from bullpen.datadir import certificates
from bullpen.datadir.certificates import Certificates, Pair, hosts_of
from bullpen.datadir.keys import SharedKeys
from bullpen.errors import Forbidden, NotFound
from bullpen.runtime.connections import Bounds, PortConnections

log = logging.getLogger("bullpen.app")

_POOLS = RESOURCES.of(VirtualTargetPool)
NAME = f"{_POOLS.version}.{SUBRESOURCES}{_POOLS.group}"
"""The APIService; its name is its version and group."""

SERVICE = "bullpen-controller"
"""The Service that the APIService names, whose host name the certificate has."""


@contextlib.asynccontextmanager
async def serving_removals(
    here: Joined, *, listen: str, port: int, bounds: Bounds, now: datetime
) -> AsyncIterator[None]:
    """Answer removals by name while the context is open. Raises ``Refused``."""
    proxy = await front_proxy.published(here.objects)
    authority = await SharedKeys(here.objects, here.namespace).authority(now=now)
    hosts = (*hosts_of(listen), f"{SERVICE}.{here.namespace}.svc")
    own = certificates.issue(authority, hosts, now=now)
    service = AggregatedService(
        here.objects,
        proxy=proxy,
        user_of_token=partial(reviews.user_of_token, here.objects),
        allows=partial(reviews.allows, here.objects),
    )
    with (
        contextlib.closing(taken_port(listen, port)) as listener,
        certificates.as_files(own) as (chain, key),
        _file(proxy.ca_pem) as client_ca,
    ):
        files = Certificates(ca=client_ca, server_chain=Path(chain), server_key=Path(key))
        async with serving(
            Asgi(service),
            listener,
            files,
            client_ca,
            certificate_extension=CLIENT_CERTIFICATE,
            connections=PortConnections("aggregated", bounds),
        ):
            await _announce(here.objects, authority)
            yield


async def _announce(objects: Objects, authority: Pair) -> None:
    """Tell the cluster's API server the authority of our certificate."""
    bundle = base64.b64encode(authority.certificate).decode()
    wanted = APIService(metadata=ObjectMeta(name=NAME), spec=APIServiceSpec(ca_bundle=bundle))
    try:
        found = await objects.get(APIService, "", NAME)
        if found.spec.ca_bundle != bundle:
            await objects.apply(wanted)
    except (NotFound, Forbidden) as error:
        log.warning(
            "members cannot be removed by name; install the APIService and the rights of the chart",
            extra={"key": NAME, "error": error.message},
        )


@contextlib.contextmanager
def _file(text: str) -> Iterator[Path]:
    """A file with this text, for libraries that read only files."""
    with tempfile.TemporaryDirectory(prefix="bullpen-") as directory:
        path = Path(directory) / "front-proxy-ca.crt"
        path.write_text(text)
        yield path
