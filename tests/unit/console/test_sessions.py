"""Who may see pages: logging in and out, cookies, and what other sites cannot do."""

from __future__ import annotations

import re

import pytest

from cluster.errors import Refused
from nodes.api.messages import Response
from nodes.api.routes import Role
from nodes.console import attempts, sessions
from tests.unit.console.conftest import TOKENS, Browser, OpenBrowser


@pytest.fixture
async def browser(open_browser: OpenBrowser) -> Browser:
    return await open_browser(auth_driver="token", **TOKENS)


def cookie(response: Response) -> str:
    return next(v.decode() for k, v in response.headers if k == b"set-cookie")


async def test_without_authentication_nobody_logs_in(open_browser: OpenBrowser) -> None:
    browser = await open_browser(auth_driver="none")

    page = await browser.get("workflows")

    assert page.status == 200
    assert b"Log out" not in page.body


async def test_who_is_not_logged_in_is_led_there_and_back(browser: Browser) -> None:
    page = await browser.get("workflows?status=failed&namespace=default")

    assert page.status == 303
    assert page.header(b"location") == b"login?back=workflows%3Fstatus%3Dfailed%26namespace%3Ddefault"
    shown = await browser.get("login?back=workflows%3Fstatus%3Dfailed%26namespace%3Ddefault")
    assert b'value="workflows?status=failed&amp;namespace=default"' in shown.body
    done = await browser.post("login", credential="o-secret", back="workflows?status=failed")
    assert (done.status, done.header(b"location")) == (303, b"workflows?status=failed")
    assert (await browser.get("workflows")).status == 200


@pytest.mark.parametrize(
    "back",
    ["https://evil.example", "//evil.example", "/x", "\\evil", "javascript:alert(1)", "a/b", "w?\n", "x#y"],
)
async def test_a_login_leads_nowhere_else(browser: Browser, back: str) -> None:
    done = await browser.post("login", credential="o-secret", back=back)

    assert done.header(b"location") == b"./"


@pytest.mark.parametrize("token", ["", "wrong", "o-secre", "o-secret2", "\u20ac", "x" * 100_000])
async def test_a_wrong_token_is_refused(browser: Browser, token: str) -> None:
    page = await browser.log_in(token)

    assert page.status == 403
    assert b"does not know that token" in page.body
    assert token == "" or token.encode() not in page.body
    assert (await browser.get("workflows")).status == 303


async def test_blanks_around_a_pasted_token_are_no_part_of_it(browser: Browser) -> None:
    assert (await browser.log_in("  o-secret\n")).status == 303


async def test_the_cookie_is_out_of_reach(browser: Browser) -> None:
    text = cookie(await browser.log_in("o-secret"))

    assert "HttpOnly" in text
    assert "SameSite=Strict" in text
    assert "Path" not in text
    assert "Secure" not in text
    assert "o-secret" not in text


@pytest.mark.parametrize("headers", [{"origin": "https://a.example"}, {"x-forwarded-proto": "https"}])
async def test_over_tls_the_cookie_stays_there(browser: Browser, headers: dict[str, str]) -> None:
    token = await browser.form_token()
    browser.headers = headers
    assert "Secure" in cookie(await browser.send("POST", "login", {"token": token, "credential": "o-secret"}))


async def test_any_node_knows_a_session(browser: Browser, open_browser: OpenBrowser) -> None:
    await browser.log_in("o-secret")
    other = await open_browser(browser.node, auth_driver="token", **TOKENS)
    other.cookies = browser.cookies

    assert (await other.get("workflows")).status == 200


async def test_another_cluster_does_not(browser: Browser, open_browser: OpenBrowser) -> None:
    await browser.log_in("o-secret")
    other = await open_browser(auth_driver="token", **TOKENS)
    other.cookies = browser.cookies

    assert (await other.get("workflows")).status == 303


async def test_a_session_ends_with_its_token(browser: Browser, open_browser: OpenBrowser) -> None:
    await browser.log_in("o-secret")
    rotated = await open_browser(browser.node, auth_driver="token", **{**TOKENS, "operator_token": "new"})
    rotated.cookies = browser.cookies

    assert (await rotated.get("workflows")).status == 303


async def test_a_session_has_the_role_its_token_has_now(browser: Browser, open_browser: OpenBrowser) -> None:
    await browser.log_in("o-secret")
    moved = {"admin_token": "o-secret", "worker_token": "w-secret"}
    other = await open_browser(browser.node, auth_driver="token", **moved)
    other.cookies = browser.cookies

    assert b"admin" in (await other.get("workflows")).body


