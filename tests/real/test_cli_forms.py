"""The command line takes kubectl's forms; what it prints is compared with kubectl's."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest
import yaml

from support.real_service import BIN, Service, eventually, running_service

pytestmark = pytest.mark.real

BOARDS = [
    {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "Exporter",
        "metadata": {"name": name, "labels": {"board": "rpi4", "site": site}},
        "spec": {},
    }
    for name, site in (("alpha", "brno"), ("beta", "prague"))
]
LEASE = {
    "apiVersion": "jumpstarter.dev/v1alpha1",
    "kind": "Lease",
    "metadata": {"name": "booked"},
    "spec": {
        "clientRef": {"name": "alice"},
        "selector": {"matchLabels": {"board": "rpi4"}},
        "duration": "1h",
    },
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("forms")) as service:
        clients = [
            {**BOARDS[0], "kind": "Client", "metadata": {"name": name}} for name in ("alice", "bob")
        ]
        documents = yaml.safe_dump_all([*BOARDS, *clients, LEASE])
        service.kubectl("apply", "-f", "-", input=documents)
        yield service


@pytest.mark.parametrize(
    "arguments",
    [
        ("exporters", "-o", "name"),
        ("exporter/alpha", "exporter/beta", "-o", "name"),
        ("exporter/alpha", "client/alice", "-o", "name"),
        ("exporters,clients", "-o", "name"),
        ("exporters", "beta", "-o", "jsonpath={.metadata.name}"),
        ("exporters", "-o", "jsonpath={.items[*].metadata.name}"),
        ("exporters", "-o", "jsonpath={range .items[*]}{.metadata.name}={.kind}{'\\n'}{end}"),
        ("exporters", "-o", 'jsonpath={.items[?(@.metadata.labels.site=="brno")].metadata.name}'),
        ("exporter", "alpha", "-o", "jsonpath={.metadata.labels['board']} {.spec.nothing}!"),
        ("exporter", "alpha", "-o", "jsonpath={.metadata.labels}"),
        ("exporters", "-l", "site=brno", "-o", "name"),
    ],
)
def test_what_is_printed_is_what_kubectl_prints(lab: Service, arguments: tuple[str, ...]) -> None:
    assert lab.bullpen("get", *arguments).stdout == lab.kubectl("get", *arguments).stdout


def test_tables_of_several_resources_and_with_labels(lab: Service) -> None:
    said = lab.bullpen("get", "exporters,clients").stdout
    assert "exporter/alpha" in said
    assert "client/alice" in said
    labels = lab.bullpen("get", "exporters", "-L", "site").stdout.splitlines()
    assert labels[0].split()[-1] == "SITE"
    assert [line.split()[-1] for line in labels[1:]] == ["brno", "prague"]
    shown = lab.bullpen("get", "exporter/alpha", "--show-labels").stdout
    assert "board=rpi4,site=brno" in shown


def test_tables_show_who_holds_what_in_which_state_and_until_when(
    lab: Service, tmp_path: Path
) -> None:
    lab.bullpen("client", "create", "carol", "--out", str(tmp_path / "carol.yaml"))
    board = lab.create_exporter("tabled", {"board": "tabled"})
    with lab.exporter(board):
        carol = ("--client-config", str(tmp_path / "carol.yaml"), "-l", "board=tabled")
        name = lab.bullpen("lease", "create", *carol, "-o", "name").stdout.strip()
        found = rows_of(lab.bullpen("get", "exporters", "tabled").stdout)["tabled"]
        assert (found["STATE"], found["HOLDER"]) == ("Leased", "carol")
        assert found["ENDS"].startswith("in ")
        found = rows_of(lab.bullpen("get", "leases").stdout)[name]
        assert (found["STATE"], found["WANTS"]) == ("Active", "board=tabled")
        shown = lab.bullpen("status", check=False).stdout
        assert re.search(r"tabled +leased +carol +in \d+m", shown), shown
        lab.bullpen("lease", "release", name)
        found = rows_of(lab.bullpen("get", "leases").stdout)[name]
        assert (found["STATE"], found["ENDS"].endswith("ago")) == ("Ended (Released)", True)
    lab.bullpen("delete", "exporter/tabled", "client/carol")
    found = rows_of(lab.bullpen("get", "leases").stdout)["booked"]
    assert (found["STATE"], found["WANTS"]) == ("Waiting (Offline)", "board=rpi4")


def rows_of(shown: str) -> dict[str, dict[str, str]]:
    """The cells of a table by name and header."""
    header, *lines = shown.splitlines()
    titles = [(found.group(), found.start()) for found in re.finditer(r"\S+(?: \S+)*", header)]
    ends = [start for _, start in titles[1:]] + [None]
    rows = [
        {title: line[start:end].strip() for (title, start), end in zip(titles, ends, strict=True)}
        for line in lines
    ]
    return {row["NAME"]: row for row in rows}


def test_a_watch_keeps_its_columns(lab: Service) -> None:
    watch = subprocess.Popen(
        [str(BIN / "bullpen"), "get", "exporters", "-w", "--kubeconfig",
         str(lab.data / "kubeconfig")],
        stdout=subprocess.PIPE, text=True, env=lab.environment,
    )  # fmt: skip
    try:
        assert watch.stdout is not None
        header, first = watch.stdout.readline(), watch.stdout.readline()
        watch.stdout.readline()
        lab.bullpen("exporter", "disable", "alpha")
        later = watch.stdout.readline()
    finally:
        watch.terminate()
        watch.communicate()
    column = header.index("ENABLED")
    assert first[column : column + 4] == "true"
    assert later[column : column + 5] == "false"
    lab.bullpen("exporter", "enable", "alpha")


def test_what_name_prints_can_be_deleted(lab: Service) -> None:
    for name in ("one", "two"):
        lab.bullpen("client", "create", name, "--out", str(lab.home / f"{name}.yaml"))
    names = lab.bullpen("get", "client/one", "client/two", "-o", "name").stdout.split()
    deleted = lab.bullpen("delete", *names).stdout
    assert deleted == "".join(f"{name} deleted\n" for name in names)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("get", "exporer"), 3, "did you mean exporters?"),
        (("gett", "exporters"), 2, "did you mean get?"),
        (("get", "exporter/alpha", "beta"), 2, "have this form, or none"),
        (("get", "exporters", "-o", "jsonpath={.items[}"), 5, "cannot be read"),
        (("get", "exporters", "-o", "xml"), 2, "'xml' is not one of"),
        (("describe", "exporters"), 2, "name one object"),
        (("apply", "-f", "/nowhere.yaml"), 3, "/nowhere.yaml does not exist"),
        (("up", "-f", "/nowhere.yaml"), 3, "/nowhere.yaml does not exist"),
        (("apply", "-f", "-"), 5, "standard input has no objects"),
        (("pause", "exporter/alpha"), 2, "exporters cannot be paused"),
        (("lease", "release", "nobodys"), 3, "nobodys"),
        (("get", "exporters", "--kubeconfig", "/nowhere"), 3, "/nowhere does not exist"),
    ],
)
def test_mistakes_have_their_exit_code_and_a_hint(
    lab: Service, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = lab.bullpen(*arguments, check=False, input="")
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr


def test_a_manifest_without_kind_is_named(lab: Service) -> None:
    done = lab.bullpen("apply", "-f", "-", check=False, input="metadata: {name: x}\n")
    assert done.returncode == 5
    assert "has no kind; is it a manifest?" in done.stderr
    for content, words in (("metadata: {name: x}\n", "is it a manifest?"), ("", "has no objects")):
        path = lab.home / "odd.yaml"
        path.write_text(content)
        done = lab.bullpen("up", "-f", str(path), "--data", str(lab.home / "new"), check=False)
        assert (done.returncode, words in done.stderr) == (5, True), done.stderr


def test_nothing_is_overwritten_unless_told_to(lab: Service, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    out.write_text("written by a person\n")
    done = lab.bullpen("exporter", "create", "gamma", "--out", str(out), check=False)
    assert (done.returncode, "--force" in done.stderr) == (6, True)
    assert out.read_text() == "written by a person\n"
    assert lab.bullpen("get", "exporter/gamma", check=False).returncode == 3, "nor created"
    lab.bullpen("exporter", "create", "gamma", "--out", str(out), "--force")
    assert yaml.safe_load(out.read_text())["kind"] == "ExporterConfig"


def test_a_rotated_exporter_has_a_new_token(lab: Service, tmp_path: Path) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    lab.bullpen("exporter", "config", "beta", "--out", str(before))
    lab.bullpen("exporter", "rotate", "beta")
    lab.bullpen("exporter", "config", "beta", "--out", str(after))
    old, new = (yaml.safe_load(path.read_text())["token"] for path in (before, after))
    assert old != new


def test_top_shows_changes_until_it_is_interrupted(lab: Service, tmp_path: Path) -> None:
    shown = pexpect.spawn(
        str(BIN / "bullpen"), ["top", "--interval", "200ms"],
        env=lab.environment, dimensions=(60, 200), timeout=60, encoding="utf-8",
        # A job in the background ignores it, and so would what the job starts.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        shown.expect("Health: +ok")
        lab.bullpen("exporter", "create", "topmost", "--out", str(tmp_path / "topmost.yaml"))
        shown.expect("topmost")
        shown.sendintr()
        shown.expect(pexpect.EOF)
    finally:
        shown.close()
    assert "Traceback" not in (shown.before or "")
    once = lab.bullpen("top").stdout
    assert "topmost" in once
    assert "\x1b" not in once, "no terminal, no control sequences"
    lab.bullpen("delete", "exporter/topmost")


@pytest.mark.parametrize("kind", ["client", "exporter"])
def test_a_config_gets_the_new_token_and_keeps_what_a_person_wrote(
    lab: Service, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "config.yaml"
    lab.bullpen(kind, "create", "kept", "--out", str(path))
    written = path.read_text() + "# a comment\nmine: {a: 1}\n"
    path.write_text(written)
    token = yaml.safe_load(written)["token"]
    lab.bullpen(kind, "rotate", "kept")
    lab.bullpen(kind, "config", "kept", "--out", str(path))
    renewed = yaml.safe_load(path.read_text())["token"]
    assert renewed != token
    assert path.read_text() == written.replace(token, renewed)
    assert path.stat().st_mode & 0o077 == 0

    other = tmp_path / "other.yaml"
    other.write_text(written.replace("name: kept", "name: somebody"))
    done = lab.bullpen(kind, "config", "kept", "--out", str(other), check=False)
    assert (done.returncode, "--force" in done.stderr) == (6, True)
    assert "name: somebody" in other.read_text()


def test_an_administrator_extends_transfers_and_releases_a_lease(lab: Service) -> None:
    assert lab.bullpen("lease", "extend", "booked", "--by", "30m").stdout.endswith("1h30m0s\n")
    assert lab.bullpen("lease", "extend", "booked", "--by", "-1h", check=False).returncode == 2
    lab.bullpen("lease", "transfer", "booked", "--to", "bob")
    assert lab.bullpen("lease", "transfer", "booked", "--to", "eve", check=False).returncode == 3
    found = lab.get("lease", "booked")
    assert found["spec"]["clientRef"] == {"name": "bob"}
    lab.bullpen("lease", "release", "booked")
    eventually(lambda: bool(lab.get("lease", "booked")["status"].get("ended")))
    assert lab.bullpen("lease", "extend", "booked", "--by", "1h", check=False).returncode == 6


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_complete_commands_and_names(lab: Service, shell: str) -> None:
    assert "_BULLPEN_COMPLETE" in lab.bullpen("completion", shell).stdout
    for words, expected in (("bullpen stat", "status"), ("bullpen get exporters al", "alpha")):
        environment = {
            "_BULLPEN_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": words.split()[-1] if shell == "fish" else str(len(words.split()) - 1),
            "BULLPEN_DATA": str(lab.data),
        }
        assert expected in lab.bullpen(check=False, **environment).stdout


def test_kubectl_without_a_kubeconfig_is_told_at_once_what_is_there(lab: Service) -> None:
    """It speaks plain HTTP then, and used to wait for the best part of a minute."""
    address = lab.endpoints["apiserver"].replace("https://", "http://")
    surroundings = {k: v for k, v in lab.environment.items() if k != "KUBECONFIG"}
    done = subprocess.run(
        ["kubectl", "--server", address, "get", "exporters"],
        env=surroundings, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "this port needs TLS: use https://" in done.stderr
    assert "export KUBECONFIG=FILE" in done.stderr
