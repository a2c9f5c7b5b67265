"""Templates: everything is escaped, and nothing inline that the content security policy would refuse."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined

from cluster.version import VERSION
from nodes.api.messages import Response
from nodes.console.assets import ASSETS
from nodes.console.visits import link

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
HTML: Final = b"text/html; charset=utf-8"
NONE: Final = "\N{EN DASH}"
"""What stands where there is no value."""

MOST_TEXT: Final = 64 * 1024
"""Characters of one value that a page shows."""


def page(status: int, template: str, variables: Mapping[str, Any]) -> Response:
    """A whole page."""
    body = _environment.get_template(f"pages/{template}.html").render(variables)
    return Response(status, [(b"content-type", HTML), *HEADERS], body.encode())


def fragment(template: str, variables: Mapping[str, Any]) -> str:
    """The part of a page that changes while somebody looks at it."""
    return _environment.get_template(f"live/{template}.html").render(variables)


def has_fragment(template: str) -> bool:
    """Whether a page has such a part."""
    return f"live/{template}.html" in _TEMPLATES


def redirect(location: str) -> Response:
    """To another page of the console; ``location`` is relative, which every proxy leaves alone."""
    return Response(303, [(b"location", location.encode()), *HEADERS])


def moment(text: str | None) -> str:
    """A time of the API to the second, in UTC; an en dash for none."""
    if not text:
        return NONE
    return text[:19].replace("T", " ")


def span(seconds: float | None) -> str:
    """A duration in its two largest units: ``40 ms``, ``1.4 s``, ``3 m 05 s``, ``2 h 01 m``, ``3 d 04 h``."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    for size, unit, small, below in ((3600, "m", 60, "s"), (86400, "h", 3600, "m")):
        if whole < size:
            return f"{whole // small} {unit} {whole % small // (small // 60):02d} {below}"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def seconds_between(start: str | None, end: str | None) -> float | None:
    """Seconds from one time of the API to another."""
    if not start or not end:
        return None
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def count(value: float | None) -> str:
    """A number with thousands parted by thin spaces; an en dash for none."""
    if value is None:
        return NONE
    return f"{value:,.0f}".replace(",", "\u202f") if float(value).is_integer() else f"{value:,.1f}"


def size(octets: int) -> str:
    """A size in the unit that fits."""
    if octets < 1024:
        return f"{octets} B"
    return f"{octets / 1024:.1f} KiB" if octets < 1024 * 1024 else f"{octets / 1024 / 1024:.1f} MiB"


def pretty(value: Any) -> str:
    """A value as indented JSON, at most MOST_TEXT characters of it."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    hidden = len(text) - MOST_TEXT
    return text if hidden <= 0 else f"{text[:MOST_TEXT]}\n... and {hidden} more characters"


def _make() -> Environment:
    environment = Environment(
        loader=PackageLoader("nodes.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=200,
    )
    environment.globals.update(
        link=link,
        asset=lambda name: ASSETS[name].path,
        version=VERSION,
        seconds_between=seconds_between,
    )
    environment.filters.update(moment=moment, span=span, count=count, size=size, pretty=pretty)
    return environment


_environment: Final = _make()
_TEMPLATES: Final = frozenset(_environment.list_templates())
