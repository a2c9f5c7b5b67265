"""The checker itself: a good run passes, and each kind of broken promise is found and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec
import pytest

from tests.chaos.checker import Malformed, Promise, check
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
    Recorder,
    Remains,
    Verb,
    read_lines,
)

LEASE = 1000


@dataclass
class Script:
    """Writes a run by hand; every line is ten later than the one before."""

    lines: list[Line] = field(default_factory=list)
    ops: int = 0

    @property
    def time(self) -> int:
        return 10 * len(self.lines)

    def add(self, line: Line, who: str = "w1") -> None:
        self.lines.append(msgspec.structs.replace(line, at=self.time + 10, who=who))

    def ask(
        self,
        verb: Verb,
        *,
        tenant: str = "red",
        execution: str = "e",
        task: str = "",
        token: str = "",
        outcome: Outcome | None = Outcome.OK,
        created: bool = False,
    ) -> None:
        self.ops += 1
        op = f"op{self.ops}"
        self.add(Invoked(op=op, verb=verb, tenant=tenant, execution=execution, task=task, token=token))
        if outcome is not None:
            self.add(Answered(op=op, outcome=outcome, created=created))

    def start(self, outcome: Outcome | None = Outcome.OK, *, created: bool = True) -> None:
        self.ask(Verb.START, outcome=outcome, created=created)

    def hand_out(
        self,
        token: str,
        *,
        who: str = "w1",
        task: str = "t1",
        attempt: int = 1,
        tenant: str = "red",
        lasts: int = LEASE,
        most_attempts: int = 3,
        renumbered: bool = True,
        cap: str = "",
        sent: int | None = None,
    ) -> None:
        line = HandedOut(
            tenant=tenant,
            belongs_to="red",
            execution="e",
            task=task,
            attempt=attempt,
            token=token,
            sent=self.time + 5 if sent is None else sent,
            lasts=lasts,
            most_attempts=most_attempts,
            renumbered=renumbered,
            cap=cap,
        )
        self.add(line, who)

    def complete(self, token: str, outcome: Outcome | None = Outcome.OK, *, task: str = "t1") -> None:
        self.ask(Verb.COMPLETE, task=task, token=token, outcome=outcome)

    def look(
        self,
        status: str = "completed",
        results: Sequence[str] | None = (),
        *,
        signals: Sequence[str] = (),
        final: bool = False,
        sent: int | None = None,
    ) -> None:
        line = Observed(
            tenant="red",
            execution="e",
            status=status,
            sent=self.time + 5 if sent is None else sent,
            terminal=status == "completed",
            results=None if results is None else tuple(results),
            signals=tuple(signals),
            final=final,
        )
        self.add(line, "client")

    def pass_time(self, time: int) -> None:
        """Until nothing handed out so far is live any more."""
        while self.time < time:
            self.add(Cap(cap="none", most=1))


def good() -> Script:
    """One execution of two tasks; the first one's first lease runs out, and its worker is late."""
    script = Script()
    script.add(Cap(cap="red", most=2))
    script.start()
    script.ask(Verb.SIGNAL, token="s1")
    script.hand_out("t1.1", cap="red")
    script.pass_time(LEASE + 200)
    script.hand_out("t1.2", attempt=2, who="w2", cap="red")
    script.complete("t1.1", Outcome.REFUSED)
    script.complete("t1.2")
    script.hand_out("t2.1", task="t2", cap="red")
    script.complete("t2.1", None, task="t2")
    script.look("completed", ["t1.2", "t2.1"], signals=["s1"])
    script.add(Remains(family="run", number=1, expected=True))
    script.look("completed", ["t1.2", "t2.1"], signals=["s1"], final=True)
    return script


def test_a_good_run_breaks_nothing() -> None:
    assert check(good().lines) == []


def lost_start(script: Script) -> None:
    script.start()
    script.look("missing", None, final=True)


def lost_signal(script: Script) -> None:
    script.start()
    script.ask(Verb.SIGNAL, token="s1")
    script.look(final=True)


