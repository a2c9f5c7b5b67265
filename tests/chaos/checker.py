"""Decides from what was seen whether the promises were kept. Pure: lines in, broken promises out.

Everything is judged by what must have been so, never by what probably was: a request took effect
somewhere between being sent and being answered, a lease ran from some moment in which the worker
asked for it, so a lease is certain from when the worker had it until its time was over counted from
when the worker *asked*. What an unanswered request did is open, and either is accepted.

While a fault that makes the store forget is under way (a failover to a lagging replica), what was
acknowledged may be lost and what was handed out may be handed out again under the same number; that
is excused, but nothing else.

An outcome of an activity is accepted and changes nothing once its run is closed
(server-behaviour 5.8), so what was answered after a decision to close was sent counts for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tests.chaos.record import (
    Answered,
    Cap,
    FaultBegan,
    FaultEnded,
    HandedOut,
    Invoked,
    Line,
    Observed,
    Outcome,
    Remains,
    Verb,
)

END_OF_TIME: Final = 1 << 63


class Promise(StrEnum):
    """What may be broken."""

    START_KEPT = "an acknowledged start is not lost"
    SIGNAL_KEPT = "an acknowledged signal is not lost"
    COMPLETION_KEPT = "an accepted completion is not lost"
    FINISHED = "what was started comes to an end"
    ONE_START = "an execution is created once"
    ONE_SIGNAL = "a signal is recorded once"
    ONE_LEASE = "a task has at most one live lease"
    ONE_NUMBER = "an attempt is handed out under its number once"
    NUMBERS_GROW = "attempt numbers do not go back"
    ONE_ACCEPTED = "a completion is accepted once"
    CURRENT_TOKEN = "a completion is accepted only with the current token"
    TERMINAL_STAYS = "a terminal state never changes"
    NOTHING_AFTER_THE_END = "nothing is handed out after the end"
    WITHIN_POLICY = "attempts stay within their policy"
    RIGHT_RESULT = "results are made of what workers said, once each"
    WITHIN_CAP = "a limit is never exceeded"
    OWN_DATA = "no tenant sees another one's data"
    NOTHING_LEFT = "nothing temporary is left in the store"


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that was not kept, and what shows it."""

    promise: Promise
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"


class Malformed(Exception):
    """These lines cannot come from a run: the recorder is wrong, not the server."""


@dataclass(slots=True)
class _Op:
    sent: Invoked
    answer: Answered | None = None

    @property
    def accepted(self) -> bool:
        return self.answer is not None and self.answer.outcome is Outcome.OK

    @property
    def may_have_happened(self) -> bool:
        return self.answer is None or self.answer.outcome in (Outcome.OK, Outcome.UNKNOWN)


@dataclass(slots=True)
class _Execution:
    ops: list[_Op] = field(default_factory=list)
    looks: list[Observed] = field(default_factory=list)
    handed_out: list[HandedOut] = field(default_factory=list)

    def asked(self, verb: Verb) -> Iterator[_Op]:
        return (op for op in self.ops if op.sent.verb is verb)

    @property
    def completions(self) -> Iterator[_Op]:
        """Accepted completions of tasks that were certainly heard before the execution closed."""
        closing = [op.sent.at for op in self.asked(Verb.CLOSE) if op.may_have_happened]
        closed = min(closing, default=END_OF_TIME)
        return (
            op
            for op in self.asked(Verb.COMPLETE)
            if op.accepted and op.answer is not None and op.answer.at < closed
        )

    @property
    def final(self) -> Observed | None:
        return next((look for look in reversed(self.looks) if look.final), None)


@dataclass(slots=True)
class History:
    """The lines, by what they are about."""

    executions: dict[tuple[str, str], _Execution]
    by_token: dict[str, list[_Op]]
    caps: list[Cap]
    remains: list[Remains]
    oblivion: list[tuple[int, int]]

    def forgot(self, first: int, last: int) -> bool:
        """Whether the store may have forgotten something between two moments."""
        return any(began <= last and first <= ended for began, ended in self.oblivion)

    def excused(self, at: int) -> bool:
        """Whether what was acknowledged at that moment may have been forgotten."""
        return any(began <= at <= ended for began, ended in self.oblivion)


