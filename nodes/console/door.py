"""The console of one node: finds out who asks, and what for.

Every answer is a page, a redirect to one, or a static file. What is refused becomes a page, too, that
says why and what to do about it. Pages are not compressed: they hold the session's form token beside
what somebody else may have put into the address, and the size would tell about both.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from typing import Final

import structlog

from cluster.errors import Refused, StoreError, ValidationFailed
from cluster.pulse import Pulse
from nodes.api.messages import Request, Response
from nodes.api.paths import parse_query, split_path
from nodes.api.pipeline import Pipeline
from nodes.api.ports import NodePort
from nodes.console import assets, doing, frame, rendering
from nodes.console.access import Access, ApiRefusal
from nodes.console.attempts import Attempts
from nodes.console.forms import TOKEN_FIELD, check_form, read_form
from nodes.console.pages import PAGES
from nodes.console.remedies import remedy
from nodes.console.sessions import Session, Sessions
from nodes.console.visits import Visit, link

log = structlog.get_logger(__name__)

ROOT: Final = b"/console"


class Console:
    """Answers requests below ROOT."""

    def __init__(self, node: NodePort, pipeline: Pipeline, sessions: Sessions, pulse: Pulse) -> None:
        self._node = node
        self._pipeline = pipeline
        self._sessions = sessions
        self._pulse = pulse
        self._attempts = Attempts(time.monotonic)

    async def handle(self, request: Request) -> Response:
        """The response to a request. Raises nothing but cancellation."""
        if request.raw_path == ROOT:
            # Links are relative to the directory that the console is.
            return rendering.redirect("console/")
        try:
            match split_path(request.raw_path):
                case (_, "static", digest, name) if request.method in ("GET", "HEAD"):
                    response = assets.serve(request, digest, name)
                case (_,):
                    response = await self._answer(request, "")
                case (_, name):
                    response = await self._answer(request, name)
                case _:
                    response = failure(None, None, _no_page())
        except (Refused, StoreError) as error:
            response = failure(None, None, error)
        except Exception as error:
            report("", error)
            response = failure(None, None, _unexpected())
        if request.method == "HEAD":
            response.body = b""
        return response

    async def session_of(self, request: Request) -> Session:
        """Who asks. Raises StoreError."""
        return await self._sessions.of(request)

    def visit(self, request: Request, name: str, query: Mapping[str, str], session: Session) -> Visit:
        """A look at a page, or any other act. Raises Refused (401) for who has not logged in."""
        if session.principal is None:
            raise Refused("unauthorized", "You are not logged in.", status=401)
        namespace = (query.get("namespace", "").strip() or self._node.settings.default_namespace).lower()
        access = Access(self._pipeline, session.principal, namespace, request, self._sessions.is_provided)
        return Visit(name, query, self._node, access, session, self._pulse)

    # -- what is asked ----------------------------------------------------------------------

    async def _answer(self, request: Request, name: str) -> Response:
        session = await self._sessions.of(request)
        query = parse_query(request.query_string)
        visit = None if session.principal is None else self.visit(request, name, query, session)
        try:
            match request.method:
                case "GET" | "HEAD" if session.is_new and _comes_from_elsewhere(request):
                    # A strict cookie stays away from a link on another site; from this page it comes along.
                    return rendering.page(200, "again", {"address": link(name, **query)})
                case "GET" | "HEAD":
                    response = await self._get(name, query, session, visit)
                case "POST":
                    form = read_form(request)
                    check_form(request, session, form)
                    response, session = await self._post(request, name, form, session)
                case _:
                    raise Refused("method_not_allowed", "The console does not take this method.", status=405)
        except (Refused, StoreError, ApiRefusal) as error:
            response = failure(session, visit, error)
        except Exception as error:
            report(name, error)
            response = failure(session, visit, _unexpected())
        if session.is_new:
            cookie = await self._sessions.cookie(session, secure=_is_encrypted(request))
            response.headers.append((b"set-cookie", cookie))
        return response

    async def _get(
        self, name: str, query: Mapping[str, str], session: Session, visit: Visit | None
    ) -> Response:
        if visit is None and self._sessions.is_provided:
            text = "Nothing in the request says who you are."
            remediation = "Come through the gateway that this server takes your name from."
            raise Refused("unauthorized", text, status=401, remediation=remediation)
        if name == "login":
            return _login_page(session, query.get("back", ""), "")
        if visit is None:
            return rendering.redirect(link("login", back=link(name, **query)))
        page = PAGES.get(name)
        if page is None:
            raise _no_page()
        return frame.show(page, visit, await page.look(visit))

    async def _post(
        self, request: Request, name: str, form: Mapping[str, str], session: Session
    ) -> tuple[Response, Session]:
        """The response, and the session from now on."""
        match name:
            case "login":
                back = form.get("back", "")
                self._attempts.check(request.client)
                begun = await self._sessions.log_in(form.get("credential", ""))
                if begun is None:
                    self._attempts.failed(request.client)
                    return _login_page(session, back, "This server does not know that token."), session
                return rendering.redirect(doing.own_address(back)), begun
            case "logout":
                return rendering.redirect("login"), await self._sessions.log_out()
            case "do":
                visit = self.visit(request, "", {"namespace": form.get("scope", "")}, session)
                return await doing.do(visit, form), session
            case _:
                raise _no_page()


def failure(
    session: Session | None, visit: Visit | None, error: Refused | StoreError | ApiRefusal
) -> Response:
    """The page that says what went wrong."""
    body: Mapping[str, object] = {}
    details: list[str] = []
    match error:
        case ApiRefusal():
            status, message, body = error.status, error.message, error.body
            errors = error.body.get("validation_errors") or error.body.get("errors")
            if isinstance(errors, dict):
                details = [text for texts in errors.values() for text in texts]
        case Refused():
            status, message, body = error.status, error.message, error.fields
            if isinstance(error, ValidationFailed):
                details = [text for texts in error.errors.values() for text in texts]
        case _:
            status, message = 503, "The server cannot reach its store safely."
    return frame.show_outside(
        status,
        "failure",
        visit,
        {
            "title": message,
            "status": status,
            "message": message,
            "reason": error.reason,
            "details": [text for text in details if text != message],
            "remedy": remedy(status, error.reason, body),
            "may_log_in": status in (401, 403) and session is not None and "remediation" not in body,
        },
    )


def _login_page(session: Session, back: str, problem: str) -> Response:
    found = {
        "title": "Log in",
        "back": doing.own_address(back),
        "problem": problem,
        "token_field": TOKEN_FIELD,
        "form_token": session.form_token,
    }
    return frame.show_outside(403 if problem else 200, "login", None, found)


def _unexpected() -> Refused:
    return Refused("server_error", "The server failed to make this page.", status=500)


def _no_page() -> Refused:
    return Refused("not_found", "The console has no such page.", status=404)


def _comes_from_elsewhere(request: Request) -> bool:
    return request.header(b"sec-fetch-site") == "cross-site"


def _is_encrypted(request: Request) -> bool:
    """Whether the browser talks TLS, to this node or to a proxy. Guessing no only costs a flag."""
    origin = request.header(b"origin") or ""
    forwarded = (request.header(b"x-forwarded-proto") or "").partition(",")[0].strip().lower()
    return origin.startswith("https://") or forwarded == "https"


def report(name: str, error: Exception) -> None:
    """Log that a page could not be made."""
    # As in the pipeline: the text of an exception may quote a payload.
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    log.error(
        "console_page_failed",
        page=name,
        error=type(error).__name__,
        frames=[f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in frames],
    )
