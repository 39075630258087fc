"""Claims for several devices at once: which devices a claim gets, and why not."""