def doubled_signal(script: Script) -> None:
    script.start()
    script.ask(Verb.SIGNAL, token="s1", outcome=None)
    script.look(signals=["s1", "s1"], final=True)


def lost_completion(script: Script) -> None:
    script.start()
    script.hand_out("t1.1")
    script.complete("t1.1")
    script.look(final=True)


def never_finished(script: Script) -> None:
    script.start()
    script.look("running", None, final=True)


def started_twice(script: Script) -> None:
    script.start()
    script.start()


def two_leases(script: Script) -> None:
    script.hand_out("t1.1")
    script.hand_out("t1.2", attempt=2, who="w2")


def two_workflow_task_leases(script: Script) -> None:
    script.hand_out("poll-1", renumbered=False)
    script.hand_out("poll-2", renumbered=False, who="w2")


def same_number_twice(script: Script) -> None:
    script.hand_out("t1.1", lasts=0)
    script.hand_out("t1.1", lasts=0, who="w2")


def number_goes_back(script: Script) -> None:
    script.hand_out("t1.2", attempt=2, lasts=0)
    script.hand_out("t1.1", attempt=1, lasts=0)


def accepted_twice(script: Script) -> None:
    script.hand_out("t1.1")
    script.complete("t1.1")
    script.complete("t1.1")


def stale_accepted(script: Script) -> None:
    script.hand_out("t1.1", lasts=0)
    script.hand_out("t1.2", attempt=2, lasts=0, who="w2")
    script.complete("t1.1")


def terminal_changes(script: Script) -> None:
    script.look()
    script.look("running", None)


def terminal_result_changes(script: Script) -> None:
    script.hand_out("t1.1")
    script.hand_out("t2.1", task="t2")
    script.look(results=["t1.1"])
    script.look(results=["t2.1"])


def handed_out_after_the_end(script: Script) -> None:
    script.look()
    script.hand_out("t1.1")


def too_many_attempts(script: Script) -> None:
    script.hand_out("t1.4", attempt=4, most_attempts=3)


def result_from_nowhere(script: Script) -> None:
    script.look(results=["t9.1"], final=True)


def result_twice(script: Script) -> None:
    script.hand_out("t1.1", lasts=0)
    script.hand_out("t1.2", attempt=2, lasts=0)
    script.look(results=["t1.1", "t1.2"], final=True)


def refused_result(script: Script) -> None:
    script.hand_out("t1.1")
    script.complete("t1.1", Outcome.REFUSED)
    script.look(results=["t1.1"], final=True)


def cap_exceeded(script: Script) -> None:
    script.add(Cap(cap="red", most=1))
    script.hand_out("t1.1", cap="red")
    script.hand_out("t2.1", task="t2", cap="red")


def foreign_data(script: Script) -> None:
    script.hand_out("t1.1", tenant="blue")


def left_over(script: Script) -> None:
    script.add(Remains(family="task", number=3, expected=False))


PLANTED: list[tuple[Callable[[Script], None], Promise]] = [
    (lost_start, Promise.START_KEPT),
    (lost_signal, Promise.SIGNAL_KEPT),
    (doubled_signal, Promise.ONE_SIGNAL),
    (lost_completion, Promise.COMPLETION_KEPT),
    (never_finished, Promise.FINISHED),
    (started_twice, Promise.ONE_START),
    (two_leases, Promise.ONE_LEASE),
    (two_workflow_task_leases, Promise.ONE_LEASE),
    (same_number_twice, Promise.ONE_NUMBER),
    (number_goes_back, Promise.NUMBERS_GROW),
    (accepted_twice, Promise.ONE_ACCEPTED),
    (stale_accepted, Promise.CURRENT_TOKEN),
    (terminal_changes, Promise.TERMINAL_STAYS),
    (terminal_result_changes, Promise.TERMINAL_STAYS),
    (handed_out_after_the_end, Promise.NOTHING_AFTER_THE_END),
    (too_many_attempts, Promise.WITHIN_POLICY),
    (result_from_nowhere, Promise.RIGHT_RESULT),
    (result_twice, Promise.RIGHT_RESULT),
    (refused_result, Promise.RIGHT_RESULT),
    (cap_exceeded, Promise.WITHIN_CAP),
    (foreign_data, Promise.OWN_DATA),
    (left_over, Promise.NOTHING_LEFT),
]


