"""The HTTP surface of a node."""
