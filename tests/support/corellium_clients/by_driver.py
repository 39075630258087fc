"""What the published Jumpstarter driver does with the stand-in for Corellium, told as JSON.

It takes the host and the token from the environment, and speaks only HTTPS.
"""

from __future__ import annotations

import json
from typing import Any

from jumpstarter.common.utils import serve
from jumpstarter_driver_corellium.driver import Corellium


def told(project: str, console: str) -> dict[str, Any]:
    driver = Corellium(
        project_id=project, device_name="by driver", device_flavor="kronos", console_name=console
    )
    with serve(driver) as client:
        client.power.on()
        created = driver.api.get_instance("by driver")
        with client.serial.pexpect() as line:
            line.expect_exact("$ ", timeout=120)
            line.sendline("hello")
            line.expect("you said: (hello)", timeout=120)
            said = line.match[1].decode()
        client.power.off(destroy=True)
        left = driver.api.get_instance("by driver")
    return {"created": created.state, "said": said, "left": left}


if __name__ == "__main__":
    import sys

    print(json.dumps(told(*sys.argv[1:])))
