"""Durable queues: streams with consumer groups, heads, wakes and bounded claims."""
