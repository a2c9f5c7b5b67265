"""The worker listener: a second port for the routes workers use, without a web framework.

The same pipeline answers there; only the way from the socket to it is shorter. HTTP/1.1 only, and strict:
what two readers could understand differently is refused.
"""
