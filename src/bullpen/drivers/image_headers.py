"""Parses the header of a disk image. Pure.

A flashed image comes from a lessee, and ``qemu-img info`` opens the files an image refers
to while it describes it. So the header is parsed here, by code that cannot open files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEADER_BYTES_MAX = 1 << 16
"""How much of an image is examined: a whole cluster of the usual size."""

_QCOW2_MAGIC = b"QFI\xfb"
_QCOW2_HEADER = struct.Struct(">4sIQIIQI")
"""Magic, version, offset and length of the backing file's name, cluster bits, size, encryption."""

_QCOW2_FEATURES = struct.Struct(">QQQII")
"""Incompatible, compatible and automatically cleared features, refcount order, header length."""

_QCOW2_FEATURES_AT = 72
_EXTENSION = struct.Struct(">II")
_EXTENSION_END = 0
_EXTENSION_DATA_FILE = 0x44415441

_DIRTY, _CORRUPT, _DATA_FILE, _COMPRESSION, _EXTENDED_L2 = (1 << bit for bit in range(5))
_HARMLESS_FEATURES = _DIRTY | _CORRUPT | _COMPRESSION | _EXTENDED_L2

_UNSUPPORTED = (
    (0, b"QFI\xfb\0\0\0\x01", "qcow"),
    (0, b"QED\0", "qed"),
    (0, b"KDMV", "vmdk"),
    (0, b"COWD", "vmdk"),
    (0, b"# Disk DescriptorFile", "vmdk"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"conectix", "vpc"),
    (0, b"WithoutFreeSpace", "parallels"),
    (0, b"WithouFreSpacExt", "parallels"),
    (0, b"LUKS\xba\xbe", "luks"),
    (64, b"\x7f\x10\xda\xbe", "vdi"),
)
"""Formats that a machine cannot use here, by magic bytes and their offset."""


class ImageRefused(ValueError):
    """An image that must not be opened, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """A disk image that refers to no other file."""

    format: str
    """``raw`` or ``qcow2``."""

    virtual_bytes: int
    """The size of the disk for its guest."""


def read_header(beginning: bytes, *, file_bytes: int) -> ImageHeader:
    """Describe the image; raises ``ImageRefused`` if it must not be used.

    ``beginning`` is the whole image or its first ``HEADER_BYTES_MAX`` bytes. An image of an
    unknown format is a raw image: its bytes are the disk and nothing else.
    """
    for offset, magic, name in _UNSUPPORTED:
        if beginning[offset:].startswith(magic):
            raise ImageRefused(
                f"an image of format {name} cannot be flashed here; convert it first, with"
                f" qemu-img convert -O qcow2"
            )
    if not beginning.startswith(_QCOW2_MAGIC):
        return ImageHeader(format="raw", virtual_bytes=file_bytes)
    return _read_qcow2(beginning)


def backing_name(beginning: bytes) -> str:
    """The backing file that a qcow2 image names; empty if it has none."""
    if not beginning.startswith(_QCOW2_MAGIC) or len(beginning) < _QCOW2_HEADER.size:
        return ""
    _, _, offset, length, *_ = _QCOW2_HEADER.unpack_from(beginning)
    return beginning[offset : offset + length].decode(errors="surrogateescape") if offset else ""


def _read_qcow2(beginning: bytes) -> ImageHeader:
    if len(beginning) < _QCOW2_HEADER.size:
        raise ImageRefused("the image is truncated within its qcow2 header")
    _, version, backing_at, backing_length, _, size, encryption = _QCOW2_HEADER.unpack_from(
        beginning
    )
    if version not in (2, 3):
        raise ImageRefused(f"version {version} of qcow2 cannot be flashed here")
    if backing_at or backing_length:
        raise _refers("a backing file")
    if encryption:
        raise ImageRefused("an encrypted image cannot be flashed here")
    if version == 3:
        _check_features(beginning)
    return ImageHeader(format="qcow2", virtual_bytes=size)


def _check_features(beginning: bytes) -> None:
    if len(beginning) < _QCOW2_FEATURES_AT + _QCOW2_FEATURES.size:
        raise ImageRefused("the image is truncated within its qcow2 header")
    incompatible, *_, length = _QCOW2_FEATURES.unpack_from(beginning, _QCOW2_FEATURES_AT)
    if incompatible & _DATA_FILE or _names_data_file(beginning, length):
        raise _refers("an external data file")
    if unknown := incompatible & ~_HARMLESS_FEATURES:
        raise ImageRefused(
            f"the image needs qcow2 features that are not supported here: {unknown:#x}"
        )


def _names_data_file(beginning: bytes, offset: int) -> bool:
    """Whether one of the header's extensions names a data file."""
    while offset + _EXTENSION.size <= len(beginning):
        kind, length = _EXTENSION.unpack_from(beginning, offset)
        if kind == _EXTENSION_END:
            return False
        if kind == _EXTENSION_DATA_FILE:
            return True
        offset += _EXTENSION.size + (length + 7) // 8 * 8
    return False


def _refers(what: str) -> ImageRefused:
    return ImageRefused(
        f"the image refers to other files, by {what}, and cannot be flashed here;"
        " qemu-img convert makes one that is complete in itself"
    )
