"""Charts as SVG: lines over steps, and bars. Flyte Decks, reports in HTML and Markdown, and benchmarks draw with it.

What lives here: pictures from numbers, without scripts and without a package. What does not: the dashboard's charts,
which a browser draws (`relax_engine.observe.ui`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise

COLOURS = ("#0b57d0", "#b3541e", "#14713a", "#7b2fa0", "#a8071a", "#00677d")
"""Of series, one after the other; readable on white."""

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 14, 34
_LEGEND, _KEYS, _LONGEST_KEY = 18, 3, 24
_BAR, _LABEL, _NUMBER = 20, 190, 70
_TICKS = 5

_Scale = Callable[[float], float]
Series = Sequence[float | None]
"""One value a step; None where there is none."""


def line_chart(
    title: str,
    series: Mapping[str, Series],
    *,
    low: float | None = None,
    high: float | None = None,
    positions: Sequence[float] | None = None,
    across: str = "step",
    smooth: bool = True,
) -> str:
    """Lines over the values' positions.

    Args:
        title: What a screen reader says, before the series and their last values.
        series: Values by name. Long ones are shown pale, with a running mean of a tenth of their length over them.
        low: What is at the bottom; by default the smallest value.
        high: What is at the top; by default the largest value.
        positions: Of values on the axis across; by default 0, 1, 2, ...
        across: What the axis across is.
        smooth: False leaves the running mean out.
    """
    shown = {name: _finite(values) for name, values in series.items() if any(v is not None for v in _finite(values))}
    if not shown:
        return _message(f"{title}: no values")
    numbers = [value for values in shown.values() for value in values if value is not None]
    bottom = min(numbers) if low is None else low
    top = max(numbers) if high is None else high
    if top <= bottom:
        bottom, top = bottom - 0.5 * (abs(bottom) or 1.0), bottom + 0.5 * (abs(bottom) or 1.0)
    longest = max(len(values) for values in shown.values())
    at = list(range(longest)) if positions is None else list(positions)
    names = _TOP + (_LEGEND * -(-len(shown) // _KEYS) if len(shown) > 1 else 0)

    def x(position: float) -> float:
        return _LEFT + (position - at[0]) / ((at[-1] - at[0]) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return (
            _HEIGHT - _BOTTOM - (min(max(value, bottom), top) - bottom) / (top - bottom) * (_HEIGHT - _BOTTOM - names)
        )

    parts = [_grid(y(value), value) for value in _ticks(bottom, top)]
    parts += [_text(x(value), _HEIGHT - 16, f"{value:g}", "middle") for value in _whole_ticks(at[0], at[-1])]
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 3, across, "end"))
    for number, (name, values) in enumerate(shown.items()):
        colour = COLOURS[number % len(COLOURS)]
        window = max(1, len(values) // 10) if smooth else 1
        if window > 1:
            parts.append(_line(values, at, x, y, colour, 0.3, 1.0))
        parts.append(_line(_means(values, window), at, x, y, colour, 1.0, 1.8))
        if len(shown) > 1:
            parts.append(_key(number, name, colour))
    ends = ", ".join(f"{name} {_last(values):.4g}" for name, values in shown.items())
    return _svg(_WIDTH, _HEIGHT, f"{title}: {ends}", parts)


def bar_chart(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars, one below the other."""
    if not values:
        return _message(f"{title}: no values")
    top = max(count for _, count in values) or 1
    room = _WIDTH - _LABEL - _NUMBER
    parts = []
    for number, (name, count) in enumerate(values):
        y, length = number * _BAR, room * count / top
        parts.append(_text(_LABEL - 8, y + 14, name if len(name) <= 30 else f"{name[:29]}…", "end"))
        bar = f"<rect x='{_LABEL}' y='{y + 3}' width='{length:.1f}' height='{_BAR - 6}' rx='2' fill='{COLOURS[0]}'/>"
        parts += [bar, _text(_LABEL + length + 6, y + 14, f"{count:g}", "start")]
    said = ", ".join(f"{name} {count:g}" for name, count in values)
    return _svg(_WIDTH, _BAR * len(values) + 4, f"{title}: {said}", parts)


def _svg(width: int, height: int, said: str, parts: Sequence[str]) -> str:
    """A picture that stands in a page and as a file of its own; white, so that it is read on dark pages too."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        f"role='img' aria-label='{escape(said)}' font-family='system-ui,sans-serif' font-size='12' fill='#1c2024'>"
        f"<rect width='{width}' height='{height}' fill='white'/>{''.join(parts)}</svg>"
    )


def _message(text: str) -> str:
    return _svg(_WIDTH, 32, text, [_text(8, 20, text, "start")])


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(text)}</text>"


def _grid(y: float, value: float) -> str:
    line = f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#dfe3e8'/>"
    return line + _text(_LEFT - 8, y + 4, f"{value:.4g}", "end")


def _key(number: int, name: str, colour: str) -> str:
    x = _LEFT + number % _KEYS * (_WIDTH - _LEFT - _RIGHT) / _KEYS
    y = 13 + _LEGEND * (number // _KEYS)
    shown = name if len(name) <= _LONGEST_KEY else f"{name[: _LONGEST_KEY - 1]}…"
    return f"<rect x='{x:.1f}' y='{y - 6}' width='12' height='4' fill='{colour}'/>" + _text(x + 18, y, shown, "start")


def _line(values: Series, at: Sequence[float], x: _Scale, y: _Scale, colour: str, opacity: float, width: float) -> str:
    """A line that is broken where there is no value; a value between two such has a dot."""
    drawn: list[list[tuple[float, float]]] = [[]]
    for position, value in zip(at, values, strict=False):
        if value is None:
            drawn.append([])
        else:
            drawn[-1].append((x(position), y(value)))
    pen = f"fill='none' stroke='{colour}' stroke-opacity='{opacity:g}' stroke-width='{width:g}'"
    lines = [" ".join(f"{a:.1f},{b:.1f}" for a, b in points) for points in drawn if len(points) > 1]
    dots = [points[0] for points in drawn if len(points) == 1]
    return "".join(f"<polyline {pen} points='{points}'/>" for points in lines) + "".join(
        f"<circle cx='{a:.1f}' cy='{b:.1f}' r='3' fill='{colour}' fill-opacity='{opacity:g}'/>" for a, b in dots
    )


def _finite(values: Series) -> list[float | None]:
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _means(values: Series, window: int) -> list[float | None]:
    means: list[float | None] = []
    for end, value in enumerate(values, start=1):
        near = [one for one in values[max(0, end - window) : end] if one is not None]
        means.append(sum(near) / len(near) if near and value is not None else None)
    return means


def _last(values: Series) -> float:
    return next(value for value in reversed(values) if value is not None)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two, about `_TICKS` of them."""
    raw = (high - low) / _TICKS
    size = 10.0 ** math.floor(math.log10(raw))
    width = next(step * size for step in (1, 2, 2.5, 5, 10) if step * size >= raw)
    first = math.ceil(low / width - 1e-9)
    return [number * width for number in range(first, math.floor(high / width + 1e-9) + 1)]


def _whole_ticks(low: float, high: float) -> list[float]:
    """The same, whole numbers alone."""
    if high <= low:
        return [low]
    found = [value for value in _ticks(low, high) if float(value).is_integer()]
    return found if all(b - a >= 1 for a, b in pairwise(found)) and found else [low, high]
