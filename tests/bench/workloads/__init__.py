"""One module for each workload; each has a ``measure(session)`` that adds its tables to the report."""
