"""Run inside `bullpen shell`: a job that says whether the cache disk of its runner is warm.

    bullpen shell -n runners-0 -- python examples/runner_job.py
"""

import sys

import pexpect
from jumpstarter.utils.env import env

PROMPT = "=> "
MARK = "4d524157"
"""What a job leaves in the first word of the cache."""

SECONDS_MAX = 60

with env() as target, target.serial.pexpect() as console:

    def run(command: str) -> str:
        console.sendline(command)
        if console.expect([PROMPT, pexpect.TIMEOUT], timeout=SECONDS_MAX):
            sys.exit(f"no prompt within {SECONDS_MAX} s after {command}")
        return console.before.decode(errors="replace")

    run("")
    run("virtio scan")
    run("virtio read $loadaddr 0 1")
    warm = MARK in run("md.l $loadaddr 1")
    run(f"mw.l $loadaddr {MARK} 80")
    if "1 blocks written: OK" not in run("virtio write $loadaddr 0 1"):
        sys.exit("the cache could not be written")
print("the cache is warm" if warm else "the cache is cold")
