"""The ``dw`` command: operate a server over HTTP (``server-behaviour 10``).

One module holds the commands of one noun; :mod:`nodes.cli.dw.command` says what a command is,
:mod:`nodes.cli.dw.program` puts them together. Whatever ``dw`` can do, the role of its token may do
by HTTP as well; it reads nothing but the server's answers and its own profiles.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``dw`` script."""
    import os
    import sys

    from nodes.cli.dw.program import run

    sys.exit(run(sys.argv[1:], os.environ))
