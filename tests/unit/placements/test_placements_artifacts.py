"""Files are fetched once, verified, and kept by digest."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from bullpen.errors import Refused, Unreachable
from bullpen.placements.base import Artifact
from bullpen.placements.local.artifacts import ArtifactCache

CONTENT = b"firmware" * 1000
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class FileServer:
    """Serves one file and counts how often."""

    def __init__(self) -> None:
        self.served = 0
        self.status = 200
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.served += 1
        return web.Response(status=self.status, body=CONTENT)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FileServer]:
        app = web.Application()
        app.router.add_get("/firmware.bin", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            await web.SockSite(runner, listener).start()
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/firmware.bin"
            try:
                yield self
            finally:
                await runner.cleanup()


def cached(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "sha256").iterdir())


async def test_a_file_on_this_host_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(CONTENT)
    found = await ArtifactCache(tmp_path / "cache").find(Artifact(path=str(tmp_path / "here")))

    assert found == tmp_path / "here"


@pytest.mark.parametrize("name", ["absent", "."], ids=["an absent file", "a directory"])
async def test_what_is_not_a_file_here_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    with pytest.raises(Refused, match="is not a file that can be read"):
        await ArtifactCache(tmp_path).find(Artifact(path=path))
    with pytest.raises(Refused, match="is not a file that can be read"):
        await ArtifactCache(tmp_path).find(Artifact(url=f"file://{path}", digest=DIGEST))


async def test_a_directory_is_found_where_it_may_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    for path in (tmp_path, tmp_path / "file"):
        wanted = Artifact(path=str(path), may_be_directory=True)
        assert await ArtifactCache(tmp_path).find(wanted) == path
    with pytest.raises(Refused, match="is not a file that can be read"):
        await ArtifactCache(tmp_path).find(
            Artifact(path=str(tmp_path / "no"), may_be_directory=True)
        )


async def test_many_who_want_it_at_once_fetch_it_once(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    async with FileServer().serving() as server, asyncio.TaskGroup() as tasks:
        wanted = Artifact(url=server.url, digest=DIGEST)
        finding = [tasks.create_task(cache.find(wanted)) for _ in range(5)]
        await asyncio.wait(finding)

    assert {task.result().read_bytes() for task in finding} == {CONTENT}
    assert await ArtifactCache(tmp_path).find(wanted) == finding[0].result()
    assert server.served == 1
    assert cached(tmp_path) == [DIGEST.removeprefix("sha256:")]


async def test_a_file_url_is_copied_so_that_it_stays_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "with space"
    source.write_bytes(CONTENT)
    url = source.as_uri()
    found = await ArtifactCache(tmp_path / "cache").find(Artifact(url=url, digest=DIGEST))
    source.unlink()

    assert found.read_bytes() == CONTENT


async def test_what_is_not_what_was_asked_for_is_not_kept(tmp_path: Path) -> None:
    other = f"sha256:{'0' * 64}"
    async with FileServer().serving() as server:
        with pytest.raises(Refused, match=DIGEST):
            await ArtifactCache(tmp_path).find(Artifact(url=server.url, digest=other))

    assert cached(tmp_path) == []


@pytest.mark.parametrize(
    ("status", "error"),
    [
        pytest.param(404, Refused, id="what a server does not have is refused"),
        pytest.param(503, Unreachable, id="a server in trouble may recover"),
    ],
)
async def test_a_servers_answer_decides(
    tmp_path: Path, status: int, error: type[Exception]
) -> None:
    async with FileServer().serving() as server:
        server.status = status
        with pytest.raises(error, match=str(status)):
            await ArtifactCache(tmp_path).find(Artifact(url=server.url, digest=DIGEST))
        server.status = 200
        assert (
            await ArtifactCache(tmp_path).find(Artifact(url=server.url, digest=DIGEST))
        ).exists()


async def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/x"
        with pytest.raises(Unreachable, match="cannot be fetched"):
            await ArtifactCache(tmp_path).find(Artifact(url=url, digest=DIGEST))

    assert cached(tmp_path) == []
