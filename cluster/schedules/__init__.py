"""Schedules: workflows that the server starts at given times (server-behaviour 8.3)."""
