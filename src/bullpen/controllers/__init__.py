"""Thin: observe, ask ``core``, act. One module per thing that is kept as declared."""
