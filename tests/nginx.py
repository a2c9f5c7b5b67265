"""Real nginx with the rules of ``deploy/nginx.conf.template``."""

from __future__ import annotations

import os
import shutil
import string
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nodes.cli.local import free_ports
from tests.cluster_processes import HOST, TOP, NodeProcess, targets


@contextmanager
def nginx(nodes: Sequence[NodeProcess], directory: Path) -> Iterator[str]:
    """nginx before ``nodes``, which need a worker listener; yields its URL."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert program is not None, "nginx is not installed: apt-get install nginx-light"
    (port,) = free_ports(1)
    rules = string.Template((TOP / "deploy/nginx.conf.template").read_text()).safe_substitute(
        targets(nodes), LISTEN=f"{HOST}:{port}"
    )
    (directory / "rules.conf").write_text(rules)
    places = "".join(f"{name}_temp_path {directory}/{name};" for name in ("client_body", "proxy"))
    unused = "".join(f"{name}_temp_path {directory}/{name};" for name in ("fastcgi", "uwsgi", "scgi"))
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/error.log;"
        f"events {{}} http {{ access_log {directory}/access.log; {places} {unused} include rules.conf; }}"
    )
    arguments = [program, "-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", "stderr"]
    checked = subprocess.run([*arguments, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
    try:
        yield f"http://{HOST}:{port}"
    finally:
        process.kill()
        process.wait()
