"""Arguments that no handler would take are refused; everything uncertain passes."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.signatures import Signature, faults_of_all, signature


def declared(*parameters: dict[str, Any]) -> Signature:
    found = signature({"name": "h", "parameters": list(parameters)})
    assert found is not None
    return found


X: dict[str, Any] = {"name": "x", "position": 0, "required": True, "default_available": False}
Y: dict[str, Any] = {"name": "y", "position": 1, "required": False, "default_available": True, "default": 1}
REST: dict[str, Any] = {"name": "rest", "position": 2, "variadic": True, "required": False}


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ([1], True),
        ([1, 2], True),
        ([], False),
        ([1, 2, 3], False),
        ({"x": 1}, True),
        ({"x": 1, "y": None}, True),
        ({"y": 1}, False),
        ({"x": 1, "z": 2}, False),
        (None, True),
        ("text", True),
    ],
)
def test_how_many_and_which(arguments: Any, fits: bool) -> None:
    assert (declared(Y, X).faults(arguments) == []) is fits


def test_more_may_follow() -> None:
    assert declared(X, Y, REST).faults([1, 2, 3, 4]) == []
    assert declared(X, REST).faults({"x": 1, "any": 2}) == []
    assert declared(X, REST).faults([]) == ["The argument x is required."]


@pytest.mark.parametrize(
    "contract", [None, 5, {}, {"parameters": None}, {"parameters": [1]}, {"parameters": [{"name": 3}]}]
)
def test_what_cannot_be_read_says_nothing(contract: Any) -> None:
    assert signature(contract) is None


def test_one_worker_that_would_take_them_is_enough() -> None:
    strict, loose = declared(X), declared()
    assert faults_of_all([strict], []) == ["The argument x is required."]
    assert faults_of_all([strict, loose], []) == []
    assert faults_of_all([strict, None], []) == []
    assert faults_of_all([], [1]) == []
