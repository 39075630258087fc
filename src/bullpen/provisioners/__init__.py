"""What to run for a virtual target. A placement decides where it runs."""
