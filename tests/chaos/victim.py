"""A worker that goes as far as one moment of its protocol and is killed there, by its own hand.

``python -m tests.chaos.victim PARENT_PID HOST PORT RECORD WORKER QUEUE MOMENT``. ``QUEUE`` is a flow type or
a task queue. It tells on its standard output when it is ``idle`` (a slot is registered, a poll is sent) and
when it has a ``task``. It costs little to start: plain sockets, and nothing imported that is not needed.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NoReturn

from cluster import payloads
from cluster.workflows.records import Payload
from tests.chaos.record import Answered, HandedOut, Outcome, Recorder, Verb, now

TENANT: Final = "default"
LEASE_NS: Final = 2_000_000_000
"""What the servers of these tests lease a poll's task for."""
POLL_SECONDS: Final = 20
ACTIVITY: Final = "sign"
WORKFLOW: Final = "signing"
_HEADERS: Final = {
    "Content-Type": "application/json",
    "X-Durable-Workflow-Protocol-Version": "1.20",
    "X-Namespace": TENANT,
}


class Moment(StrEnum):
    """Where a worker dies. The first group speaks the stream protocol, the second polls."""

    CONNECTED = "stream: connected"
    HELLO = "stream: hello sent"
    OPENING = "stream: slot opening"
    IDLE = "stream: slot idle"
    HANDED_OUT = "stream: task handed out"
    BEATEN = "stream: heartbeat sent"
    ANSWERED = "stream: output sent"
    CONFIRMED = "stream: output confirmed"
    HALF_CLOSED = "stream: half-closed with a task"
    BEATEN_HALF_CLOSED = "stream: half-closed after a heartbeat"
    DECLINED = "stream: task declined"
    RESET = "stream: slot reset"
    SILENT = "stream: silent with a task"
    SILENT_BEATEN = "stream: silent after a heartbeat"
    REGISTERED = "poll: registered"
    POLLING = "poll: poll sent"
    DECIDING = "poll: workflow task handed out"
    DECIDED = "poll: decision sent"
    WORKING = "poll: activity handed out"
    BEATING = "poll: heartbeat of an activity sent"
    DONE = "poll: result of an activity sent"

    @property
    def polls(self) -> bool:
        return self.value.startswith("poll")

    @property
    def silent(self) -> bool:
        """The process stops and its sockets stay open: a black hole."""
        return self in (Moment.SILENT, Moment.SILENT_BEATEN)

    @property
    def with_task(self) -> bool:
        """Whether the worker has been handed a task by then."""
        return self not in _BEFORE_ANY_TASK


_BEFORE_ANY_TASK: Final = {
    Moment.CONNECTED,
    Moment.HELLO,
    Moment.OPENING,
    Moment.IDLE,
    Moment.REGISTERED,
    Moment.POLLING,
}


def say(word: str) -> None:
    """Tell the parent, at once."""
    os.write(1, word.encode() + b"\n")


def die(*, silently: bool = False) -> NoReturn:
    """End here and now; ``silently``: stand still, with every socket open."""
    os.kill(os.getpid(), signal.SIGSTOP if silently else signal.SIGKILL)
    sys.exit("still alive")


class Stream:
    """Client side of one WebSocket, under the mask 0."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=30)
        self._buffer = b""
        self._frames: list[dict[str, Any]] = []

    def upgrade(self) -> None:
        request = (
            "GET /api/streams HTTP/1.1\r\nHost: headrace\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            "X-Headrace-Stream-Versions: 1-1\r\n\r\n"
        )
        self._socket.sendall(request.encode())
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head

    def send(self, *frames: dict[str, Any]) -> None:
        data = json.dumps(frames).encode()
        size = struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else struct.pack("!BH", 0xFE, len(data))
        self._socket.sendall(b"\x81" + size + b"\0\0\0\0" + data)

    def take(self, kind: str) -> dict[str, Any]:
        """The next frame of a kind; others are dropped."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame["type"] == kind:
                    return frame
            self._frames += json.loads(self._message())

    def _message(self) -> bytes:
        self._need(2)
        size, start = self._buffer[1] & 0x7F, 2
        if size >= 126:
            width = 2 if size == 126 else 8
            self._need(2 + width)
            size, start = int.from_bytes(self._buffer[2 : 2 + width], "big"), 2 + width
        self._need(start + size)
        message, self._buffer = self._buffer[start : start + size], self._buffer[start + size :]
        return message

    def _need(self, size: int) -> None:
        while len(self._buffer) < size:
            self._more()

    def _more(self) -> None:
        data = self._socket.recv(65536)
        assert data, "the node closed the connection"
        self._buffer += data


