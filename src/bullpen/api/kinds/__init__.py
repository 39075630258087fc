"""The kinds, one module each, with their rows in the table of resources."""
