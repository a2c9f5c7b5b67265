"""Everything one can do in the console, by whom, and what it sends."""

from __future__ import annotations

import re

import pytest

from nodes.api.routes import Role
from nodes.api.table import ROUTES
from nodes.console.access import ApiRefusal
from nodes.console.actions import ACTIONS, Action, Kind, document_of, path_of
from nodes.console.pages import PAGES
from tests.unit.console.conftest import TOKENS, OpenBrowser

BY_ROUTE = {(route.method, route.template): route for route in ROUTES}
ROLE_TOKENS = {Role.WORKER: "w-secret", Role.OPERATOR: "o-secret", Role.ADMIN: "a-secret"}


def filled(action: Action) -> dict[str, str]:
    """A form that fills in everything."""
    samples = {Kind.JSON: "{}", Kind.NUMBER: "3", Kind.TIME: "2026-01-01T00:00"}
    form = dict.fromkeys((*action.path, *action.fixed), "x")
    for field in action.fields:
        form[field.name] = field.choices[-1] if field.choices else samples.get(field.kind, "x")
    return {"action": action.name, "confirmed": "yes", **form}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=lambda action: action.name)
def test_an_action_is_a_route_of_the_api(action: Action) -> None:
    route = BY_ROUTE[action.method, action.template]
    named = re.findall(r"\{([a-z_]+)\}", action.template)
    in_path = [field.name for field in action.fields if field.in_path]
    assert sorted(named) == sorted([*action.path, *in_path])
    assert action.done or action.shows
    assert action.question or not action.grave
    assert not route.public


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("action", ACTIONS.values(), ids=lambda action: action.name)
async def test_a_role_does_exactly_what_the_api_lets_it(
    open_browser: OpenBrowser, action: Action, role: Role
) -> None:
    browser = await open_browser(auth_driver="token", **TOKENS)
    await browser.log_in(ROLE_TOKENS[role])

    page = await browser.post("do", **filled(action))

    is_forbidden = page.status == 403 and b"<code>forbidden</code>" in page.body
    assert is_forbidden == (role not in BY_ROUTE[action.method, action.template].roles)


@pytest.mark.parametrize("name", PAGES)
async def test_a_worker_sees_no_page(open_browser: OpenBrowser, name: str) -> None:
    browser = await open_browser(auth_driver="token", **TOKENS)
    await browser.log_in("w-secret")

    page = await browser.get(f"{name}?id=x&run=x&name=x&task=x")

    assert page.status == 403
    assert b"<code>forbidden</code>" in page.body


async def test_only_what_one_may_do_is_offered(open_browser: OpenBrowser) -> None:
    browser = await open_browser(auth_driver="token", **TOKENS)
    await browser.log_in("o-secret")
    assert b"Create a namespace" not in (await browser.get("namespaces")).body
    await browser.post("logout")
    await browser.log_in("a-secret")
    assert b"Create a namespace" in (await browser.get("namespaces")).body


@pytest.mark.parametrize(
    "action", [action for action in ACTIONS.values() if action.question], ids=lambda action: action.name
)
async def test_what_has_a_question_is_asked_back(open_browser: OpenBrowser, action: Action) -> None:
    browser = await open_browser()
    form = filled(action)
    del form["confirmed"]

    page = await browser.post("do", **form, back="workflows")

    assert page.status == 200
    text = page.body.decode()
    assert "Yes, " in text
    assert 'name="confirmed" value="yes"' in text
    carried = set(re.findall(r'name="([a-z_]+)"', text))
    assert form.keys() <= carried
    assert not browser.node.engine.calls


def test_a_form_becomes_the_routes_own_body() -> None:
    update = ACTIONS["update"]
    form = {
        "workflow_id": " w ",
        "run_id": "r",
        "update_name": "add",
        "input": '[1, {"a": null}]',
        "wait_for": "completed",
    }
    assert path_of(update, form) == {"workflow_id": "w", "run_id": "r", "update_name": "add"}
    assert document_of(update, form) == {"input": [1, {"a": None}], "wait_for": "completed"}
    assert document_of(update, {**form, "input": " ", "wait_for": ""}) == {}
    assert document_of(ACTIONS["drain"], {"task_queue": "q"}) == {"build_id": None}
    assert document_of(ACTIONS["delete-schedule"], {"schedule_id": "s"}) is None


@pytest.mark.parametrize("text", ["{", "[1,]", '{"a":1,"a":2}', "1e999", "9" * 30, "[" * 70 + "]" * 70])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ApiRefusal) as refused:
        document_of(ACTIONS["signal"], {"input": text})
    assert (refused.value.status, refused.value.reason) == (422, "validation_failed")


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ApiRefusal, match="signal_name"):
        path_of(ACTIONS["signal"], {"workflow_id": "w", "run_id": "r", "signal_name": " "})
