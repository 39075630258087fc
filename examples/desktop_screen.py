"""Run inside `bullpen shell`: looks at the screen of a desktop by VNC, and leaves a note at home.

    bullpen shell -n desktops-0 -- python examples/desktop_screen.py

`target.screen` is a network driver of Jumpstarter's; a VNC viewer can use the forwarded port too.
"""

import socket
import struct
import sys
from itertools import count

import pexpect
from jumpstarter.utils.env import env
from jumpstarter_driver_network.adapters import TcpPortforwardAdapter

PROMPT = "=> "
NOTE = "454d4f48"
"""What is left in the first word of the home disk."""

SECONDS_MAX = 60
numbers = count()
NO_AUTHENTICATION = 1


def read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            sys.exit("the screen hung up")
        found += part
    return found


def screen(address: tuple[str, int]) -> str:
    """Size and name of the screen: the first messages of RFC 6143."""
    with socket.create_connection(address, timeout=SECONDS_MAX) as connection:
        connection.sendall(read(connection, 12))
        types = read(connection, read(connection, 1)[0])
        if NO_AUTHENTICATION not in types:
            sys.exit("the screen asks for a password")
        connection.sendall(bytes([NO_AUTHENTICATION]))
        if read(connection, 4) != bytes(4):
            sys.exit("the screen refused the connection")
        connection.sendall(b"\x01")
        width, height = struct.unpack(">HH", read(connection, 4))
        length = struct.unpack(">16xI", read(connection, 20))[0]
        return f"{width}x{height}, {read(connection, length).decode()}"


with env() as target:
    with TcpPortforwardAdapter(client=target.screen) as address:
        print(f"the screen is {screen(address)}")
    with target.serial.pexpect() as console:

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
        known = NOTE in run("md.l $loadaddr 1")
        run(f"mw.l $loadaddr {NOTE} 80")
        if "1 blocks written: OK" not in run("virtio write $loadaddr 0 1"):
            sys.exit("the home disk could not be written")
print("this home was used before" if known else "this home is new")
