"""Clients never get the files that a node itself needs."""

from __future__ import annotations

import resource

import pytest

from nodes import open_files


@pytest.mark.parametrize(
    ("soft", "hard", "allowed"),
    [
        (1024, 20_000, 20_000),
        (1024, resource.RLIM_INFINITY, open_files.ENOUGH),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, open_files.ENOUGH),
        (200, 200, 200),
    ],
)
def test_a_node_takes_what_it_may_have(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, allowed: int
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, limits: asked.append(limits))

    assert open_files.raise_limit() == allowed
    assert asked == ([(allowed, hard)] if soft == 1024 else [])


def test_who_may_not_raise_it_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_kind: int, _limits: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)

    assert open_files.raise_limit() == 1024


@pytest.mark.parametrize(
    ("files", "most"), [(65_536, 10_000), (1024, 448), (200, 36), (64, open_files.FEWEST)]
)
def test_two_ports_leave_some_over(files: int, most: int) -> None:
    assert open_files.connections(files, 10_000) == most
