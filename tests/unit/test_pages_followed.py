"""Every how-to is run by a test as it is written, or says what of it was never run."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from bullpen.api.resources import RESOURCES
from bullpen.app import config

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"

NOT_RUN = {
    "drain-a-node.md": "`kubectl drain` itself needs a kubelet, and was never run.",
    "kubernetes.md": "Not tested: a kubelet,",
    "kubernetes-kind.md": "This page was not tested with kind or k3s themselves.",
    "oidc.md": "",  # it has no commands; its settings are read below
    "systemd.md": "The tests have no machine that systemd has booted",
}
"""Pages that no test follows, with the sentence in which they say so."""


def test_every_how_to_is_followed_or_says_that_it_was_not() -> None:
    sources = "".join(
        path.read_text()
        for folder in ("real", "support")
        for path in (ROOT / "tests" / folder).glob("*.py")
    )
    pages = {path.name for path in HOW_TO.glob("*.md")}
    assert pages - NOT_RUN.keys() == {name for name in pages - NOT_RUN.keys() if name in sources}
    for name, said in NOT_RUN.items():
        text = " ".join((HOW_TO / name).read_text().split())
        assert said in text, name


def test_the_settings_and_the_client_of_the_page_about_issuers_are_accepted(tmp_path: Path) -> None:
    text = (HOW_TO / "oidc.md").read_text()
    client, *settings = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    document = yaml.safe_load(client)
    resource = RESOURCES.of_kind(document["apiVersion"], document["kind"])
    assert resource is not None
    assert resource.validate(resource.default(document)) == ()
    path = tmp_path / "settings.yaml"
    for each in settings:
        path.write_text(each)
        (issuer,) = config.load(path).oidc
        assert issuer.issuer == "https://login.example.com"
    assert len(settings) == 2
