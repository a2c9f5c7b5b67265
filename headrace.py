"""Headrace, a durable task server over Redis. The packages are ``cluster`` and ``nodes``."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("headrace")
except PackageNotFoundError:
    __version__ = "0+unknown"
