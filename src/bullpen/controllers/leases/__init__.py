"""Leases: assigns, ends, repairs and forgets them."""
