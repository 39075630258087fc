"""An external server certificate as files, for example renewed by cert-manager."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bullpen.app.issuing import Pair
from bullpen.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    certificate: Path
    key: Path
    ca: Path

    def read(self) -> tuple[bytes, Pair]:
        """The CA, and the certificate with its key; raises ``Refused``."""
        try:
            pair = Pair(certificate=self.certificate.read_bytes(), key=self.key.read_bytes())
            return self.ca.read_bytes(), pair
        except OSError as error:
            raise Refused(f"{error.filename} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def as_files(pair: Pair) -> Iterator[tuple[str, str]]:
    """The paths of a certificate and its key, for libraries that read only files."""
    with tempfile.TemporaryDirectory(prefix="bullpen-") as directory:
        chain, key = Path(directory) / "server.crt", Path(directory) / "server.key"
        chain.write_bytes(pair.certificate)
        key.touch(mode=0o600)
        key.write_bytes(pair.key)
        yield str(chain), str(key)