async def test_a_session_does_not_last_for_ever(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    await browser.log_in("o-secret")
    monkeypatch.setattr(sessions, "LIFETIME_SECONDS", -1)

    assert (await browser.get("workflows")).status == 303


async def test_a_changed_cookie_is_nobody(browser: Browser) -> None:
    await browser.log_in("o-secret")
    ((name, value),) = browser.cookies.items()
    for place in range(0, len(value), 7):
        changed = value[:place] + ("A" if value[place] != "A" else "B") + value[place + 1 :]
        browser.cookies = {name: changed}
        assert (await browser.get("workflows")).status == 303


async def test_logging_out_ends_it_here(browser: Browser) -> None:
    await browser.log_in("o-secret")
    before = dict(browser.cookies)

    done = await browser.post("logout")

    assert (done.status, done.header(b"location")) == (303, b"login")
    assert browser.cookies != before
    assert (await browser.get("workflows")).status == 303


async def test_a_signature_key_logs_in_where_requests_are_signed(open_browser: OpenBrowser) -> None:
    browser = await open_browser(auth_driver="signature", operator_signature_key="key")

    assert (await browser.log_in("key")).status == 303
    assert (await browser.get("workflows")).status == 200


async def test_a_worker_may_log_in_but_sees_nothing(browser: Browser) -> None:
    await browser.log_in("w-secret")

    page = await browser.get("workflows")

    assert page.status == 403
    assert b"forbidden" in page.body
    assert Role.WORKER.value.encode() in page.body


# -- other sites --------------------------------------------------------------------------------


async def test_a_form_without_the_sessions_token_does_nothing(browser: Browser) -> None:
    await browser.log_in("o-secret")
    for form in ({}, {"token": ""}, {"token": "0" * 64}, {"token": "\u00e9"}):
        page = await browser.send("POST", "do", {"action": "cancel", **form})
        assert page.status == 403
        assert b"stale_form" in page.body


async def test_the_token_of_another_session_does_not_fit(browser: Browser, open_browser: OpenBrowser) -> None:
    await browser.log_in("o-secret")
    other = await open_browser(browser.node, auth_driver="token", **TOKENS)

    page = await browser.send("POST", "logout", {"token": await other.form_token()})

    assert page.status == 403


async def test_a_form_of_another_site_does_nothing(browser: Browser) -> None:
    await browser.log_in("o-secret")
    token = await browser.form_token()
    for site in ("cross-site", "same-site"):
        page = await browser.send("POST", "logout", {"token": token}, sec_fetch_site=site)
        assert page.status == 403
    assert (await browser.get("workflows")).status == 200


async def test_without_authentication_forms_are_as_safe(open_browser: OpenBrowser) -> None:
    browser = await open_browser(auth_driver="none")
    page = await browser.send("POST", "do", {"action": "create-namespace", "name": "evil"})
    assert page.status == 403
    assert await browser.node.namespaces.get("evil") is None

    await browser.post("do", action="create-namespace", name="good")
    assert await browser.node.namespaces.get("good") is not None


async def test_a_link_from_elsewhere_does_not_end_a_session(browser: Browser) -> None:
    await browser.log_in("o-secret")
    strict, browser.cookies = browser.cookies, {}  # the browser does not send it

    page = await browser.get("workflows", sec_fetch_site="cross-site")

    assert page.status == 200
    assert page.header(b"set-cookie") is None
    assert b'http-equiv="refresh"' in page.body
    browser.cookies = strict
    assert (await browser.get("workflows", sec_fetch_site="same-origin")).status == 200


async def test_what_is_no_form_is_refused(browser: Browser) -> None:
    for content_type in ("application/json", "multipart/form-data", "text/plain"):
        page = await browser.send("POST", "login", {}, content_type=content_type)
        assert page.status == 415


# -- a gateway in front -------------------------------------------------------------------------


async def test_a_gateway_says_who_one_is(open_browser: OpenBrowser) -> None:
    browser = await open_browser(auth_provider="tests.unit.console.gateway:Gateway")
    nobody = await browser.get("workflows")
    assert nobody.status == 401
    assert b"Come through the gateway" in nobody.body

    page = await browser.get("namespaces", x_user="bob")

    assert page.status == 200
    assert b"bob" in page.body
    assert b"Log out" not in page.body
    token = re.search(r'name="token" value="([0-9a-f]{64})"', page.body.decode())
    assert token
    form = {"token": token[1], "action": "create-namespace", "name": "new"}
    refused = await browser.send("POST", "do", form, x_user="bob")
    assert refused.status == 403
    assert b"does not allow this" in refused.body
    assert (await browser.send("POST", "do", form, x_user="ann")).status == 303
    assert await browser.node.namespaces.get("new") is not None
    assert (await browser.send("POST", "do", {**form, "token": "0" * 64}, x_user="ann")).status == 403


async def test_who_guesses_has_to_wait(browser: Browser) -> None:
    """Also with the right token; who is in stays in."""
    for _ in range(attempts.WRONG):
        assert (await browser.log_in("guess")).status == 403
    refused = await browser.log_in("o-secret")
    assert refused.status == 429
    assert b"Too many wrong tokens" in refused.body


def test_each_address_waits_for_itself() -> None:
    now = 0.0
    kept = attempts.Attempts(lambda: now)
    for _ in range(attempts.WRONG):
        kept.check("a")
        kept.failed("a")
    with pytest.raises(Refused, match="wait a moment"):
        kept.check("a")
    kept.check("b")
    kept.check(None)
    now = 1 / attempts.WRONG_PER_SECOND
    kept.check("a")
