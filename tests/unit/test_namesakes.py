"""Two nodes of one name are noticed; a node that was only restarted is none."""

from __future__ import annotations

from cluster.membership.namesakes import Namesakes
from cluster.membership.sessions import NodeInfo, Session


def session(incarnation: str, name: str = "n") -> Session:
    return Session(incarnation, NodeInfo(name=name), 7.0)


def names(found: list[Session]) -> list[str]:
    return [each.incarnation for each in found]


def test_one_that_goes_on_is_named_once() -> None:
    watch = Namesakes("n", patience=7)
    ours, theirs, other = session("n~1"), session("n~2"), session("m~3", "m")
    assert watch.look([ours, theirs, other], "n~1", 0) == []
    assert watch.look([ours, theirs, other], "n~1", 6.9) == []
    assert names(watch.look([ours, theirs, other], "n~1", 7)) == ["n~2"]
    assert watch.look([ours, theirs, other], "n~1", 20) == []
    assert watch.look([ours], "n~1", 21) == []
    watch.look([ours, theirs], "n~1", 22)
    assert names(watch.look([ours, theirs], "n~1", 29)) == ["n~2"]


def test_what_a_restart_left_behind_is_no_namesake() -> None:
    watch = Namesakes("n", patience=7)
    watch.look([session("n~1"), session("n~old")], "n~1", 0)
    assert watch.look([session("n~1")], "n~1", 3) == []
    assert watch.look([session("n~1")], "n~1", 30) == []


def test_nodes_without_a_name_are_not_compared() -> None:
    watch = Namesakes("", patience=0)
    assert watch.look([session("~1", ""), session("~2", "")], "~1", 9) == []
