"""The console in a real browser: every page, every action, behind a proxy and below a path of its own."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Browser

from nodes.console.actions import ACTIONS
from nodes.console.pages import PAGES
from tests.e2e.console.conftest import TOKENS, Site
from tests.e2e.console.seeding import EVIL, Seeded
from tests.e2e.console.watching import Tab, open_tab

pytestmark = pytest.mark.timeout(600)


def addresses(seeded: Seeded) -> dict[str, list[str]]:
    """Every page of the table, with something to show."""
    waiting, task = seeded.waiting, f"{seeded.stuck['run_id']}-w1"
    run = f"id={waiting['workflow_id']}&run={waiting['run_id']}"
    return {
        "": ["", "./?namespace=default"],
        "workflows": ["workflows", "workflows?query=lane&status=failed&type=order", "workflows?type=none"],
        "workflow": [f"workflow?{run}", "workflow?id=done-lane", "workflow?id=failed-lane"],
        "event": [f"event?{run}&number=2", f"event?{run}&number=6"],
        "runs": ["runs?id=done-lane"],
        "activities": ["activities", "activities?status=failed"],
        "activity": [f"activity?id={seeded.activity}"],
        "flows": ["flows", "flows?status=running"],
        "flow": [f"flow?id={seeded.flow}"],
        "task-queues": ["task-queues", "task-queues?query=idle"],
        "task-queue": [f"task-queue?name={seeded.queue}", f"task-queue?name={seeded.queue}-idle"],
        "why": [f"why?name={seeded.queue}-idle&task={task}"],
        "workers": ["workers", "workers?status=active"],
        "worker": [f"worker?id={seeded.worker}"],
        "schedules": ["schedules", "schedules?status=active"],
        "schedule": [f"schedule?id={seeded.schedule}"],
        "namespaces": ["namespaces"],
        "cluster": ["cluster"],
    }


@pytest.mark.parametrize(("scheme", "phone"), [("light", False), ("dark", True)])
def test_every_page_is_in_order(
    site: Site, chromium: Browser, scheme: Literal["light", "dark"], phone: bool
) -> None:
    known = addresses(site.seeded)
    assert known.keys() == PAGES.keys()
    with open_tab(chromium, site.url, scheme=scheme, phone=phone) as tab:
        tab.page.goto(site.url + "workflows?status=failed")
        tab.check_for_everybody()
        tab.page.get_by_label("Token").fill(TOKENS["admin"])
        tab.press("Log in")
        tab.page.wait_for_url("**/workflows?status=failed")
        for variants in known.values():
            for address in variants:
                tab.open(address)
            tab.check_for_everybody()
        (cookie,) = tab.page.context.cookies()
        assert cookie["path"] == "/ops/headrace/console"
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"


def test_what_tenants_wrote_stays_text(site: Site, chromium: Browser) -> None:
    seeded = site.seeded
    with open_tab(chromium, site.url) as tab:
        tab.log_in(TOKENS["operator"])
        for address in (
            f"workflow?id={seeded.waiting['workflow_id']}",
            f"schedule?id={seeded.schedule}",
            f"event?id=done-lane&run={seeded.done['run_id']}&number=2",
            f"workflows?query={EVIL.replace('&', '%26').replace('#', '%23')}",
        ):
            tab.open(address)
            assert "alert(" in tab.page.content()
            assert tab.page.locator("main script").count() == 0


def test_every_action_with_script(site: Site, chromium: Browser) -> None:
    seeded, done = site.acted_on, set[str]()
    with open_tab(chromium, site.url) as tab:
        tab.log_in(TOKENS["admin"])
        _namespaces(tab, done)
        _workflow(tab, seeded, done)
        _schedule(tab, seeded, done)
        _flow(tab, seeded, done)
        _queue(tab, seeded, done)
    assert done == ACTIONS.keys()


def _namespaces(tab: Tab, done: set[str]) -> None:
    tab.open("namespaces")
    tab.fill_in("Create a namespace", Name="other", Description=EVIL, Days_that="7")
    tab.told("The namespace was created.")
    row = tab.page.locator("tr").filter(has_text="other")
    row.locator("summary").click()
    row.get_by_label("Description").fill("second")
    row.get_by_role("button").click()
    tab.told("The namespace was changed.")
    assert tab.page.locator("tr").filter(has_text="other").get_by_text("second").count() == 1
    done |= {"create-namespace", "update-namespace"}


def _workflow(tab: Tab, seeded: Seeded, done: set[str]) -> None:
    tab.open("workflows")
    tab.fill_in(
        "Start a workflow", Workflow_type="order", Task_queue="lane-idle", Workflow_id="mine", Input="[1]"
    )
    tab.told("started new")
    tab.page.get_by_role("link", name="Open the run").click()
    tab.page.wait_for_url("**/workflow?**")
    tab.fill_in("Signal", Signal="hurry", Input='{"now": true}')
    tab.told("The signal was accepted.")
    tab.fill_in("Update", Update="add", Input="[1]", Wait="accepted")
    tab.told("The whole answer")
    tab.page.get_by_role("link", name="Back").click()
    tab.expected = {409, 422}
    tab.fill_in("Query", Query="total")
    tab.told("Start a worker of the run's task queue")
    tab.page.go_back()
    tab.fill_in("Signal", Signal="hurry", Input="{broken")
    tab.told("Input is no JSON")
    tab.page.go_back()
    tab.press("Repair")
    tab.confirm()
    tab.told("repair not needed")
    tab.page.get_by_role("link", name="Back").click()
    tab.fill_in("Cancel", Reason="because")
    tab.page.locator("dialog").get_by_role("button", name="No").click()
    tab.page.locator("dialog").wait_for(state="detached")
    tab.page.locator("details[open]").get_by_role("button").click()
    tab.confirm()
    tab.told("Cancellation was requested.")
    tab.fill_in("Archive", Reason="keep")
    tab.confirm()
    tab.told("The run is archived.")
    tab.open(f"workflow?id={seeded.stuck['workflow_id']}")
    tab.fill_in("Terminate", Reason=EVIL)
    tab.confirm()
    tab.told("The run was terminated.")
    tab.expected = set()
    done |= {"start-workflow", "signal", "update", "query", "repair", "cancel", "terminate", "archive"}


def _schedule(tab: Tab, seeded: Seeded, done: set[str]) -> None:
    tab.open(f"schedule?id={seeded.schedule}")
    tab.fill_in("Pause", Note="for now")
    tab.told("Paused.")
    tab.fill_in("Resume", Note="on")
    tab.told("Resumed.")
    tab.fill_in("Trigger now", If_the="allow_all")
    tab.confirm()
    tab.told("triggered")
    tab.page.get_by_role("link", name="Back").click()
    tab.fill_in("Backfill", From="2026-01-01T00:00", To="2026-01-02T12:00", If_the="allow_all")
    tab.confirm()
    tab.told("backfill started")
    tab.page.get_by_role("link", name="Back").click()
    tab.press("Delete")
    tab.expected = {404}
    tab.confirm()
    tab.told("schedule_not_found")
    tab.expected = set()
    done |= {"pause", "unpause", "trigger", "backfill", "delete-schedule"}


def _flow(tab: Tab, seeded: Seeded, done: set[str]) -> None:
    tab.open("flows")
    tab.fill_in("Start a flow", Flow_type="parcel", First_step="pack", Flow_id="my-flow", Input='{"a": 1}')
    tab.told("started")
    tab.page.get_by_role("link", name="Open the flow").click()
    tab.page.wait_for_url("**/flow?**")
    tab.fill_in("Publish", Channel="news", Message='"hello"')
    tab.told("The message was published.")
    tab.expected = {503}
    tab.fill_in("Call", RPC="ask", Input="1")
    tab.told("rpc_unavailable")
    tab.page.go_back()
    tab.expected = set()
    tab.fill_in("Stop", How="terminate", Reason="enough")
    tab.confirm()
    tab.told("The flow is being stopped.")
    done |= {"start-flow", "publish", "rpc", "stop-flow"}


def _queue(tab: Tab, seeded: Seeded, done: set[str]) -> None:
    tab.open(f"task-queue?name={seeded.queue}")
    tab.press("Drain")
    tab.confirm()
    tab.told("The build drains.")
    tab.press("Resume")
    tab.told("The build gets tasks again.")
    tab.fill_in("Set limits", Workflow_tasks='{"max_active_leases_per_queue": 8}')
    tab.confirm()
    tab.told("The limits hold on every node.")
    tab.told("0 of 8")
    tab.press("Remove limits")
    tab.confirm()
    tab.told("What the server was started with holds again.")
    tab.open(f"worker?id={seeded.worker}")
    tab.expected = {404}
    tab.press("Forget")
    tab.confirm()
    tab.told("worker_not_found")
    tab.expected = set()
    done |= {"drain", "resume", "set-limits", "remove-limits", "deregister-worker"}


def test_without_script_it_asks_on_a_page(site: Site, chromium: Browser) -> None:
    with open_tab(chromium, site.url, script=False) as tab:
        page = tab.page
        page.goto(site.url)
        page.get_by_label("Token").fill(TOKENS["operator"])
        tab.press("Log in")
        page.goto(site.url + "workflows")
        tab.fill_in("Start a workflow", Workflow_type="order", Task_queue="lane-idle", Workflow_id="plain")
        page.get_by_role("link", name="Open the run").click()
        tab.fill_in("Terminate", Reason=EVIL)
        assert page.get_by_text("End this run at once?").count() == 1
        assert page.get_by_text(EVIL).count() == 1
        page.get_by_role("button", name="Yes, terminate").click()
        page.get_by_text("The run was terminated.").wait_for()
        assert page.get_by_role("button", name="Pause live updates").count() == 0
        page.goto(site.url + "namespaces")
        assert page.get_by_text("Create a namespace").count() == 0  # an operator may not
        tab.press("Log out")
        page.get_by_label("Token").wait_for()


def test_a_page_follows_what_happens(site: Site, chromium: Browser) -> None:
    with open_tab(chromium, site.url) as tab, open_tab(chromium, site.url) as other:
        tab.log_in(TOKENS["operator"])
        other.log_in(TOKENS["operator"])
        other.open("workflows")
        other.fill_in("Start a workflow", Workflow_type="t", Task_queue="lane-idle", Workflow_id="watched")
        other.told("started new")
        tab.open("workflow?id=watched")
        other.open("workflow?id=watched")
        tab.page.evaluate("window.stayed = true")
        other.fill_in("Signal", Signal="hurry")
        other.told("The signal was accepted.")
        tab.page.get_by_role("link", name="SignalReceived").wait_for()
        assert tab.page.evaluate("window.stayed")
        tab.press("Pause live updates")
        assert tab.page.locator("[data-live-state] button").get_attribute("aria-pressed") == "true"
        tab.check()
        tab.check_for_everybody()


def test_it_can_be_used_by_keys(site: Site, chromium: Browser) -> None:
    with open_tab(chromium, site.url) as tab:
        tab.log_in(TOKENS["operator"])
        tab.open("workflows")
        page = tab.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "query"
        page.keyboard.type("lane")
        page.keyboard.press("Enter")
        page.wait_for_url("**query=lane**")
        page.locator("details.act summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("details[open]").count() == 1
        page.get_by_label("Workflow type").focus()
        page.keyboard.press("Escape")
        assert page.locator("details[open]").count() == 0
