"""``corellium.jumpstarter.dev``: virtual devices of Corellium as targets."""
