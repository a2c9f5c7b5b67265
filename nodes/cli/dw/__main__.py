"""``python -m nodes.cli.dw``."""

from nodes.cli.dw import main

main()
