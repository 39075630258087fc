"""Instances as processes of this machine: a zygote forks them, a supervisor manages them."""
