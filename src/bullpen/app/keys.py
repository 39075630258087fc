"""The keys that sign the service's tokens. Kept in the data directory, mode 0600."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from bullpen.app.files import SECRET, write_atomically
from bullpen.errors import Refused

STREAM_KEY_BYTES = 32
SIGNING_KEYS_MAX = 5


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
