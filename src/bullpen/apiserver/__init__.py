"""The Kubernetes HTTP face of the embedded home.

``asgi`` receives, ``routes`` says what a path means, ``auth`` says who may,
``objects`` and ``watches`` do it through the registry, ``status`` says what
went wrong. No rule about objects lives here; those are the registry's.
"""
