"""The user data of an instance: its keys, the end of an instance that nobody renews, the class's.

It is for cloud-init. Its keys open and identify this one machine only: user data can be read from
the machine and with rights in the account, so nothing in it may be worth more than the machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

from bullpen.core.targets.backends import EXPIRY

LOGIN_KEY, LOGIN_PUBLIC = "login", "login.pub"
HOST_KEY, HOST_PUBLIC = "host", "host.pub"

MERGE = "list(append)+dict(no_replace,recurse_list)+str()"
"""How cloud-init adds the class's cloud-config to ours."""

EXPIRY_SCRIPT = """\
#!/bin/sh
# Ends this machine at the time in its tag "bullpen:expires", which the service moves while it needs
# the machine. Without the tag, the time is {seconds} s after the first start.
place=${{BULLPEN_EXPIRY:-/var/lib/bullpen-expiry}}
metadata=http://169.254.169.254/latest
if token=$(curl -sf -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $metadata/api/token)
then
    tag=$(curl -sf -m 5 -H "X-aws-ec2-metadata-token: $token" \\
        $metadata/meta-data/tags/instance/bullpen:expires) &&
        end=$(date -d "$tag" +%s) && echo "$end" > "$place"
fi
[ -s "$place" ] || echo $(($(date +%s) + {seconds})) > "$place"
[ "$(date +%s)" -lt "$(cat "$place")" ] || shutdown -h now
"""

INSTALL_SCRIPT = """\
#!/bin/sh
cat > /usr/local/sbin/bullpen-expiry <<'END-OF-SCRIPT'
{script}END-OF-SCRIPT
chmod 755 /usr/local/sbin/bullpen-expiry
cat > /etc/systemd/system/bullpen-expiry.service <<'END'
[Unit]
Description=End of this machine when it is not renewed
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/bullpen-expiry
END
cat > /etc/systemd/system/bullpen-expiry.timer <<'END'
[Timer]
OnActiveSec=0
OnUnitActiveSec=60
[Install]
WantedBy=timers.target
END
systemctl daemon-reload
systemctl enable --now bullpen-expiry.timer
"""


def user_data(keys: Mapping[str, bytes], given: str) -> str:
    """The same text for the same keys and parameters: a repeated creation must not differ."""
    parts = [_part(_cloud_config(keys), "cloud-config"), _part(_installation(), "x-shellscript")]
    if given:
        kind = "x-shellscript" if given.startswith("#!") else "cloud-config"
        parts.append(_part(given, kind))
    digest = hashlib.sha256("".join(map(str, parts)).encode()).hexdigest()
    return MIMEMultipart(boundary=f"bullpen-{digest}", _subparts=parts).as_string()


def expiry_script(after: timedelta = EXPIRY) -> str:
    return EXPIRY_SCRIPT.format(seconds=int(after.total_seconds()))


def _installation() -> str:
    return INSTALL_SCRIPT.format(script=expiry_script())


def _cloud_config(keys: Mapping[str, bytes]) -> str:
    """As JSON, which is YAML."""
    content = {
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": keys[HOST_KEY].decode(),
            "ed25519_public": keys[HOST_PUBLIC].decode(),
        },
        "ssh_authorized_keys": [keys[LOGIN_PUBLIC].decode()],
    }
    return f"#cloud-config\n{json.dumps(content, sort_keys=True)}\n"


def _part(text: str, kind: str) -> MIMEText:
    made = MIMEText(text, kind, "utf-8" if not text.isascii() else "us-ascii")
    if kind == "cloud-config":
        made["Merge-Type"] = MERGE
    return made
