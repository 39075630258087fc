"""Run inside `jmp shell`: powers the target on and prints its console up to the U-Boot prompt.

    jmp shell -l board=uboot -- python examples/console.py
"""

import sys

import pexpect
from jumpstarter.utils.env import env

PROMPT = "=> "
SECONDS_MAX = 60

with env() as target:
    target.power.on()
    try:
        with target.serial.pexpect() as console:
            console.logfile_read = sys.stdout.buffer
            console.send("\n")
            found = console.expect([PROMPT, pexpect.TIMEOUT], timeout=SECONDS_MAX)
            if found:
                sys.exit(f"\nno prompt within {SECONDS_MAX} s")
            console.sendline("version")
            console.expect(PROMPT, timeout=SECONDS_MAX)
    finally:
        target.power.off()
print("\nU-Boot answered.")
