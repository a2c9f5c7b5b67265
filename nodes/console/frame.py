"""What is around every page: navigation, who is logged in, what can be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nodes.api.messages import Response
from nodes.console import rendering
from nodes.console.actions import ACTIONS
from nodes.console.forms import TOKEN_FIELD
from nodes.console.pages import PAGES, SECTIONS, Page
from nodes.console.visits import Visit, link

_OUTSIDE: Final = Page("", "", "", PAGES[""].look, "-")


def variables(page: Page, visit: Visit, found: Mapping[str, Any]) -> dict[str, Any]:
    """Everything the template of a page may use; ``found`` is what its own function read."""
    done = ACTIONS.get(visit.text("done"))
    return {
        "page": page,
        "title": page.title,
        "sections": SECTIONS,
        "visit": visit,
        "namespace": visit.namespace,
        "here": link(visit.page, **{k: v for k, v in visit.query.items() if k != "done"}),
        "done": done.done if done else "",
        "token_field": TOKEN_FIELD,
        "form_token": visit.session.form_token,
        "can": lambda name: visit.access.may(ACTIONS[name].method, ACTIONS[name].template),
        "actions": ACTIONS,
        **found,
    }


def show(page: Page, visit: Visit, found: Mapping[str, Any]) -> Response:
    """A page of the table."""
    return rendering.page(200, page.template, variables(page, visit, found))


def show_outside(status: int, template: str, visit: Visit | None, found: Mapping[str, Any]) -> Response:
    """A page that is not in the table: with navigation when somebody is logged in, bare otherwise."""
    if visit is None:
        return rendering.page(status, template, {"page": _OUTSIDE, "visit": None, "done": "", **found})
    return rendering.page(status, template, variables(_OUTSIDE, visit, found))
