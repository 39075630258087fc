"""Our own Jumpstarter drivers, usable with the published clients and with ``jmp run``."""
