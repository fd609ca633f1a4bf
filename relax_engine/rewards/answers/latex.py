r"""Text of mathematical answers in one canonical spelling, so that most verdicts need no computer algebra.

The rules are those with which the MATH data set is graded (Hendrycks et al., arXiv 2103.03874, appendix): layout, units
and degree signs go, short fractions are written out. What does not live here: arithmetic (`plain_number`) and algebra
(`symbolic`).
"""

from __future__ import annotations

import re

_REMOVED = ("\n", "\\!", "\\left", "\\right", "^\\circ", "^{\\circ}", "\\$", "\\%", "%")
_UNIT = re.compile(r"\\text\{ [^{}]*\}$")
_NUMBER_WITHOUT_ZERO = re.compile(r"(?<=[ {])\.")
_BARE_ROOT = re.compile(r"\\sqrt([^{\[\\])")
_BARE_FRACTION = re.compile(r"\\frac(?:(?P<a>[^{\\])|(?P<group>\{[^{}]*\}))(?P<b>[^{\\])")
_BARE_TOP = re.compile(r"\\frac([^{\\])(?=\{)")
_SLASH = re.compile(r"(-?\d+)/(-?\d+)")
_UNICODE = str.maketrans(
    {
        **{
            "−": "-",
            "–": "-",
            "﹣": "-",
            "－": "-",
            "＋": "+",
            "×": "\\times ",
            "÷": "/",
            "·": "\\cdot ",
            "∙": "\\cdot ",
        },
        **{"°": "^\\circ", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup "},
        **{"½": "\\frac{1}{2}", "⅓": "\\frac{1}{3}", "⅔": "\\frac{2}{3}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}"},
        **{"，": ",", "（": "(", "）": ")", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "θ": "\\theta "},
        **{"²": "^2", "³": "^3", "±": "\\pm ", "∈": "\\in ", "α": "\\alpha ", "β": "\\beta "},
    }
)
_UNICODE_ROOT = re.compile(r"√\s*(\([^()]*\)|\{[^{}]*\}|[\w.]+)")
_SHORT_BINOMIAL = re.compile(r"\\([dt]?binom)(\d)(\d)")
_DEGREES = re.compile(r"([\d.]+)\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})")


def plain_latex(text: str) -> str:
    r"""LaTeX with one way to write Unicode symbols, `\binom52`, the empty set and the angles of functions."""
    if not text.isascii():
        text = _UNICODE_ROOT.sub(lambda match: "\\sqrt{" + match[1].strip("(){}") + "}", text).translate(_UNICODE)
    text = _SHORT_BINOMIAL.sub(r"\\\1{\2}{\3}", text).replace("\\varnothing", "\\emptyset")
    if any(function in text for function in ("\\sin", "\\cos", "\\tan", "\\cot")):
        text = _DEGREES.sub(r"(\\frac{\1 \\pi}{180})", text)
    return text


def canonical(text: str) -> str:
    r"""One spelling for answers that differ in layout, units or the way a fraction is written.

    `\dfrac12`, `1/2`, `0.5` and `\frac{1}{2}` are the same, and so are `10\%` and `10`, `45^\circ` and `45`,
    `x = 5` and `5`, `5 \text{ cm}` and `5`. An empty result compares equal to nothing.
    """
    text = text.replace("\\\\", "\\").replace("tfrac", "frac").replace("dfrac", "frac")
    for markup in _REMOVED:
        text = text.replace(markup, "")
    text = _UNIT.sub("", text)
    text = _NUMBER_WITHOUT_ZERO.sub("0.", text)
    if text.startswith("."):
        text = "0" + text
    left, equals, right = text.partition("=")
    if equals and len(left.strip()) <= 2 and "=" not in right:
        text = right
    text = _BARE_ROOT.sub(r"\\sqrt{\1}", text).replace(" ", "")
    text = _BARE_FRACTION.sub(_full_fraction, text)
    text = _BARE_TOP.sub(r"\\frac{\1}", text)
    if text == "0.5":
        return "\\frac{1}{2}"
    slash = _SLASH.fullmatch(text)
    return f"\\frac{{{slash[1]}}}{{{slash[2]}}}" if slash else text


def _full_fraction(match: re.Match[str]) -> str:
    top = match["a"] if match["a"] is not None else match["group"][1:-1]
    return f"\\frac{{{top}}}{{{match['b']}}}"
