"""Doing what a form asks for: check it, ask back where that is due, call the API, say what came of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from nodes.api.messages import Response
from nodes.console import actions, frame, rendering
from nodes.console.access import ApiRefusal
from nodes.console.actions import ACTIONS, Action
from nodes.console.visits import Visit, link

CONFIRMED: Final = "confirmed"
_OWN_ADDRESS: Final = re.compile(r"(\./|[a-z-]{1,40})(\?[^#\s\\]{0,4000})?")
_OWN_FIELDS: Final = frozenset({"action", "back", CONFIRMED})


def own_address(text: str) -> str:
    """``text`` if it is the address of a page of this console, else that of the first page."""
    return text if _OWN_ADDRESS.fullmatch(text) else link("")


async def do(visit: Visit, form: Mapping[str, str]) -> Response:
    """The response to a form whose sender was checked. Raises ApiRefusal."""
    action = ACTIONS.get(form.get("action", ""))
    if action is None:
        raise ApiRefusal(404, {"reason": "unknown_action", "message": "The console cannot do that."})
    back = own_address(form.get("back", ""))
    path, document = actions.path_of(action, form), actions.document_of(action, form)
    if action.question and form.get(CONFIRMED) != "yes":
        return _ask(visit, action, form, path, back)
    status, answer = await visit.access.send(action.method, action.template, path, document=document)
    if action.shows:
        found = {"title": action.label, "action": action, "status": status, "answer": answer, "back": back}
        return frame.show_outside(200, "result", visit, found)
    return rendering.redirect(f"{back}{'&' if '?' in back else '?'}done={action.name}")


def _ask(
    visit: Visit, action: Action, form: Mapping[str, str], path: Mapping[str, str], back: str
) -> Response:
    sent = [field for field in action.fields if not field.in_path and form.get(field.name, "").strip()]
    return frame.show_outside(
        200,
        "confirm",
        visit,
        {
            "title": action.label,
            "action": action,
            "path": path,
            "sent": [(field.label, form[field.name]) for field in sent],
            "fixed": [(name, form.get(name, "")) for name in action.fixed],
            "again": {n: form[n] for n in (*action.fixed, *(f.name for f in sent), *path) if n in form},
            "back": back,
        },
    )
