"""What applications use: define flows, run them in a pull worker, drive them with a client.

Nothing here imports the server: a worker needs trio, httpx and a WebSocket, not Redis. Users import
everything from ``headrace``.
"""
