"""The processes: the API node and the command line."""
