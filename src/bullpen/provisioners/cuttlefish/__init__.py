"""``cuttlefish.bullpen.dev``: Android devices of a Cuttlefish host orchestrator."""
