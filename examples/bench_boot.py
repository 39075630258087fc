"""Run inside `jmp shell`: powers both boards of a bench on and waits for their prompts.

jmp shell -l bench=two-boards -- python examples/bench_boot.py
"""

import sys

import pexpect
from jumpstarter.utils.env import env

PROMPT = "=> "
SECONDS_MAX = 60

with env() as bench:
    boards = {"board": bench.board, "peer": bench.peer}
    for board in boards.values():
        board.power.on()
    for name, board in boards.items():
        with board.serial.pexpect() as console:
            console.send("\n")
            if console.expect([PROMPT, pexpect.TIMEOUT], timeout=SECONDS_MAX):
                sys.exit(f"{name}: no prompt within {SECONDS_MAX} s")
            console.sendline("echo $arch")
            console.expect(r"\r\n(\w+)\r\n", timeout=SECONDS_MAX)
            print(f"{name} answered: {console.match[1].decode()}", flush=True)
    bench.board.power.off()
