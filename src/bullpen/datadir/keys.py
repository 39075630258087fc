"""The keys that sign the service's tokens: in the data directory, or in Secrets of a cluster.

Files have mode 0600. Secrets are created by the first process and never changed here:
replacing a key is an operator's decision, and takes effect when the processes are restarted.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from bullpen.api.kinds.core import Secret
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.datadir import certificates
from bullpen.datadir.certificates import Pair
from bullpen.datadir.directory import SECRET, write_atomically
from bullpen.errors import AlreadyExists, NotFound, Refused, Unavailable

STREAM_KEY_BYTES = 32
SIGNING_KEYS_MAX = 5

SIGNING_KEYS = "bullpen-signing-keys"
STREAM_KEY = "bullpen-stream-key"
AUTHORITY = "bullpen-ca"
ATTEMPTS_MAX = 20
PAUSE_SECONDS = 0.05
LABELS = {"app.kubernetes.io/name": "bullpen", "app.kubernetes.io/managed-by": "bullpen"}


def signing_keys(path: Path) -> tuple[ECKey, ...]:
    """The verification keys, newest first; created on the first start."""
    if not path.exists():
        return rotate_signing_key(path)
    try:
        return read_signing_keys(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, JoseError):
        raise Refused(f"{path} cannot be read; restore it from a backup") from None


def rotate_signing_key(path: Path) -> tuple[ECKey, ...]:
    """Sign with a new key from now on; older keys still verify their tokens."""
    older = signing_keys(path) if path.exists() else ()
    write_atomically(path, fresh_signing_keys(older), mode=SECRET)
    return signing_keys(path)


def fresh_signing_keys(older: tuple[ECKey, ...] = ()) -> bytes:
    """A new key before the ``older`` ones, in the stored form."""
    fresh = ECKey.generate_key("P-256", {"kid": secrets.token_hex(8)}, private=True)
    kept = (fresh, *older)[:SIGNING_KEYS_MAX]
    content = json.dumps({"keys": [key.as_dict(private=True) for key in kept]})
    return content.encode() + b"\n"


def read_signing_keys(content: bytes) -> tuple[ECKey, ...]:
    """Parse keys in the stored form; raises one of several errors if invalid."""
    found = tuple(ECKey.import_key(item) for item in json.loads(content)["keys"])
    if not found:
        raise ValueError("there is no key")
    return found


def stream_key(path: Path) -> bytes:
    """The key shared by the controller and its routers."""
    if not path.exists():
        write_atomically(path, secrets.token_bytes(STREAM_KEY_BYTES), mode=SECRET)
    key = path.read_bytes()
    if len(key) < STREAM_KEY_BYTES:
        raise Refused(f"{path} is too short to be a key; remove it to have a new one made")
    return key


class SharedKeys:
    """The keys in one namespace."""

    def __init__(self, objects: Objects, namespace: str) -> None:
        self._objects = objects
        self._namespace = namespace

    async def signing_keys(self) -> tuple[ECKey, ...]:
        """The keys that sign and verify identity tokens, newest first."""
        found = await self._ensure(SIGNING_KEYS, lambda: {"keys.json": fresh_signing_keys()})
        try:
            return read_signing_keys(self._part(SIGNING_KEYS, found, "keys.json"))
        except (ValueError, KeyError, TypeError, JoseError):
            raise self._damaged(SIGNING_KEYS, "keys.json") from None

    async def stream_key(self) -> bytes:
        """The key that the controller and its routers share."""
        fresh = {"stream.key": secrets.token_bytes(STREAM_KEY_BYTES)}
        found = await self._ensure(STREAM_KEY, lambda: fresh)
        key = self._part(STREAM_KEY, found, "stream.key")
        if len(key) < STREAM_KEY_BYTES:
            raise self._damaged(STREAM_KEY, "stream.key")
        return key

    async def authority(self, *, now: datetime) -> Pair:
        """The CA that signs the certificates of our servers."""

        def make() -> dict[str, bytes]:
            made = certificates.make_authority(now=now)
            return {"ca.crt": made.certificate, "ca.key": made.key}

        found = await self._ensure(AUTHORITY, make)
        return Pair(
            certificate=self._part(AUTHORITY, found, "ca.crt"),
            key=self._part(AUTHORITY, found, "ca.key"),
        )

    async def _ensure(self, name: str, make: Callable[[], dict[str, bytes]]) -> Secret:
        for _ in range(ATTEMPTS_MAX):
            with contextlib.suppress(NotFound):
                return await self._objects.get(Secret, self._namespace, name)
            data = {key: base64.b64encode(value).decode() for key, value in make().items()}
            meta = ObjectMeta(name=name, namespace=self._namespace, labels=LABELS)
            with contextlib.suppress(AlreadyExists):
                return await self._objects.create(Secret(metadata=meta, data=data))
            # Another replica was first. All replicas use its key, as soon as it can be read.
            await asyncio.sleep(PAUSE_SECONDS)
        raise Unavailable(
            f"secret {self._namespace}/{name} is repeatedly created and deleted; try again"
        )

    def _part(self, name: str, found: Secret, key: str) -> bytes:
        try:
            part = found.read(key)
        except ValueError:
            part = None
        if not part:
            raise self._damaged(name, key)
        return part

    def _damaged(self, name: str, key: str) -> Refused:
        return Refused(
            f"secret {self._namespace}/{name} holds no usable {key};"
            " restore it, or delete it to have a new one created"
        )
