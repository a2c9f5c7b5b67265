"""The systems that are measured: what to install of each, and the programs that send and work."""
