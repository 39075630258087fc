"""What is done before the other containers of a Pod start, and what is said if it cannot be."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import pytest

from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.profiles import Profile
from bullpen.drivers import launcher
from bullpen.errors import Refused
from bullpen.placements.base import Artifact, InstanceSpec, Needs, Workload
from bullpen.placements.pod import names, preparation, rendering
from bullpen.placements.pod.preparation import prepare

CONTENT = b"a kernel"
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    (tmp_path / "kernel").write_bytes(CONTENT)
    return Artifact(url=f"file://{tmp_path}/kernel", digest=DIGEST)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


async def test_files_are_where_the_machine_is_told_they_are(
    artifact: Artifact, shared: Path
) -> None:
    workload = Workload(
        spec=InstanceSpec(
            key=("lab", "a"),
            owner_uid="uid",
            profile=Profile(provisioner="qemu.jumpstarter.dev"),
            connection=Connection(endpoint="", token="", ca_pem=""),
        ),
        needs=Needs(memory_bytes=1, cpus=1, artifacts=(artifact,), runtime="qemu"),
        export=lambda site: {},
    )
    await prepare((artifact,), shared)
    (told,) = rendering.site(workload).artifacts.values()
    assert (shared / told.relative_to(names.SHARED)).read_bytes() == CONTENT


async def test_the_launcher_and_private_directories_are_there(shared: Path) -> None:
    await prepare((), shared)
    assert (shared / names.LAUNCHER.name).read_text() == Path(launcher.__file__).read_text()
    for name in (names.TEMPORARY, names.SOCKETS):
        assert stat.S_IMODE((shared / name).stat().st_mode) == 0o700


async def test_doing_it_again_changes_nothing(artifact: Artifact, shared: Path) -> None:
    """A node that restarts runs it again in the same volume."""
    await prepare((artifact,), shared)
    await prepare((artifact,), shared)


async def test_a_file_that_is_not_what_was_meant_is_refused(
    artifact: Artifact, shared: Path
) -> None:
    wrong = Artifact(url=artifact.url, digest=f"sha256:{'0' * 64}")
    with pytest.raises(Refused, match="has digest"):
        await prepare((wrong,), shared)


def test_its_last_words_say_what_is_wrong(
    artifact: Artifact, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "LAST_WORDS", tmp_path / "words")
    monkeypatch.setattr(names, "SHARED", shared)
    told = json.dumps({"url": artifact.url, "digest": f"sha256:{'0' * 64}"})
    assert preparation.main([told]) == 1
    said = json.loads((tmp_path / "words").read_text())
    assert said["reason"] == "StartFailed"
    assert "correct the digest" in said["detail"]