@pytest.mark.parametrize(("plant", "promise"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_violation_is_found(plant: Callable[[Script], None], promise: Promise) -> None:
    script = Script()
    plant(script)
    assert {broken.promise for broken in check(script.lines)} == {promise}


def test_every_promise_can_be_broken() -> None:
    assert {promise for _, promise in PLANTED} == set(Promise)


FORGIVEN = [lost_start, lost_signal, lost_completion, same_number_twice, accepted_twice, terminal_changes]


@pytest.mark.parametrize("plant", FORGIVEN, ids=[plant.__name__ for plant in FORGIVEN])
@pytest.mark.parametrize("forgets", [True, False])
def test_only_a_store_that_forgets_is_excused(plant: Callable[[Script], None], forgets: bool) -> None:
    """And only for what it acknowledged until it was whole again."""
    script = Script()
    script.add(FaultBegan(number=1, fault="failover", forgets=forgets))
    plant(script)
    script.add(FaultEnded(number=1))
    assert bool(check(script.lines)) is not forgets
    script = Script()
    script.add(FaultBegan(number=1, fault="failover", forgets=True))
    script.add(FaultEnded(number=1))
    plant(script)
    assert check(script.lines)


def test_an_open_answer_is_excused_either_way() -> None:
    for results in ([], ["t1.1"]):
        script = Script()
        script.start(None)
        script.hand_out("t1.1")
        script.complete("t1.1", None)
        script.look(results=results, final=True)
        assert check(script.lines) == []


def test_what_a_closed_run_accepts_counts_for_nothing() -> None:
    script = Script()
    script.hand_out("t1.1", lasts=0)
    script.hand_out("t1.2", attempt=2, lasts=0)
    script.complete("t1.2")
    script.ask(Verb.CLOSE, task="wt", token="p1")
    script.complete("t1.1")
    script.look(results=["t1.2"], final=True)
    assert check(script.lines) == []


def test_what_overlaps_in_time_is_not_judged() -> None:
    """A look or a poll that was under way when something changed may show either state."""
    script = Script()
    script.look()
    script.look("running", None, sent=0)
    script.hand_out("t1.1", sent=0)
    assert check(script.lines) == []


def test_lines_that_cannot_be_are_malformed() -> None:
    script = Script()
    script.add(Answered(op="never", outcome=Outcome.OK))
    with pytest.raises(Malformed):
        check(script.lines)
    invoked = Invoked(op="a", verb=Verb.START, tenant="red", execution="e")
    with pytest.raises(Malformed):
        check([invoked, invoked])


def test_lines_survive_their_file(tmp_path: Path) -> None:
    """In order of time, whatever file they stand in; a torn last line is left out."""
    lines = good().lines
    shuffled = Random(3).sample(lines, len(lines))
    for index, line in enumerate(shuffled):
        with (tmp_path / f"{index % 3}.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
    with (tmp_path / "0.jsonl").open("ab") as file:
        file.write(b'{"type":"Answ')
    assert read_lines(tmp_path.glob("*.jsonl")) == lines


def test_a_recorder_stamps_what_it_writes(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a.jsonl", "me") as recorder:
        first = recorder.invoke(Verb.START, "red", "e")
        assert recorder.invoke(Verb.START, "red", "e") != first
        recorder.note(Answered(op=first, outcome=Outcome.OK))
    lines = read_lines([tmp_path / "a.jsonl"])
    assert [line.who for line in lines] == ["me"] * 3
    assert 0 < lines[0].at <= lines[1].at <= lines[2].at
