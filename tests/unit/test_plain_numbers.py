"""Numbers that no two readers of JSON would understand alike."""

from __future__ import annotations

import time

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.plain_numbers import number_problem

TOO_LARGE = "number is too large"
NO_64_BITS = "integer does not fit into 64 bits"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"1e400", TOO_LARGE),
        (b"-1E+400", TOO_LARGE),
        (b'{"a": [1, 2.5e309]}', TOO_LARGE),
        (b"1" * 400 + b".5", TOO_LARGE),
        (b"1" * 5_000, NO_64_BITS),
        (b"[-" + b"9" * 5_000 + b"]", NO_64_BITS),
        (b"9223372036854775808", NO_64_BITS),
        (b"-9223372036854775809", NO_64_BITS),
        (b"9223372036854775807", None),
        (b"-9223372036854775808", None),
        (b"1e308", None),
        (b"1e-400", None),
        (b"0." + b"1" * 5_000, None),
        (b'{"1e400": "' + b"1" * 5_000 + b'"}', None),
        (b'"\\"1e400"', None),
        (b'["\\\\", 1e400]', TOO_LARGE),
    ],
)
def test_what_is_wrong_with_a_number(text: bytes, problem: str | None) -> None:
    assert number_problem(text) == problem


@given(
    st.recursive(
        st.floats(allow_nan=False, allow_infinity=False)
        | st.integers(-(1 << 63), (1 << 63) - 1)
        | st.text(max_size=8)
        | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    )
)
def test_what_can_be_written_has_no_problem(value: object) -> None:
    assert number_problem(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)) is None


@given(st.binary(max_size=60))
def test_anything_may_come(text: bytes) -> None:
    number_problem(text)


@pytest.mark.parametrize("text", [b"1" * 1_000_000, b'"1e4' * 250_000, b"1e" * 500_000, b"1.1e1" * 200_000])
def test_hostile_text_takes_linear_time(text: bytes) -> None:
    began = time.process_time()
    number_problem(text)
    assert time.process_time() - began < 5  # quadratic: minutes
