"""Access of a Pod to its own cluster, by the mounted service account."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from bullpen.cluster.access import Access, TokenFile
from bullpen.errors import Refused

MOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def is_inside(environment: Mapping[str, str]) -> bool:
    """Whether this process runs in a Pod."""
    return bool(environment.get(HOST) and environment.get(PORT))


def load(environment: Mapping[str, str], mount: Path = MOUNT) -> Access:
    """The service account of this Pod; raises ``Refused`` if it has none."""
    host = environment[HOST]
    try:
        tls = ssl.create_default_context(cafile=str(mount / "ca.crt"))
        namespace = (mount / "namespace").read_text().strip()
    except (OSError, ssl.SSLError) as error:
        raise Refused(
            f"this Pod has no service account in {mount} ({error});"
            " set automountServiceAccountToken, or give --kubeconfig"
        ) from None
    return Access(
        server=f"https://[{host}]:{environment[PORT]}"
        if ":" in host
        else f"https://{host}:{environment[PORT]}",
        tls=tls,
        credentials=TokenFile(mount / "token"),
        namespace=namespace,
    )
