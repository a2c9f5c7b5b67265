"""Headrace, a durable task server over Redis. The code lives in ``cluster`` and ``nodes``."""

from cluster.settings import Settings, load_settings
from cluster.version import VERSION as __version__

__all__ = ["Settings", "__version__", "load_settings"]
