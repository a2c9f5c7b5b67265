"""Admission: what a queue, a tenant or an outside dependency may take, and proof of why a task waits."""
