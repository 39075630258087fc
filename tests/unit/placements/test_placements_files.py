"""What instances leave on disk: logs that stay small, directories that go."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.profiles import Profile
from bullpen.kit.clock import EPOCH
from bullpen.placements.base import InstanceSpec, Needs, Workload
from bullpen.placements.local import layout
from bullpen.placements.local.children import RotatedLog
from bullpen.placements.local.layout import Layout, State, directory_name

STATE = State(
    key=("lab", "a"),
    owner_uid="uid",
    provisioner="p",
    token="t",
    memory_bytes=1,
    cpus=0.5,
    single_use=True,
    retain=False,
)


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=40))
def test_a_log_keeps_the_newest_and_never_exceeds_twice_its_limit(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    log = RotatedLog(path, bytes_max=50)
    for chunk in chunks:
        log.write(chunk)
        sizes = [file.stat().st_size for file in path.parent.iterdir()]
        assert max(sizes) <= 50
        assert len(sizes) <= 2
    log.close()

    older = path.with_name("log.1")
    kept = (older.read_bytes() if older.exists() else b"") + path.read_bytes()
    assert b"".join(chunks).endswith(kept)
    if sum(map(len, chunks)) <= 50:
        assert kept == b"".join(chunks)


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    for text in (b"one ", b"two"):
        log = RotatedLog(tmp_path / "log", bytes_max=50)
        log.write(text)
        log.close()

    assert (tmp_path / "log").read_bytes() == b"one two"


def test_a_log_is_private(tmp_path: Path) -> None:
    RotatedLog(tmp_path / "log").close()

    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


dns_names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?", fullmatch=True)
subdomains = st.lists(dns_names, min_size=1, max_size=4).map(".".join)


@given(st.lists(st.tuples(dns_names, subdomains), unique=True, max_size=10))
def test_every_key_has_a_directory_of_its_own_that_a_file_system_takes(
    keys: list[tuple[str, str]],
) -> None:
    names = [directory_name(key) for key in keys]

    assert len(set(names)) == len(names)
    assert all(len(name.encode()) <= 255 and not name.startswith(".") for name in names)


def test_long_names_that_begin_alike_are_told_apart() -> None:
    stem = "a" * 240

    assert directory_name(("lab", f"{stem}1")) != directory_name(("lab", f"{stem}2"))


def test_a_prepared_directory_is_private_and_says_whose_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "instances" / "lab.a"
    directory.mkdir(parents=True)
    (directory / "left").write_text("by an earlier one")
    layout.prepare(directory, STATE, {"password": b"secret"})

    assert layout.read_state(directory) == STATE
    assert (directory / "credentials" / "password").read_bytes() == b"secret"
    assert not (directory / "left").exists()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (directory, *directory.rglob("*")))


def test_the_state_has_what_accounting_needs_and_no_secret() -> None:
    workload = Workload(
        spec=InstanceSpec(
            key=("lab", "a"),
            owner_uid="uid",
            profile=Profile(provisioner="p", retain=True),
            connection=Connection(endpoint="", token="secret", ca_pem=""),
            credentials={"password": b"secret"},
        ),
        needs=Needs(memory_bytes=7, cpus=2.0),
        export=lambda site: {},
    )
    state = layout.state_of(workload, token="t")

    assert (state.memory_bytes, state.cpus, state.retain, state.single_use) == (7, 2.0, True, True)
    assert b"secret" not in msgspec.json.encode(state)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="never written"),
        pytest.param(b"", id="empty"),
        pytest.param(b'{"key": ["lab"', id="cut off"),
        pytest.param(b'{"key": "lab"}', id="of another shape"),
    ],
)
def test_a_state_that_cannot_be_read_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / layout.STATE).write_bytes(content)

    assert layout.read_state(tmp_path) is None


def test_after_an_exit_the_log_stays_and_disks_and_secrets_go(tmp_path: Path) -> None:
    layout.prepare(tmp_path / "a", STATE, {"password": b"secret"})
    for name in ("log", "log.1", "process.json", "tmp/disk"):
        (tmp_path / "a" / name).write_text("x")
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    layout.keep_evidence(tmp_path / "a")
    layout.keep_evidence(tmp_path / "absent")

    left = {path.name for path in (tmp_path / "a").iterdir()}
    assert left == {"log", "log.1", "process.json", "instance.json"}


def test_what_is_retained_has_a_name_of_its_own_and_no_secrets(tmp_path: Path) -> None:
    places = Layout(tmp_path)
    kept = []
    for second in range(2):
        layout.prepare(places.instance(STATE.key), STATE, {"password": b"secret"})
        kept.append(places.retained_as(STATE.key, EPOCH + timedelta(seconds=second)))
        layout.retain(places.instance(STATE.key), kept[-1])

    assert [path.name for path in kept] == [
        "lab.a-20260101T000000.000000Z",
        "lab.a-20260101T000001.000000Z",
    ]
    assert not list(tmp_path.rglob("password"))
    assert not places.instance(STATE.key).exists()


def test_the_zygotes_own_files_are_no_instance(tmp_path: Path) -> None:
    places = Layout(tmp_path)
    assert list(places.found()) == []
    places.instance(("zygote", "json")).mkdir(parents=True)
    places.zygote.write_text("{}")

    assert [path.name for path in places.found()] == ["zygote.json"]
