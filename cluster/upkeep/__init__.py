"""Keeping partitions in order: what is due, heads, dead entries, counts."""
