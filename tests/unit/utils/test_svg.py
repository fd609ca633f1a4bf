"""Charts: where values are drawn, what is said of them, and that names cannot become markup."""

import math
import re
from xml.etree import ElementTree

import pytest

from relax_engine.utils.svg import bar_chart, line_chart

BOTTOM, TOP, LEFT, RIGHT = 226.0, 14.0, 62.0, 624.0


def points(svg: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r"points='([^']+)'", svg)
    return [[(float(x), float(y)) for x, y in (p.split(",") for p in line.split())] for line in lines]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


def test_the_smallest_value_is_at_the_bottom_and_the_largest_at_the_top() -> None:
    (line,) = points(line_chart("reward", {"a": [0.0, 0.5, 1.0]}, smooth=False))
    assert line == [(LEFT, BOTTOM), ((LEFT + RIGHT) / 2, (BOTTOM + TOP) / 2), (RIGHT, TOP)]


def test_a_gap_breaks_the_line_and_a_lonely_value_is_a_dot() -> None:
    svg = line_chart("x", {"a": [1.0, 2.0, None, 3.0, math.nan, 4.0, 5.0]}, smooth=False)
    assert [len(line) for line in points(svg)] == [2, 2]
    assert svg.count("<circle") == 1


def test_long_series_have_a_running_mean_of_a_tenth() -> None:
    values = [float(n % 2) for n in range(40)]
    pale, mean = points(line_chart("x", {"a": values}, low=0.0, high=1.0))
    assert len(pale) == len(mean) == 40
    assert {y for _, y in mean[4:]} == {(BOTTOM + TOP) / 2}


def test_positions_are_those_given() -> None:
    (line,) = points(line_chart("x", {"a": [0.0, 1.0, 2.0]}, positions=[0, 1, 4], smooth=False))
    assert [x for x, _ in line] == [LEFT, pytest.approx(LEFT + (RIGHT - LEFT) / 4, abs=0.06), RIGHT]


def test_axes_have_round_numbers() -> None:
    shown = texts(line_chart("x", {"a": [0.0, 0.93] * 30}))
    assert {"0", "0.2", "0.4", "0.6", "0.8", "20", "40", "step"} <= set(shown)


@pytest.mark.parametrize("value", [0.0, -3.0, 7.0])
def test_a_constant_is_in_the_middle(value: float) -> None:
    (line,) = points(line_chart("x", {"a": [value, value]}, smooth=False))
    assert {y for _, y in line} == {(BOTTOM + TOP) / 2}


def test_what_a_screen_reader_says_and_the_key_of_several_lines() -> None:
    svg = line_chart("reward", {"one": [0.0, 0.25], "two <b>": [1.0, None]})
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == "reward: one 0.25, two <b> 1"
    assert {"one", "two <b>"} <= set(texts(svg))
    assert "<b>" not in svg


def test_no_values_are_said() -> None:
    assert texts(line_chart("reward", {"a": [], "b": [None]})) == ["reward: no values"]
    assert texts(bar_chart("sources", [])) == ["sources: no values"]


def test_bars_are_as_long_as_their_numbers() -> None:
    svg = bar_chart("sources", [("a", 10), ("b <i>", 5), ("c", 0)])
    widths = [float(width) for width in re.findall(r"height='14' rx='2'|width='([\d.]+)' height='14'", svg)]
    assert widths == [380.0, 190.0, 0.0]
    assert texts(svg) == ["a", "10", "b <i>", "5", "c", "0"]
