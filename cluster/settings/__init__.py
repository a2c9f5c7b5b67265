"""Settings: one frozen, typed object read from a file, the environment and the command line."""

from cluster.settings.load import load_settings
from cluster.settings.schema import MatchingSettings, Settings

__all__ = ["MatchingSettings", "Settings", "load_settings"]
