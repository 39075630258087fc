"""Run inside `bullpen shell`: a job that says whether the cache disk of its runner is warm.

    bullpen shell -n runners-0 -- python examples/runner_job.py
"""

import sys
from itertools import count

import pexpect
from jumpstarter.utils.env import env

PROMPT = "=> "
MARK = "4d524157"
"""What a job leaves in the first word of the cache."""

SECONDS_MAX = 60
numbers = count()

with env() as target, target.serial.pexpect() as console:

    def run(command: str) -> str:
        """What a command prints; a word marks its end, as earlier prompts may follow."""
        done = f"done-{next(numbers)}"
        console.sendline(f"{command}; echo {done}")
        if console.expect([rf"[\r\n]{done}[\r\n]", pexpect.TIMEOUT], timeout=SECONDS_MAX):
            sys.exit(f"no answer within {SECONDS_MAX} s to {command}")
        return console.before.decode(errors="replace")

    console.sendline("")
    console.expect(PROMPT, timeout=SECONDS_MAX)
    run("virtio scan")
    run("virtio read $loadaddr 0 1")
    warm = MARK in run("md.l $loadaddr 1")
    run(f"mw.l $loadaddr {MARK} 80")
    if "1 blocks written: OK" not in run("virtio write $loadaddr 0 1"):
        sys.exit("the cache could not be written")
print("the cache is warm" if warm else "the cache is cold")