def check(lines: Sequence[Line]) -> list[Broken]:
    """All promises broken in a run. Raises Malformed."""
    history = arrange(lines)
    broken: list[Broken] = []
    for name, execution in sorted(history.executions.items()):
        where = "/".join(name)
        broken += _starts(history, where, execution)
        broken += _signals(history, where, execution)
        broken += _ends(history, where, execution)
        broken += _results(history, where, execution)
        broken += _tenants(where, execution)
        tasks: defaultdict[str, list[HandedOut]] = defaultdict(list)
        for handed in execution.handed_out:
            tasks[handed.task].append(handed)
        for task, handed_out in tasks.items():
            accepted = [op for op in execution.completions if op.sent.task == task]
            broken += _task(history, f"{where} task {task}", handed_out, accepted)
    broken += _caps(history)
    broken += [
        Broken(Promise.NOTHING_LEFT, f"{line.number} keys of family {line.family!r}")
        for line in history.remains
        if line.number and not line.expected
    ]
    return broken


def arrange(lines: Sequence[Line]) -> History:
    """Sort lines by what they are about. Raises Malformed."""
    executions: defaultdict[tuple[str, str], _Execution] = defaultdict(_Execution)
    ops: dict[str, _Op] = {}
    by_token: defaultdict[str, list[_Op]] = defaultdict(list)
    caps: list[Cap] = []
    remains: list[Remains] = []
    forgetting: dict[int, int] = {}
    oblivion: list[tuple[int, int]] = []
    for line in sorted(lines, key=lambda line: line.at):
        match line:
            case Invoked():
                if line.op in ops:
                    raise Malformed(f"{line.op} was invoked twice")
                op = ops[line.op] = _Op(line)
                executions[line.tenant, line.execution].ops.append(op)
                if line.token:
                    by_token[line.token].append(op)
            case Answered():
                if line.op not in ops or ops[line.op].answer is not None:
                    raise Malformed(f"an answer to {line.op}, which nobody waits for")
                ops[line.op].answer = line
            case HandedOut():
                executions[line.belongs_to, line.execution].handed_out.append(line)
            case Observed():
                executions[line.tenant, line.execution].looks.append(line)
            case Cap():
                caps.append(line)
            case Remains():
                remains.append(line)
            case FaultBegan():
                if line.forgets:
                    forgetting[line.number] = line.at
            case FaultEnded():
                if line.number in forgetting:
                    oblivion.append((forgetting.pop(line.number), line.at))
    oblivion += [(began, END_OF_TIME) for began in forgetting.values()]
    return History(dict(executions), dict(by_token), caps, remains, oblivion)


def _starts(history: History, where: str, execution: _Execution) -> Iterator[Broken]:
    accepted = [op for op in execution.asked(Verb.START) if op.accepted]
    created = [op for op in accepted if op.answer and op.answer.created]
    if len([op for op in created if op.answer and not history.excused(op.answer.at)]) > 1:
        yield Broken(Promise.ONE_START, f"{where} was created {len(created)} times")
    final = execution.final
    certain = [op for op in accepted if op.answer and not history.excused(op.answer.at)]
    if final is None or not certain:
        return
    if final.status == "missing":
        yield Broken(Promise.START_KEPT, f"{where} was started by {certain[0].sent.op}")
    elif not final.terminal:
        yield Broken(Promise.FINISHED, f"{where} is {final.status}")


def _signals(history: History, where: str, execution: _Execution) -> Iterator[Broken]:
    final = execution.final
    if final is None or final.status == "missing":
        return
    for op in execution.asked(Verb.SIGNAL):
        seen = final.signals.count(op.sent.token)
        if op.accepted and op.answer and not seen and not history.excused(op.answer.at):
            yield Broken(Promise.SIGNAL_KEPT, f"{where} lacks {op.sent.token}")
        if seen > 1:
            yield Broken(Promise.ONE_SIGNAL, f"{where} has {op.sent.token} {seen} times")


def _ends(history: History, where: str, execution: _Execution) -> Iterator[Broken]:
    end: Observed | None = None
    for look in execution.looks:
        if end is not None and look.sent > end.at and not history.excused(end.at):
            same = (look.status, look.results) == (end.status, end.results)
            if not (look.terminal and same):
                yield Broken(Promise.TERMINAL_STAYS, f"{where} was {end.status}, then {look.status}")
        if look.terminal and end is None:
            end = look
    if end is None or history.excused(end.at):
        return
    for handed in execution.handed_out:
        if handed.sent > end.at:
            yield Broken(Promise.NOTHING_AFTER_THE_END, f"{where}: {handed.token} went to {handed.who}")


