"""Thin controllers: observe, ask ``core``, act. One module per reconciled object."""
