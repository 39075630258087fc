"""Corellium's API over HTTP, for the provisioner and for the driver of one instance."""

from __future__ import annotations

from bullpen.drivers.json_api import JsonApi, trust

CLOUD = "https://app.corellium.com"
"""The endpoint for single users; teams and appliances have their own."""


class CorelliumApi(JsonApi):
    """The API with one token."""

    def __init__(self, endpoint: str, token: str, *, ca_pem: str = "") -> None:
        """``ca_pem``: certificates to trust besides those of the system, for appliances."""
        super().__init__(
            f"{endpoint.rstrip('/') or CLOUD}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            tls=trust(ca_pem),
        )
