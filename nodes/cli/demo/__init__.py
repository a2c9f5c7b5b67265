"""``headrace demo``: a node is killed under a running workflow, and the workflow finishes."""