def _results(history: History, where: str, execution: _Execution) -> Iterator[Broken]:
    final = execution.final
    if final is None or not final.terminal or final.results is None:
        return
    tasks = {handed.token: handed.task for handed in execution.handed_out}
    strange = [token for token in final.results if token not in tasks]
    if strange:
        yield Broken(Promise.RIGHT_RESULT, f"{where} contains {strange}, which no worker was given")
    counted = [tasks[token] for token in final.results if token in tasks]
    if len(set(counted)) < len(counted):
        yield Broken(Promise.RIGHT_RESULT, f"{where} contains a task twice: {final.results}")
    for op in execution.completions:
        kept = op.sent.token in final.results
        if op.answer and not kept and not history.excused(op.answer.at):
            yield Broken(Promise.COMPLETION_KEPT, f"{where} lacks {op.sent.token}")
    for token in final.results:
        ops = [op for op in history.by_token.get(token, ()) if op.sent.verb is Verb.COMPLETE]
        if ops and not any(op.may_have_happened for op in ops):
            yield Broken(Promise.RIGHT_RESULT, f"{where} contains {token}, which was refused")


def _tenants(where: str, execution: _Execution) -> Iterator[Broken]:
    for handed in execution.handed_out:
        if handed.tenant != handed.belongs_to:
            yield Broken(Promise.OWN_DATA, f"{where} was handed to {handed.who} of {handed.tenant}")


def _task(history: History, where: str, handed_out: list[HandedOut], accepted: list[_Op]) -> Iterator[Broken]:
    """What must hold among the hand-outs and accepted completions of one task, in order of time."""
    yield from _numbers(history, where, handed_out)
    yield from _leases(history, where, handed_out)
    for op in accepted:
        yield from _current(history, where, op, handed_out)
    certain = [op for op in accepted if op.answer and not history.excused(op.answer.at)]
    if len(certain) > 1:
        yield Broken(Promise.ONE_ACCEPTED, f"{where}: {[op.sent.token for op in certain]}")


def _numbers(history: History, where: str, handed_out: list[HandedOut]) -> Iterator[Broken]:
    owners: dict[str, HandedOut] = {}
    highest: HandedOut | None = None
    for handed in handed_out:
        first = owners.setdefault(handed.token, handed)
        if handed.renumbered and first is not handed and not history.forgot(first.at, handed.at):
            yield Broken(Promise.ONE_NUMBER, f"{where}: {handed.token} to {first.who} and {handed.who}")
        if 0 < handed.most_attempts < handed.attempt:
            yield Broken(Promise.WITHIN_POLICY, f"{where}: attempt {handed.attempt}")
        later = highest is not None and handed.sent > highest.at and not history.forgot(highest.at, handed.at)
        if highest is not None and later and handed.attempt < highest.attempt:
            yield Broken(Promise.NUMBERS_GROW, f"{where}: {handed.attempt} after {highest.attempt}")
        if highest is None or handed.attempt >= highest.attempt:
            highest = handed


def _leases(history: History, where: str, handed_out: list[HandedOut]) -> Iterator[Broken]:
    for index, first in enumerate(handed_out):
        end = _certain_end(history, first)
        for later in handed_out[index + 1 :]:
            if later.at >= end:
                break
            if later.token != first.token and later.lasts and not history.forgot(first.at, later.at):
                yield Broken(Promise.ONE_LEASE, f"{where}: {first.token} and {later.token}")


def _certain_end(history: History, handed: HandedOut) -> int:
    """Until when a lease was certainly live; its beginning for one without a known length."""
    if not handed.lasts:
        return handed.at
    answers = [op.sent.at for op in history.by_token.get(handed.token, ()) if op.may_have_happened]
    return min([handed.sent + handed.lasts, *answers])


def _current(history: History, where: str, op: _Op, handed_out: list[HandedOut]) -> Iterator[Broken]:
    token = op.sent.token
    for other in handed_out:
        taken_over = other.token != token and other.at < op.sent.at
        own = max((handed.at for handed in handed_out if handed.token == token), default=0)
        if taken_over and other.at > own and not history.excused(other.at):
            yield Broken(Promise.CURRENT_TOKEN, f"{where}: {token} after {other.token} was handed out")
            return


def _caps(history: History) -> Iterator[Broken]:
    for cap in history.caps:
        edges: list[tuple[int, int, str]] = []
        for execution in history.executions.values():
            for handed in execution.handed_out:
                end = _certain_end(history, handed)
                if handed.cap == cap.cap and end > handed.at:
                    edges += [(handed.at, 1, handed.token), (end, -1, handed.token)]
        live = 0
        for _, step, token in sorted(edges, key=lambda edge: edge[:2]):
            live += step
            if live > cap.most:
                yield Broken(Promise.WITHIN_CAP, f"{cap.cap}: {live} live at {token}, {cap.most} allowed")
                break
