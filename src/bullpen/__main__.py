"""``python -m bullpen`` is the command line."""

from bullpen.cli.main import main

main()
