"""The commands `headrace` and `dw`."""
