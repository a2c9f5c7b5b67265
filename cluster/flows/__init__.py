"""Flows: durable programs made of steps, pulled by workers over streams."""
