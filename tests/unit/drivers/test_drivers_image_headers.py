"""What is seen in the header of an image, without opening anything."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.drivers.image_headers import ImageHeader, ImageRefused, read_header


def made(path: Path, *options: str, size: str = "5M") -> bytes:
    subprocess.run(["qemu-img", "create", "-q", *options, path, size], check=True)
    return path.read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("compat=0.10",), id="the old version"),
        pytest.param(("compat=1.1",), id="the usual version"),
        pytest.param(("compression_type=zstd",), id="zstd"),
        pytest.param(("extended_l2=on",), id="subclusters"),
        pytest.param(("lazy_refcounts=on",), id="lazy counts"),
    ],
)
def test_an_image_that_is_complete_in_itself_is_described(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    image = made(tmp_path / "x", "-f", "qcow2", "-o", ",".join(options))
    found = read_header(image, file_bytes=len(image))
    assert found == ImageHeader(format="qcow2", virtual_bytes=5 << 20)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(("-b", "/etc/hostname", "-F", "raw"), "a backing file", id="a path"),
        pytest.param(
            ("-u", "-b", 'json:{"driver":"nbd","host":"127.0.0.1"}', "-F", "raw"),
            "a backing file",
            id="a protocol of the network",
        ),
        pytest.param(
            ("-u", "-b", "x", "-F", "raw", "-o", "compat=0.10"), "a backing file", id="old"
        ),
        pytest.param(("-o", "data_file={place}/d"), "an external data file", id="a data file"),
        pytest.param(
            ("-o", "data_file={place}/d,data_file_raw=on"), "external data file", id="a raw one"
        ),
    ],
)
def test_an_image_that_refers_to_another_file_is_refused(
    tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    chosen = [
        option.format(place=tmp_path) if "{place}" in option else option for option in options
    ]
    image = made(tmp_path / "x", "-f", "qcow2", *chosen)
    with pytest.raises(ImageRefused, match=expected):
        read_header(image, file_bytes=len(image))


def test_a_data_file_that_is_named_without_its_feature_is_refused_too(tmp_path: Path) -> None:
    image = bytearray(made(tmp_path / "x", "-f", "qcow2", "-o", f"data_file={tmp_path}/d"))
    image[72:80] = bytes(8)
    with pytest.raises(ImageRefused, match="external data file"):
        read_header(bytes(image), file_bytes=len(image))


@pytest.mark.parametrize("name", ["vmdk", "vdi", "vhdx", "vpc", "qed", "qcow", "parallels"])
def test_a_format_that_cannot_be_used_is_named(tmp_path: Path, name: str) -> None:
    image = made(tmp_path / "x", "-f", name)
    with pytest.raises(ImageRefused, match=f"format {name} .*qemu-img convert"):
        read_header(image, file_bytes=len(image))


def test_features_from_the_future_are_refused(tmp_path: Path) -> None:
    image = bytearray(made(tmp_path / "x", "-f", "qcow2"))
    image[72:80] = struct.pack(">Q", 1 << 40)
    with pytest.raises(ImageRefused, match="0x10000000000"):
        read_header(bytes(image), file_bytes=len(image))


@pytest.mark.parametrize("length", [4, 40, 100])
def test_an_image_that_is_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    image = made(tmp_path / "x", "-f", "qcow2")[:length]
    with pytest.raises(ImageRefused, match="truncated"):
        read_header(image, file_bytes=length)


@given(st.binary(max_size=300), st.sampled_from([b"", b"QFI\xfb\0\0\0\x03", b"QFI\xfb\0\0\0\x02"]))
def test_every_beginning_is_described_or_refused(rest: bytes, start: bytes) -> None:
    try:
        found = read_header(start + rest, file_bytes=12345)
    except ImageRefused:
        return
    assert found.format in ("raw", "qcow2")
    assert found.format == "qcow2" or found.virtual_bytes == 12345
