"""Files that instances read: found on this host, or fetched once and cached by digest.

A fetched file is verified before it gets its final name, so every named file in the cache
is complete and correct.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bullpen.errors import Refused, Unreachable
from bullpen.placements.base import Artifact

ARTIFACT_BYTES_MAX = 16 << 30
CHUNK_BYTES = 1 << 20
EVERYONE_READS = 0o444
SILENCE_SECONDS_MAX = 60.0
"""A download without data for this long is aborted."""


class ArtifactCache:
    def __init__(self, directory: Path) -> None:
        self._directory = directory / "sha256"
        self._fetching: dict[str, asyncio.Lock] = {}

    async def find(self, artifact: Artifact) -> Path:
        """The path of the artifact, after fetching it if necessary.

        Raises ``Refused`` if it does not exist or does not match its digest, and ``Unreachable`` if
        its server does not answer.
        """
        if artifact.path:
            return _on_this_host(Path(artifact.path), may_be_directory=artifact.may_be_directory)
        path = self._directory / artifact.digest.removeprefix("sha256:")
        async with self._fetching.setdefault(artifact.digest, asyncio.Lock()):
            if not path.exists():
                await self._fetch(artifact, path)
            elif not path.stat().st_mode & stat.S_IROTH:
                path.chmod(EVERYONE_READS)
        return path

    async def _fetch(self, artifact: Artifact, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".fetching-")
        try:
            with os.fdopen(handle, "wb") as file:
                digest = hashlib.sha256()
                async for chunk in _content(artifact.url):
                    digest.update(chunk)
                    file.write(chunk)
            _check(artifact, digest.hexdigest())
            # Readable for instances, which run as other users; the cache itself is not accessible
            # to others.
            os.chmod(temporary, EVERYONE_READS)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def _on_this_host(path: Path, *, may_be_directory: bool = False) -> Path:
    if may_be_directory and path.is_dir() and os.access(path, os.R_OK | os.X_OK):
        return path
    if not path.is_file() or not os.access(path, os.R_OK):
        raise Refused(f"{path} is not a file that can be read on this host")
    return path


def _check(artifact: Artifact, found: str) -> None:
    if artifact.digest != f"sha256:{found}":
        raise Refused(
            f"{artifact.url} has digest sha256:{found}, not {artifact.digest};"
            " correct the digest if the file was meant to change"
        )


async def _content(url: str) -> AsyncIterator[bytes]:
    total = 0
    source = _from_file(url) if urlsplit(url).scheme == "file" else _from_server(url)
    async for chunk in source:
        total += len(chunk)
        if total > ARTIFACT_BYTES_MAX:
            raise Refused(f"{url} is larger than {ARTIFACT_BYTES_MAX >> 30} GiB")
        yield chunk


async def _from_file(url: str) -> AsyncIterator[bytes]:
    path = _on_this_host(Path(unquote(urlsplit(url).path)))
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk


async def _from_server(url: str) -> AsyncIterator[bytes]:
    # Not imported at the top: it takes a tenth of the service's start, and few services need it.
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENCE_SECONDS_MAX)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.get(url) as response,
        ):
            if response.status != 200:
                raise _refusal(url, response.status)
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                yield chunk
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unreachable(
            f"{url} cannot be fetched: {str(error) or type(error).__name__}"
        ) from None


def _refusal(url: str, status: int) -> Refused | Unreachable:
    if status >= 500:
        return Unreachable(f"{url} answered {status}")
    return Refused(f"{url} answered {status}")
