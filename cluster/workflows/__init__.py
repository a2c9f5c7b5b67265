"""Workflow executions: pure state machines, and the engine that stores what they decide."""
