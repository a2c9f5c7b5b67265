"""A run of a flow in memory: the store's side of every decision, without a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from msgspec import Raw
from msgspec.structs import replace as replaced

from cluster.errors import Refused
from cluster.flows import machine
from cluster.flows.answers import Attempt
from cluster.flows.changes import (
    Append,
    Arm,
    Changes,
    Disarm,
    DropTask,
    Forget,
    NotLoaded,
    ReadyStep,
    ReturnTask,
    Take,
    View,
)
from cluster.flows.decision import StepEvent
from cluster.flows.limits import FlowLimits
from cluster.flows.records import (
    FlowInfo,
    FlowRun,
    FlowState,
    Method,
    Phase,
    StepOptions,
    StepState,
    Task,
    TimeoutHandler,
    TimeoutPolicy,
)
from cluster.flows.wire import Failure, Publication, RpcOutput
from cluster.times import due_after

START_MS = 1_700_000_000_000


@dataclass
class Simulation:
    """One run, its tasks, timers and channels. Decisions see only what they ask for."""

    options: StepOptions = field(default_factory=StepOptions)
    timeout_ms: int = 0
    timeout_policy: TimeoutPolicy = TimeoutPolicy.FAIL
    timeout_handler: TimeoutHandler | None = None
    limits: FlowLimits = field(default_factory=FlowLimits)
    start_step: str = "first"

    def __post_init__(self) -> None:
        self.now_ms = START_MS
        self.tasks: dict[int, Task] = {}
        self.bodies: dict[int, StepState] = {}
        self.timers: dict[str, int] = {}
        self.channels: dict[str, list[bytes]] = {}
        self.history: list[dict[str, Any]] = []
        self.halted = False
        self.begun: set[int] = set()
        self.ended: Counter[int] = Counter()
        self.spent: Counter[tuple[int, Method]] = Counter()
        """Failures and losses per method call."""
        self.heard: list[Any] = []
        """Messages that conditions consumed, in order."""
        info = FlowInfo(
            namespace="ns",
            flow_id="f",
            run_id="R",
            flow_type="shop",
            start_step=self.start_step,
            request_id="r",
            started_at_ms=START_MS,
            deadline_ms=START_MS + self.timeout_ms if self.timeout_ms else 0,
            timeout_policy=self.timeout_policy,
            timeout_handler=self.timeout_handler,
        )
        self.run = FlowRun(info=info, state=FlowState())
        self.apply(machine.start(info, b"null", self.options, {}, self.limits))

    # -- the store --------------------------------------------------------------------------

    def decide(self, act: Callable[[View], Changes], k: int = 0, ends: Attempt | None = None) -> Changes:
        """Make a decision as the engine does, and store it on condition that ``ends`` is the hand-out."""
        steps: set[int] = set()
        messages: dict[str, int] = {}
        task = handed_out = False
        for _ in range(20):
            known = {n: step for n, step in self.run.steps.items() if n in steps}
            view = View(
                run=replaced(self.run, steps=known),
                messages={c: tuple(self.channels.get(c, [])[:count]) for c, count in messages.items()},
                task=self.tasks.get(k, Task()) if task else None,
                handed_out=frozenset(n for n, t in self.tasks.items() if t.state == "l")
                if handed_out
                else None,
            )
            try:
                changes = act(view)
            except NotLoaded as more:
                steps.update(more.steps)
                messages.update(more.messages)
                task = task or more.task
                handed_out = handed_out or more.handed_out
                continue
            if ends is not None and not self._holds(ends):
                task = True
                continue
            self.apply(changes)
            return changes
        raise AssertionError("a decision asks for more and more")

    def _holds(self, ends: Attempt) -> bool:
        task = self.tasks.get(ends.k, Task())
        found = (task.state, task.attempt, task.delivery, task.owner)
        return found == ("l", ends.attempt, ends.delivery, ends.worker)

    def apply(self, changes: Changes) -> None:
        before = self.run
        steps = dict(self.run.steps)
        for k, step in changes.steps.items():
            if step is None:
                steps.pop(k, None)
            else:
                steps[k] = step
        attributes = self.run.attributes if changes.attributes is None else changes.attributes
        self.run = FlowRun(
            info=before.info,
            state=changes.state,
            version=f"{before.version}+",
            attributes=attributes,
            steps=steps,
        )
        opened = set(range(before.state.next_k, changes.state.next_k))
        self.begun |= opened
        for k in (set(before.state.open) | opened) - set(changes.state.open):
            self.ended[k] += 1
        for effect in changes.effects:
            self._do(effect)
        self.history += changes.history
        for entry in changes.history:
            if entry["event"] in (StepEvent.FAILED, StepEvent.LOST, StepEvent.TIMED_OUT):
                self.spent[entry["k"], Method(entry["method"])] += 1
        for k, step in sorted(steps.items()):
            old = before.steps.get(k)
            if step.conditions and (old is None or old.conditions != step.conditions):
                for found in orjson.loads(step.conditions).values():
                    self.heard += found.get("values", [])
        self.halted = self.halted or changes.halts
        assert changes.closes == (changes.state.status.closed and not before.state.status.closed)

    def _do(self, effect: Any) -> None:
        match effect:
            case ReadyStep(step):
                assert not self.halted
                assert step.k not in self.tasks
                self.tasks[step.k] = Task(state="r", attempt=step.attempt)
                self.bodies[step.k] = step
            case DropTask(k):
                if self.tasks.pop(k, None) is not None:
                    self.timers.pop(f"s{k}", None)
            case ReturnTask(k, attempt, delivery, _):
                self.tasks[k] = Task(state="r", attempt=attempt, delivery=delivery + 1)
                self.timers.pop(f"s{k}", None)
            case Arm(name, due_ms):
                self.timers[name] = due_ms
            case Disarm(name):
                self.timers.pop(name, None)
            case Append(channel, values):
                self.channels.setdefault(channel, []).extend(values)
            case Take(channel, count):
                del self.channels[channel][:count]
                if not self.channels[channel]:
                    del self.channels[channel]
            case Forget(channel):
                self.channels.pop(channel, None)

    # -- workers ----------------------------------------------------------------------------

    def hand_out(self, k: int | None = None, worker: str = "w") -> Attempt | None:
        """Hand out the oldest ready task (or that of ``k``), as the claim script does."""
        ready = [n for n, task in self.tasks.items() if task.state == "r" and k in (None, n)]
        if not ready or self.halted:
            return None
        n = ready[0]
        task, step = self.tasks[n], self.bodies[n]
        self.tasks[n] = replaced(task, state="l", owner=worker, leased_at_ms=self.now_ms)
        options = step.options.of(step.method)
        self.timers[f"s{n}"] = due_after(self.now_ms, min(options.timeout_ms, options.heartbeat_ms))
        return Attempt(n, step.method, task.attempt, task.delivery, worker)

    def taken(self, k: int | None = None) -> Attempt:
        attempt = self.hand_out(k)
        assert attempt is not None
        return attempt

    def complete(self, attempt: Attempt, output: dict[str, Any]) -> Changes:
        return self.decide(
            lambda view: machine.complete_step(view, attempt, output, self.now_ms, self.limits),
            attempt.k,
            attempt,
        )

    def fail(
        self, attempt: Attempt, failure: Failure | None = None, event: StepEvent = StepEvent.FAILED
    ) -> Changes:
        failed = failure or Failure(message="no", type="Sorry")
        return self.decide(
            lambda view: machine.fail_step(view, attempt, failed, self.now_ms, self.limits, event),
            attempt.k,
            attempt,
        )

    def give_back(self, attempt: Attempt) -> Changes:
        return self.decide(
            lambda view: machine.return_step(view, attempt, "", self.now_ms, self.limits), attempt.k, attempt
        )

    def heartbeat(self, attempt: Attempt) -> None:
        self.tasks[attempt.k] = replaced(self.tasks[attempt.k], heartbeat_at_ms=self.now_ms)

    # -- clients and time -------------------------------------------------------------------

    def publish(self, channel: str, *values: Any) -> Changes:
        messages = [Publication(channel, Raw(orjson.dumps(value))) for value in values]
        return self.decide(lambda view: machine.publish(view, messages, self.now_ms, self.limits))

    def stop(self, kind: machine.StopType, wait: bool) -> Changes:
        return self.decide(lambda view: machine.stop(view, kind, "why", wait, self.now_ms, self.limits))

    def begin_rpc(self, rpc_id: str, locks: Sequence[str]) -> Changes:
        deadline_ms = self.now_ms + 10_000
        return self.decide(
            lambda view: machine.begin_rpc(view, rpc_id, locks, deadline_ms, self.now_ms, self.limits)
        )

    def apply_rpc(self, rpc_id: str, locks: Sequence[str], output: RpcOutput) -> Changes:
        return self.decide(
            lambda view: machine.apply_rpc(view, rpc_id, locks, output, "w", self.now_ms, self.limits)
        )

    def fire(self, name: str) -> Changes:
        """Let the timer come due and fire it."""
        self.now_ms = max(self.now_ms, self.timers.pop(name))
        kind, k = name[0], int(name[1:]) if name[0] == "s" else 0

        def act(view: View) -> Changes:
            match kind:
                case "s":
                    return machine.step_due(view, k, self.now_ms, self.limits)
                case "r":
                    return machine.flow_due(view, self.now_ms, self.limits)
                case "z":
                    return machine.settle_stop(view, self.now_ms, self.limits)
                case _:
                    return machine.end_rpc(view, name[1:], self.now_ms, self.limits)

        return self.decide(act, k)

    # -- what must hold ---------------------------------------------------------------------

    def check(self) -> None:
        state, steps = self.run.state, self.run.steps
        assert set(state.open) == set(steps)
        assert all(count == 1 for count in self.ended.values())
        assert self.begun == set(steps) | set(self.ended)
        assert {c: len(values) for c, values in self.channels.items() if values} == state.channels
        if state.status.closed:
            assert (self.tasks, self.timers, self.channels) == ({}, {}, {})
            assert not steps
            return
        assert steps, "a run with nothing open is over"
        if state.stop is None:
            self._check_running()
        for k, step in steps.items():
            spent = self.spent[k, step.method]
            assert step.attempt == spent + 1 or step.phase in (Phase.WAITING, Phase.LOCKED)

    def _check_running(self) -> None:
        state, steps = self.run.state, self.run.steps
        phases = {k: step.phase for k, step in steps.items()}
        assert set(self.tasks) == {k for k, phase in phases.items() if phase is Phase.READY}
        assert set(state.waiting) == {k for k, phase in phases.items() if phase is Phase.WAITING}
        assert set(state.locked) == {k for k, phase in phases.items() if phase is Phase.LOCKED}
        for k, step in steps.items():
            dues = [c.due_ms for c in step.wait.conditions if not c.channel] if step.wait else []
            leased = k in self.tasks and self.tasks[k].state == "l"
            if step.phase is Phase.BACKOFF or leased or max(dues, default=0) > self.now_ms:
                assert f"s{k}" in self.timers
            elif not dues:  # one that is overdue may stand there until somebody fires it
                assert f"s{k}" not in self.timers
        wanted: set[str] = set()
        for k in state.locked:
            names = set(steps[k].options.locks)
            assert names & (set(state.locks) | wanted), "nothing keeps it from its locks"
            wanted |= names
        for k, step in steps.items():
            if step.phase in (Phase.READY, Phase.BACKOFF):
                assert all(state.locks[name] == f"s{k}" for name in step.options.locks)
        for holder in state.locks.values():
            assert holder[0] == "r" or phases[int(holder[1:])] in (Phase.READY, Phase.BACKOFF)


def refusal(act: Callable[[], object]) -> str:
    """The reason with which ``act`` is refused, "" when it is not."""
    try:
        act()
    except Refused as refused:
        return refused.reason
    return ""


def lead_to(*steps: Any, **more: Any) -> dict[str, Any]:
    """An execute output that leads to these steps."""
    named = [{"step_type": step} if isinstance(step, str) else step for step in steps]
    return {"decision": {"next": named}, **more}


DEAD_END = {"decision": {"dead_end": True}}
