"""The worker listener: a second port for the routes workers use, without a web framework.

The same pipeline answers there. HTTP/1.1 only, read as on the main port, and nothing of what only other
clients need: no HTTP/1.0, no upgrades, no trailers.
"""
