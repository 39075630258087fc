"""Init container of a Pod: prepares the files that the other containers share.

``python -m bullpen.placements.pod.preparation ARTIFACT…``, each a JSON object with a url and
a digest, and perhaps a file that makes it unnecessary. Directories and programs come first, then
each file is fetched and verified.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bullpen.core.targets.instances import ExitReason
from bullpen.drivers import launcher
from bullpen.errors import LabError
from bullpen.placements.base import Artifact
from bullpen.placements.local.artifacts import ArtifactCache
from bullpen.placements.pod import disk_content, names, phases

LAST_WORDS = Path("/dev/termination-log")


async def prepare(artifacts: tuple[Artifact, ...], shared: Path) -> None:
    """Fill ``shared``. Raises the errors of ``ArtifactCache.find``."""
    for name in (names.TEMPORARY, names.SOCKETS):
        (shared / name).mkdir(mode=0o700, exist_ok=True)
    for program in (launcher, disk_content):
        shutil.copyfile(str(program.__file__), shared / Path(str(program.__file__)).name)
    cache = ArtifactCache(shared / names.CACHE.name)
    for artifact in artifacts:
        await cache.find(artifact)


def _artifacts(arguments: list[str]) -> Iterator[Artifact]:
    for item in map(msgspec.json.decode, arguments):
        made = item.pop("unless", "")
        if not made or not Path(made).exists():
            yield Artifact(**item)


def main(arguments: list[str]) -> int:
    artifacts = tuple(_artifacts(arguments))
    try:
        asyncio.run(prepare(artifacts, Path(names.SHARED)))
    except LabError as error:
        ending = phases.Ending(reason=ExitReason.START_FAILED, detail=error.message)
        LAST_WORDS.write_bytes(msgspec.json.encode(ending))
        print(error.message, file=sys.stderr)  # noqa: T201 - the container's log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
