"""What the tests share: worlds, stand-ins, and drivers of real programs."""
