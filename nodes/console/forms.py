"""What a form sends, and who may send it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from cluster.errors import Refused
from nodes.api.messages import Request
from nodes.console.sessions import Session

TOKEN_FIELD: Final = "token"  # noqa: S105
MOST_FIELDS: Final = 64
_FORM: Final = "application/x-www-form-urlencoded"
_OWN_PAGES: Final = ("same-origin", "none")


def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form. Raises Refused: 415 for another type, 400 for what no browser sends."""
    media_type = (request.header(b"content-type") or "").partition(";")[0].strip().lower()
    if media_type != _FORM:
        raise Refused("unsupported_media_type", "The console takes forms only.", status=415)
    try:
        text = request.body.decode("ascii")
        pairs = parse_qsl(
            text,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MOST_FIELDS,
            strict_parsing=bool(text),
        )
    except ValueError:
        raise Refused("malformed_request", "The form cannot be read.", status=400) from None
    # Browsers send line ends as CR LF.
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def check_origin(request: Request) -> None:
    """Raises Refused (403) for a request that the browser says another site has made."""
    site = request.header(b"sec-fetch-site")
    if site is not None and site not in _OWN_PAGES:
        raise Refused("cross_site_request", "Another site sent this form; nothing was done.", status=403)


def check_form(request: Request, session: Session, form: Mapping[str, str]) -> None:
    """Raises Refused (403) unless the form is of a page that this session was shown."""
    check_origin(request)
    given = form.get(TOKEN_FIELD, "")
    if session.is_new or not hmac.compare_digest(given.encode(), session.form_token.encode()):
        raise Refused(
            "stale_form", "This form belongs to a session that is over; nothing was done.", status=403
        )
