"""Bar charts as plain SVG, readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, NAMES, VALUES = 720, 250, 190
ROW, BAR, TOP, BOTTOM = 26, 16, 44, 26
OURS, OTHERS, TEXT = "#2f6fb3", "#9aa4b1", "#6b7480"


@dataclass(frozen=True)
class Bar:
    """A median with the range of its runs."""

    name: str
    middle: float
    low: float
    high: float
    ours: bool = False


def bar_chart(title: str, unit: str, bars: Sequence[Bar], digits: int = 0) -> str:
    """Horizontal bars from zero, a thin line for the range; an SVG document.

    Raises ValueError without bars or with a value below zero.
    """
    if not bars or min(bar.low for bar in bars) < 0:
        raise ValueError("a chart needs bars, and none below zero")
    height = TOP + ROW * len(bars) + BOTTOM
    scale = (WIDTH - NAMES - VALUES) / (max(bar.high for bar in bars) or 1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}">',
        f"<title>{escape(title)}</title>",
        f'<text x="0" y="20" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for number, bar in enumerate(bars):
        middle = TOP + ROW * number + ROW / 2
        parts.append(
            f'<text x="{NAMES - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(bar.name)}</text>'
        )
        parts.append(
            f'<rect x="{NAMES}" y="{middle - BAR / 2:.1f}" width="{bar.middle * scale:.1f}" height="{BAR}"'
            f' rx="2" fill="{OURS if bar.ours else OTHERS}"/>'
        )
        left, right = NAMES + bar.low * scale, NAMES + bar.high * scale
        parts.append(
            f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="{TEXT}"/>'
        )
        parts.append(f'<text x="{right + 8:.1f}" y="{middle + 4:.1f}">{bar.middle:,.{digits}f}</text>')
    note = f"{unit}; bar: median, line: smallest to largest run"
    parts.append(f'<text x="{NAMES}" y="{height - 8}" font-size="11">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>", ""])
