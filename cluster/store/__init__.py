"""The only place that talks to Redis."""