class Victim:
    """``go`` does not return."""

    def __init__(
        self, host: str, port: int, recorder: Recorder, worker: str, queue: str, last: Moment
    ) -> None:
        self._host = host
        self._port = port
        self._recorder = recorder
        self._worker = worker
        self._queue = queue
        self._last = last

    def go(self) -> NoReturn:
        if self._last.polls:
            self._poll()
        self._stream()

    def _reached(self, moment: Moment) -> None:
        if moment is self._last:
            die(silently=moment.silent)

    # -- streams ------------------------------------------------------------------------------

    def _stream(self) -> NoReturn:
        stream = Stream(self._host, self._port)
        stream.upgrade()
        self._reached(Moment.CONNECTED)
        hello = {"worker_id": self._worker, "flow_types": [{"name": self._queue}]}
        stream.send({"type": "hello", **hello, "task_limit": 1, "reserved_rpc_slots": 0})
        self._reached(Moment.HELLO)
        stream.take("welcome")
        stream.send({"type": "open", "slot": 1, "kind": "step_and_rpc"})
        self._reached(Moment.OPENING)
        stream.take("registered")
        say("idle")
        self._reached(Moment.IDLE)
        task = stream.take("task")["task"]
        self._run_step(stream, task)

    def _run_step(self, stream: Stream, task: dict[str, Any]) -> NoReturn:
        place = {"slot": 1, "attempt_id": task["attempt_id"]}
        note_step(self._recorder, task)
        say("task")
        self._reached(Moment.HANDED_OUT)
        self._reached(Moment.SILENT)
        match self._last:
            case Moment.BEATEN | Moment.BEATEN_HALF_CLOSED | Moment.SILENT_BEATEN:
                stream.send({"type": "heartbeat", **place, "checkpoint": 1})
                self._reached(Moment.BEATEN)
                self._reached(Moment.SILENT_BEATEN)
                stream.send({"type": "half_close", "slot": 1})
            case Moment.HALF_CLOSED:
                stream.send({"type": "half_close", "slot": 1})
            case Moment.DECLINED:
                stream.send({"type": "decline", **place, "reason": "no_capacity"})
            case Moment.RESET:
                stream.send({"type": "reset", "slot": 1})
            case _:
                op = invoke_step(self._recorder, task)
                stream.send({"type": "output", **place, "output": output_of(task)})
                self._reached(Moment.ANSWERED)
                accepted = stream.take("confirmed")["accepted"]
                outcome = Outcome.OK if accepted else Outcome.REFUSED
                self._recorder.note(Answered(op=op, outcome=outcome))
        die()

    # -- polls --------------------------------------------------------------------------------

    def _poll(self) -> NoReturn:
        self._post("/worker/register", register_body(self._worker, self._queue))
        self._reached(Moment.REGISTERED)
        task, sent = self._ask_for("workflow")
        note_poll(self._recorder, task, sent)
        say("task")
        self._reached(Moment.DECIDING)
        decision = {**answer_of(task), "commands": [schedule_command(self._queue)]}
        path = f"/worker/workflow-tasks/{task['task_id']}/complete"
        if self._last is Moment.DECIDED:
            self._post(path, decision, wait=False)
            die()
        self._post(path, decision)
        task, sent = self._ask_for("activity")
        token = note_poll(self._recorder, task, sent)
        self._reached(Moment.WORKING)
        path = f"/worker/activity-tasks/{task['task_id']}"
        if self._last is Moment.BEATING:
            self._post(f"{path}/heartbeat", {**answer_of(task), "details": {}}, wait=False)
            die()
        self._recorder.invoke(Verb.COMPLETE, TENANT, task["workflow_id"], task=task["task_id"], token=token)
        self._post(f"{path}/complete", {**answer_of(task), "result": payload_of(token)}, wait=False)
        die()

    def _ask_for(self, kind: str) -> tuple[dict[str, Any], int]:
        sent = now()
        body = {"worker_id": self._worker, "task_queue": self._queue, "timeout_seconds": POLL_SECONDS}
        connection = self._post(f"/worker/{kind}-tasks/poll", body, wait=False)
        if kind == "workflow":
            say("idle")
            self._reached(Moment.POLLING)
        task: dict[str, Any] = json.loads(connection.getresponse().read())["task"]
        return task, sent

    def _post(self, path: str, body: dict[str, Any], *, wait: bool = True) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=POLL_SECONDS + 10)
        connection.request("POST", f"/api{path}", json.dumps(body), _HEADERS)
        if wait:
            response = connection.getresponse()
            text = response.read()
            if response.status == http.client.CONFLICT:
                die()  # so slow was this process that its lease was over
            assert response.status < 300, (path, response.status, text)
        return connection


