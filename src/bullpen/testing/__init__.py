"""For authors of provisioners: the contract suite, and the benches it runs on.

``provisioner_contract`` is the suite. It needs pytest and pytest-asyncio
(``pip install bullpen[testing]``); the service itself never imports this package.
"""
