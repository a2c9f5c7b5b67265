"""Node sessions, partition leases and the housekeeping of held partitions."""
