"""Config files for users: of kubectl, and of ``jmp`` as ``jmp admin create --save`` writes them."""

from __future__ import annotations

import base64

from bullpen.api import yaml

DRIVERS_ALLOWED = ("jumpstarter_driver_*", "bullpen_*")
"""Client classes that ``jmp`` may load for drivers, unless the user's config differs."""


def client_config(*, namespace: str, name: str, endpoint: str, ca_pem: bytes, token: str) -> str:
    config = _config("ClientConfig", namespace, name, endpoint, ca_pem, token)
    config["drivers"] = {"allow": list(DRIVERS_ALLOWED), "unsafe": False}
    return yaml.dump(config)


def exporter_config(*, namespace: str, name: str, endpoint: str, ca_pem: bytes, token: str) -> str:
    config = _config("ExporterConfig", namespace, name, endpoint, ca_pem, token)
    config["export"] = {}
    return yaml.dump(config)


def _config(
    kind: str, namespace: str, name: str, endpoint: str, ca_pem: bytes, token: str
) -> dict[str, object]:
    return {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name},
        "endpoint": endpoint,
        "tls": {"ca": base64.b64encode(ca_pem).decode(), "insecure": False},
        "token": token,
    }


def kubeconfig(*, server: str, ca_pem: bytes, user: str, token: str) -> str:
    """A self-contained kubeconfig: the CA and the token are embedded."""
    cluster = {
        "server": server,
        "certificate-authority-data": base64.b64encode(ca_pem).decode(),
    }
    return yaml.dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bullpen",
            "clusters": [{"name": "bullpen", "cluster": cluster}],
            "contexts": [
                {
                    "name": "bullpen",
                    "context": {"cluster": "bullpen", "user": user, "namespace": "default"},
                }
            ],
            "users": [{"name": user, "user": {"token": token}}],
        }
    )
