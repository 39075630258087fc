"""The router: joins two gRPC streams by passing their HTTP/2 DATA through.

A request and a response of RouterService.Stream look the same on the wire, so nothing needs
decoding: payload bytes go from one stream to the other with a new frame header. ``pairing``
matches the two sides, ``connection`` speaks HTTP/2, ``leg`` holds bytes in transit,
``server`` listens.
"""
