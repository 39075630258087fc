"""The Kubernetes HTTP API of the embedded home.

``asgi`` receives requests, ``routes`` parses paths, ``authentication`` identifies callers,
``objects`` and ``watches`` call the registry, ``status`` renders errors. Rules about
objects are in the registry, not here.
"""
