"""Two ways to write one answer become one text."""

import re


def normalise(text: str) -> str:
    """Without spaces, `\\left`, dollar signs, and with `\\frac12` written out."""
    text = re.sub(r"\\(left|right|,|!)|\$|\s", "", text).replace("dfrac", "frac").rstrip(".")
    return re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)


def number(text: str) -> float | None:
    """The value of a decimal number or a fraction, else None."""
    fraction = re.fullmatch(r"\\frac\{(-?\d+)\}\{(\d+)\}|(-?\d+)/(\d+)", normalise(text))
    if fraction:
        top, bottom = fraction.group(1) or fraction.group(3), fraction.group(2) or fraction.group(4)
        return int(top) / int(bottom) if int(bottom) else None
    try:
        return float(normalise(text).replace(",", ""))
    except ValueError:
        return None
