"""Run inside `jmp shell`: boots Linux, logs in, checks that the disk is empty and writes to it.

    jmp shell -l os=linux -- python examples/linux_console.py
"""

import sys

import pexpect
from jumpstarter.utils.env import env

PROMPT = "# "
SECONDS_MAX = 90


def after(console: pexpect.spawnbase.SpawnBase, text: str) -> None:
    if console.expect([text, pexpect.TIMEOUT], timeout=SECONDS_MAX):
        sys.exit(f"\nno {text!r} within {SECONDS_MAX} s")


with env() as target:
    target.power.on()
    try:
        with target.serial.pexpect() as console:
            console.logfile_read = sys.stdout.buffer
            after(console, "login: ")
            console.sendline("root")
            after(console, PROMPT)
            console.sendline("head -c 4 /dev/vda | tr '\\0' '.'; echo ' is on the disk'")
            after(console, "\n.... is on the disk")
            console.sendline("echo -n used > /dev/vda; sync; head -c 4 /dev/vda; echo ' it is'")
            after(console, "\nused it is")
    finally:
        target.power.off()
print("\nLinux booted, and its disk was empty.")