# -- what victims and those who come after them write down and send ---------------------------------


def step_token(task: dict[str, Any]) -> str:
    """Unique to the hand-out."""
    return f"{task['flow_id']}/{task['attempt_id']}"


def note_step(recorder: Recorder, task: dict[str, Any]) -> None:
    """A worker got a step."""
    recorder.note(
        HandedOut(
            tenant=TENANT,
            belongs_to=TENANT,
            execution=task["flow_id"],
            task=task["step_execution_id"],
            attempt=task["attempt"],
            token=step_token(task),
            sent=now(),
        )
    )


def invoke_step(recorder: Recorder, task: dict[str, Any]) -> str:
    """A worker is about to send the output of a step."""
    return recorder.invoke(
        Verb.COMPLETE, TENANT, task["flow_id"], task=task["step_execution_id"], token=step_token(task)
    )


def output_of(task: dict[str, Any]) -> dict[str, Any]:
    """It ends the flow; the result says which hand-out it was."""
    return {"decision": {"complete": [step_token(task)]}}


def note_poll(recorder: Recorder, task: dict[str, Any], sent: int) -> str:
    """A worker got a task for a poll that it ``sent`` (ns); returns the token."""
    is_activity = "attempt_number" in task
    attempt = task["attempt_number" if is_activity else "workflow_task_attempt"]
    token = f"{task['task_id']}/{task['activity_attempt_id'] if is_activity else attempt}"
    recorder.note(
        HandedOut(
            tenant=TENANT,
            belongs_to=TENANT,
            execution=task["workflow_id"],
            task=task["task_id"],
            attempt=attempt,
            token=token,
            sent=sent,
            lasts=LEASE_NS,
        )
    )
    return token


def register_body(worker: str, queue: str) -> dict[str, Any]:
    types = {"supported_workflow_types": [WORKFLOW], "supported_activity_types": [ACTIVITY]}
    return {"worker_id": worker, "task_queue": queue, "runtime": "python", **types}


def answer_of(task: dict[str, Any]) -> dict[str, Any]:
    """What every answer to a polled task begins with."""
    name = "activity_attempt_id" if "attempt_number" in task else "workflow_task_attempt"
    return {"lease_owner": task["lease_owner"], name: task[name]}


def payload_of(value: object) -> dict[str, str]:
    payload = payloads.encode(value)
    return {"codec": payload.codec, "blob": payload.blob}


def value_of(codec: str, blob: str) -> Any:
    return payloads.decode(Payload(codec=codec, blob=blob))


def schedule_command(queue: str) -> dict[str, Any]:
    retry = {"max_attempts": 20, "backoff_seconds": [0]}
    command = {"type": "schedule_activity", "activity_type": ACTIVITY, "queue": queue}
    return {**command, "arguments": payload_of([]), "retry_policy": retry}


def main() -> NoReturn:
    parent, host, port, record, worker, queue, moment = sys.argv[1:]
    if os.getppid() != int(parent):
        sys.exit("the parent is gone")
    with Recorder(Path(record), worker) as recorder:
        Victim(host, int(port), recorder, worker, queue, Moment(moment)).go()


if __name__ == "__main__":
    main()
