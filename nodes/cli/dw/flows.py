"""``dw flow:...``: flows of the stream plane."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cluster.flows.records import FlowStatus, TimeoutPolicy
from nodes.cli.dw.arguments import (
    Encoding,
    InputEncoding,
    InputFile,
    Limit,
    RequestId,
    argument,
    option,
    read_json,
    read_object,
    read_text,
)
from nodes.cli.dw.choices import IdReuse, StopType
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import CallFailed, ExitCode, wrong_usage
from nodes.cli.dw.views import Block, Result, Rows, Table, document, facts, table
from nodes.cli.dw.workflows import pages

FlowId = Annotated[str, argument("FLOW_ID", "the flow")]
RunOption = Annotated[
    str | None, option("--run-id", "-r", metavar="RUN_ID", text="the run, not the newest one")
]
Input = Annotated[str | None, option("--input", "-i", metavar="JSON", text="the input (null)")]
HOLD_SECONDS: Final = 60
"""Longest time one request may be held."""
_FLOW = "flow_id flow_type namespace run_id run_number status started_at closed_at is_terminal"
_VIEW = facts(f"{_FLOW} result failure close_reason")


@dataclass(frozen=True, slots=True)
class _Attempts(Table):
    """An attempt a row; of a failure the message only."""

    def __call__(self, result: Result) -> Iterable[Block]:
        attempts = result.get(self.key) or []
        said = [{**one, "failure": (one.get("failure") or {}).get("message")} for one in attempts]
        yield Rows(said, self.columns)


def _value(text: str | None, file: Any, encoding: Encoding) -> Any:
    """Any JSON value: flows take one, not a list of arguments."""
    if text is not None and file is not None:
        raise wrong_usage("give --input or --input-file, not both")
    text = read_text(file) if file is not None else text
    if text is None or encoding is Encoding.RAW:
        return text
    return read_json(text, "the input")


@command(
    "flow:start",
    facts("flow_id run_id flow_type namespace outcome"),
    json="flow_id run_id flow_type namespace outcome",
    examples=('dw flow:start parcel --step pack --flow-id parcel-4 -i \'{"to": "Kyiv"}\'',),
)
def start(
    dw: Dw,
    flow_type: Annotated[str, argument("FLOW_TYPE", "the flow's type")],
    step: Annotated[str, option("--step", metavar="TYPE", text="the step it begins with")],
    flow_id: Annotated[
        str | None, option("--flow-id", metavar="ID", text="drawn by the server when none is given")
    ] = None,
    input: Input = None,
    input_file: InputFile = None,
    flow_timeout: Annotated[
        int | None, option("--flow-timeout", metavar="SECONDS", text="longest time it may run", min=1)
    ] = None,
    timeout_policy: Annotated[
        TimeoutPolicy | None, option("--timeout-policy", text="what happens when that is over")
    ] = None,
    id_reuse: Annotated[IdReuse | None, option("--id-reuse", text="when there was a flow of this id")] = None,
    attributes: Annotated[
        str | None, option("--attributes", metavar="JSON", text="its first attributes")
    ] = None,
    step_options: Annotated[
        str | None, option("--step-options", metavar="JSON", text="of the first step")
    ] = None,
    ignore_running: Annotated[
        bool, option("--ignore-running", text="a running flow of this id is an answer, not an error")
    ] = False,
    request_id: RequestId = None,
) -> Result:
    """Start a flow."""
    body = {
        "flow_type": flow_type,
        "start_step": step,
        "flow_id": flow_id,
        "input": _value(input, input_file, Encoding.JSON),
        "timeout_seconds": flow_timeout,
        "timeout_policy": timeout_policy,
        "id_reuse_policy": id_reuse,
        "attributes": read_object(attributes, "--attributes"),
        "step_options": read_object(step_options, "--step-options"),
        "ignore_already_started": ignore_running or None,
        "request_id": request_id,
    }
    return dw.post("flows", body=body)


@command(
    "flow:list",
    table("flows", "flow_id run_id flow_type status stopping open_step_count started_at"),
    json="flows flow_count next_page_token",
    examples=("dw flow:list --status running", "dw flow:list -t parcel -l 100 --output jsonl"),
    watch=True,
)
def list_flows(
    dw: Dw,
    status: Annotated[FlowStatus | None, option("--status", text="what became of them")] = None,
    flow_type: Annotated[str | None, option("--type", "-t", metavar="TYPE", text="the flow's type")] = None,
    limit: Limit = 20,
) -> Result:
    """List flows, newest first."""
    wanted = {"status": status, "flow_type": flow_type}
    listed = pages(dw, "flows", key="flows", limit=limit, query=wanted)
    return listed | {"flow_count": len(listed["flows"])}


@command("flow:describe", facts(), json=_FLOW, examples=("dw flow:describe parcel-1",), watch=True)
def describe(dw: Dw, flow_id: FlowId, run_id: RunOption = None) -> Result:
    """Show a flow: its state, its open steps, its attributes."""
    return dw.get("flows", flow_id, query={"run_id": run_id})


@command("flow:wait", _VIEW, json=_FLOW, examples=("dw flow:wait parcel-2 --wait-timeout 30",))
def wait(
    dw: Dw,
    flow_id: FlowId,
    run_id: RunOption = None,
    wait_timeout: Annotated[
        float | None, option("--wait-timeout", metavar="SECONDS", text="longest time to wait", min=0)
    ] = None,
) -> Result:
    """Wait until a flow is closed, and show its result.

    Exit code 1 when it did not complete, 7 when --wait-timeout is over.
    """
    last = None if wait_timeout is None else time.monotonic() + wait_timeout
    with dw.screen.waiting(f"waiting for {flow_id}"):
        while True:
            left = HOLD_SECONDS if last is None else last - time.monotonic()
            hold = max(0, min(HOLD_SECONDS, round(left)))
            query = {"run_id": run_id, "timeout_seconds": hold}
            flow = dw.get("flows", flow_id, "wait", query=query, patience=hold)
            # What is awaited is the run that was the newest one at first.
            run_id = flow["run_id"]
            if flow.get("is_terminal"):
                break
            if last is not None and time.monotonic() >= last:
                raise CallFailed(f"{flow_id} has not ended in time; it goes on", ExitCode.TIMEOUT, body=flow)
    if flow.get("status") != FlowStatus.COMPLETED:
        raise CallFailed(f"{flow_id} ended as {flow.get('status')}", ExitCode.FAILURE, body=flow)
    return flow


@command(
    "flow:steps",
    _Attempts("steps", ("at", "event", "step_type", "method", "attempt", "step_execution_id", "failure")),
    json="flow_id steps next_page_token",
    examples=("dw flow:steps parcel-1",),
    watch=True,
)
def steps(dw: Dw, flow_id: FlowId, run_id: RunOption = None, limit: Limit = 100) -> Result:
    """List what became of a flow's step attempts, oldest first."""
    return pages(dw, "flows", flow_id, "steps", key="steps", limit=limit, query={"run_id": run_id})


