"""Each program that measures a promise, in its smallest size, as docs/reliability.md shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.chaos import campaign, drain, growth, kills, pauses, soak, worker_kills
from tests.chaos.growth import Sample
from tests.chaos.record import FaultBegan, HandedOut, Line
from tests.chaos.recovery import SECOND, Spread, back_after, longest_silence, spread

Program = Callable[[Sequence[str]], int]
PAGE: Final = Path(__file__).parents[2] / "docs/reliability.md"
SMALL: Final[dict[str, tuple[Program, str]]] = {
    "kills": (kills.main, "--kills 1 --tasks 100 --rate 40"),
    "pauses": (pauses.main, "--pauses 1 --longest 5"),
    "worker_kills": (worker_kills.main, "--kills 21 --lanes 7"),
    "drain": (drain.main, "--polls 200 --leases 20 --steps 5"),
    "soak": (soak.main, "--minutes 0.05 --queued 20"),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", SMALL)
def test_the_programs_keep_the_promises_they_measure(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, options = SMALL[name]
    code = program([*options.split(), "--keep", str(tmp_path)])
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert "\nclean after " in shown


def test_every_command_of_the_page_is_one_of_them() -> None:
    shown = re.findall(r"python -m tests\.chaos\.(\w+)((?: --[a-z]+ [\w.,:]+)*)", PAGE.read_text())
    assert {name for name, _ in shown} == {"campaign", *SMALL}
    for name, options in shown:
        if name == "campaign":
            campaign.options_of(options.split())


def test_work_is_back_with_the_first_good_second() -> None:
    tenth = SECOND // 10
    handed = [*range(0, 10 * SECOND, tenth), *range(13 * SECOND, 20 * SECOND, tenth)]
    assert back_after(handed, 5 * SECOND, 10) == 0
    assert back_after(handed, 10 * SECOND, 10) == pytest.approx(2.8, abs=0.4)
    assert back_after(handed, 19 * SECOND + tenth, 20) == float("inf")
    assert longest_silence(handed, 9 * SECOND, 20 * SECOND) == pytest.approx(3.1, abs=0.01)


def test_a_queue_that_stands_still_shows_among_others_that_go_on() -> None:
    handed: dict[str, dict[str, int]] = {"still": {"lasts": SECOND}, "steps": {}}
    lines: list[Line] = [FaultBegan(at=SECOND, number=1, fault=kills.NODE_KILLED, target="node-1")]
    for name, fields in handed.items():
        for at in range(0, 5 * SECOND, SECOND // 4):
            if name == "steps" or not SECOND < at < 3 * SECOND:
                token = f"{name}/{at}"
                one = HandedOut(
                    at=at, tenant="red", belongs_to="red", execution=name, task=token, attempt=1, token=token
                )
                lines.append(msgspec.structs.replace(one, **fields))
    toll = kills.judge(lines, 1, 1.0, [])
    assert toll.quiet == [("red activities", 2.0), ("red steps", 0.25)]
    assert "red activities 2.0" in str(toll)


def test_a_spread_is_what_was_measured() -> None:
    assert spread([]) == Spread(0, 0, 0, 0)
    assert spread([2.0]) == Spread(1, 2, 2, 2)
    found = spread([float(number) for number in range(101)])
    assert (found.p50, found.p99, found.worst) == (50, 99, 100)


def sample(at: int, **more: int) -> Sample:
    figures = {"store_bytes": 1000, "keys": 100, "node_bytes": 10**8, "descriptors": 50, "series": 400}
    return Sample(at=at, tasks=at, **{**figures, **more})


def test_growth_is_found() -> None:
    assert growth.judge([sample(at) for at in range(40)]) == []
    grown = {"store_bytes": 10, "keys": 5, "node_bytes": 10**6, "descriptors": 1, "series": 1}
    for name, step in grown.items():
        steady = getattr(sample(0), name)
        (found,) = growth.judge([sample(at, **{name: steady + at * step}) for at in range(40)])
        assert found.startswith(f"{name} grew from ")
    assert growth.table([sample(at) for at in range(40)]).count("\n") == len(grown)
