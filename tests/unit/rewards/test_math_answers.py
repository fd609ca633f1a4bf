"""Which answers `math` takes for the same, and that no answer can hold it up."""

from __future__ import annotations

import time

import pytest

from relax_engine.rewards.boxed import last_boxed
from relax_engine.rewards.math import same_answer

SAME = [
    # fractions, decimals, percentages
    *(("1/2", "\\frac{1}{2}"), ("0.5", "\\tfrac12"), ("-\\frac12", "\\frac{1}{-2}"), ("\\frac13", "0.333333")),
    *(("50\\%", "0.5"), ("0.5", "50\\%"), ("50\\%", "50"), ("10", "10 \\text{ percent}")),
    *(("1\\frac{1}{2}", "\\frac{3}{2}"), ("\\frac32", "1 1/2"), ("-1\\frac{1}{2}", "-1.5")),
    *(("0.\\overline{3}", "\\frac13"), ("0.1\\overline{6}", "1/6"), (".5", "0.50"), ("5", "5.")),
    # thousands, powers of ten, signs
    *(("1234", "1,234"), ("1234567", "1{,}234{,}567"), ("1,234,567", "1\\,234\\,567")),
    *(("6.02\\times10^{23}", "6.02e23"), ("10^{10}", "10000000000"), ("-5", "−5"), ("\\infty", "∞")),
    # units, degrees, currency
    *(
        ("45^\\circ", "45"),
        ("45", "45°"),
        ("45", "45 \\text{ degrees}"),
        ("5", "5\\text{cm}"),
        ("5", "5 \\, \\mathrm{m}"),
    ),
    *(("\\$5", "5.00"), ("\\sin 30^\\circ", "\\frac12")),
    # intervals, tuples, sets, matrices
    *(("(1,2)", "(1, 2)"), ("[1,2)", "\\left[1,2\\right)"), ("[0,1]\\cup[2,3]", "[2,3]\\cup[0,1]")),
    *(("\\{1,2\\}", "\\{2,1\\}"), ("2,3", "2 \\text{ and } 3"), ("x=2 \\text{ or } x=3", "2,3"), ("\\pm 2", "2,-2")),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}1 & 2\\\\ 3 & 4\\end{bmatrix}"),
    # expressions
    *(("(x+1)^2", "x^2+2x+1"), ("\\sqrt{2}", "√2"), ("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}"), ("5!", "120")),
    *(("x=5", "5"), ("5", "x = 5"), ("\\binom52", "10"), ("\\log_2 8", "3"), ("\\emptyset", "\\varnothing")),
    # words and choices
    *(("\\text{Monday}", "monday"), ("yes", "\\text{Yes}"), ("\\text{Neither}", "neither.")),
    *(("10:30 \\text{ a.m.}", "10:30 a.m."), ("\\text{II}", "II")),
    *(("C", "\\text{(C)}"), ("C", "(C) 12"), ("C", "\\textbf{(C)}\\ 12"), ("(C)", "c"), ("B", "option B")),
    # boxes and dollars around either
    *(("$5$", "5"), ("\\boxed{4}", "4"), ("\\frac{1}{2}", "$0.5$")),
    ("10^{10^{10}}", "10^{10^{10}}"),
]
DIFFERENT = [
    *(
        ("", ""),
        (" ", ""),
        ("5", ""),
        ("-5", "5"),
        ("\\frac13", "0.33"),
        ("12345", "1,2345"),
        ("\\frac{11}{2}", "1\\frac12"),
    ),
    *(
        ("(1,2)", "[1,2]"),
        ("(1,2)", "(2,1)"),
        ("(-\\infty, 3)", "x \\le 3"),
        ("\\infty", "-\\infty"),
        ("2\\pi", "6.28"),
    ),
    *(("\\text{no}", "on"), ("\\text{even}", "\\text{odd}"), ("C", "D"), ("C", "A, B or C"), ("12:30", "12:31")),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\4&3\\end{pmatrix}"),
]
BOMBS = [
    *("10^{10^{10}}", "9^9^9^9", "9^{9^{9^{9^{9}}}}", "2**(2**(2**100))", "(10!)!!", "((9!)!)!", "9999999999!"),
    *(
        "(x+1)^{100000}",
        "\\binom{10^9}{10^8}",
        "7" * 3000,
        "(" * 500 + "7" + ")" * 500,
        "\\frac{" * 300 + "7" + "}{1}" * 300,
    ),
    *(" $" * 4000, "*" * 5000, "(" * 9000, "\\text{" * 1000, "a " * 4000, "3" + " " * 9000 + "x", "% " * 4000),
    *("{" * 5000, "\\sqrt{" * 2000, "1+" * 20000 + "1", "\\prod_{k=1}^{1000000000} k"),
]


@pytest.mark.parametrize(("label", "answer"), SAME)
def test_the_same(label: str, answer: str) -> None:
    assert same_answer(label, answer)


@pytest.mark.parametrize(("label", "answer"), DIFFERENT)
def test_different(label: str, answer: str) -> None:
    assert not same_answer(label, answer)


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[:12])
def test_no_answer_takes_long(bomb: str) -> None:
    started = time.monotonic()
    for label in ("3", "C", "\\text{Monday}"):
        assert not same_answer(label, bomb)
        assert not same_answer(bomb, label)
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\boxed{1} and \\boxed{\\frac{a}{b}}", "\\frac{a}{b}"),
        ("\\boxed{5", None),
        ("\\boxed{{5}", None),
        ("\\boxed", None),
        ("\\boxed 5$ more", "5"),
        ("x" * 1_000_000 + "\\boxed{7}" + "y" * 1_000_000, "7"),
    ],
)
def test_boxes(text: str, content: str | None) -> None:
    assert last_boxed(text) == content
