"""The kinds: frozen values over the stored document, schemas, CRDs, printing.

One definition per kind yields its schema, defaults, validation, CRD and table
columns. Nothing here reads a store or a clock.
"""
