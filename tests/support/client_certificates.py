"""Client certificates and their authorities, made with openssl as an administrator would."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True, timeout=30)


def certificate(directory: Path, subject: str, ca: Path, ca_key: Path) -> dict[str, str]:
    """A client certificate, as an administrator would make it."""
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "x.key", cwd=directory)
    openssl("req", "-new", "-key", "x.key", "-subj", subject, "-out", "x.csr", cwd=directory)
    (directory / "x.ext").write_text("extendedKeyUsage=clientAuth\n")
    openssl(
        "x509", "-req", "-in", "x.csr", "-CA", str(ca), "-CAkey", str(ca_key), "-days", "1",
        "-CAcreateserial", "-CAserial", "x.srl", "-extfile", "x.ext", "-out", "x.crt",
        cwd=directory,
    )  # fmt: skip
    return {
        "client-certificate": str(directory / "x.crt"),
        "client-key": str(directory / "x.key"),
    }


def authority(directory: Path) -> tuple[Path, Path]:
    """A certificate authority that is not the service's."""
    directory.mkdir()
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=Other CA", "-days", "1",
        cwd=directory,
    )  # fmt: skip
    return directory / "ca.crt", directory / "ca.key"