@command(
    "flow:stop", _VIEW, json=_FLOW, examples=("dw flow:stop parcel-3 --type terminate --reason 'sent twice'",)
)
def stop(
    dw: Dw,
    flow_id: FlowId,
    stop_type: Annotated[StopType, option("--type", text="how (cancel)")] = StopType.CANCEL,
    reason: Annotated[str, option("--reason", metavar="TEXT", text="why; kept with the flow")] = "",
    wait: Annotated[
        bool | None, option("--wait/--no-wait", text="whether running steps may end first (a cancel waits)")
    ] = None,
    run_id: RunOption = None,
) -> Result:
    """Stop a flow."""
    body = {"type": stop_type, "reason": reason, "wait": wait}
    return dw.post("flows", flow_id, "stop", body=body, query={"run_id": run_id})


@command(
    "flow:publish",
    facts("flow_id channel outcome"),
    json="flow_id channel outcome",
    examples=('dw flow:publish parcel-1 notes -i \'{"by": "Olena"}\'',),
)
def publish(
    dw: Dw,
    flow_id: FlowId,
    channel: Annotated[str, argument("CHANNEL", "the channel")],
    input: Input = None,
    input_file: InputFile = None,
    input_encoding: InputEncoding = Encoding.JSON,
    run_id: RunOption = None,
    request_id: RequestId = None,
) -> Result:
    """Publish a message into a channel of a flow."""
    body = {"value": _value(input, input_file, input_encoding), "request_id": request_id}
    return dw.post("flows", flow_id, "channels", channel, body=body, query={"run_id": run_id}, nulls=True)


@command(
    "flow:rpc",
    document("result"),
    json="result",
    examples=("dw flow:rpc parcel-1 where --rpc-timeout 30",),
)
def rpc(
    dw: Dw,
    flow_id: FlowId,
    name: Annotated[str, argument("RPC", "the RPC's name")],
    input: Input = None,
    input_file: InputFile = None,
    rpc_timeout: Annotated[
        float | None,
        option("--rpc-timeout", metavar="SECONDS", text="longest time for its answer", min=0.001, max=60),
    ] = None,
    lock: Annotated[
        list[str] | None, option("--lock", metavar="ATTRIBUTE", text="lock it meanwhile; repeatable")
    ] = None,
    run_id: RunOption = None,
) -> Result:
    """Call an RPC of a flow; a worker with a free slot answers it."""
    body = {
        "input": _value(input, input_file, Encoding.JSON),
        "timeout_seconds": rpc_timeout,
        "lock_attributes": lock or None,
    }
    with dw.screen.waiting(f"calling {name}"):
        return dw.post(
            "flows", flow_id, "rpc", name, body=body, query={"run_id": run_id}, patience=rpc_timeout or 0
        )
