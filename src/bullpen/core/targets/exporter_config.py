"""The ExporterConfig of an instance, and the merging of settings of a class and a set.

Pure functions over documents. An ExporterConfig contains a token and must never appear in a
log, an event or a status.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bullpen.api.exporter_template import Driver
from bullpen.api.kinds.virtualtargetclass import Image, Images
from bullpen.api.paths import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How an exporter reaches the service and authenticates."""

    endpoint: str
    token: str = field(repr=False)
    ca_pem: str
    """CA that verifies the service's certificate; empty for the system's CAs."""


def exporter_config(
    key: tuple[str, str],
    connection: Connection,
    *,
    single_use: bool,
    export: Mapping[str, object],
) -> Document:
    """The ExporterConfig of the exporter with this namespace and name, in upstream's format."""
    namespace, name = key
    ca = base64.b64encode(connection.ca_pem.encode()).decode()
    return {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "ExporterConfig",
        "metadata": {"namespace": namespace, "name": name},
        "endpoint": connection.endpoint,
        "tls": {"ca": ca, "insecure": False},
        "token": connection.token,
        # Jumpstarter 0.9 silently ignores this field; the process that runs the exporter enforces
        # it.
        "exitOnLeaseEnd": single_use,
        "export": dict(export),
    }


def duplicates(drivers: Iterable[Driver]) -> tuple[str, ...]:
    """Names that more than one driver uses."""
    counted = Counter(driver.name for driver in drivers)
    return tuple(sorted(name for name, count in counted.items() if count > 1))


def merged(base: Mapping[str, object], over: Mapping[str, object]) -> Document:
    """``base`` with ``over`` laid on top: maps merge, everything else is replaced."""
    result: Document = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result


def merged_images(base: Images | None, over: Images | None) -> Images:
    """The images of the class, each replaced if the set names one."""
    base, over = base or Images(), over or Images()
    return Images(
        exporter=_image(base.exporter, over.exporter),
        runtime=_image(base.runtime, over.runtime),
        pull_secrets=over.pull_secrets or base.pull_secrets,
    )


def _image(base: Image | None, over: Image | None) -> Image | None:
    return base if over is None else over
