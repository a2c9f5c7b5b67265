"""HTTP/1.1 of both ports: a strict parser around llhttp without I/O, and two tasks a connection.

What two readers could understand differently is refused.
"""
