"""What all nodes share: the engine, its storage in Redis, and nothing of HTTP."""
