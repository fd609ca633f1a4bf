"""IFBench's instructions `custom:`, small tasks with one right answer, arXiv 2507.02833."""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import re
import string
import unicodedata

from relax_engine.rewards.instructions.checks import check
from relax_engine.rewards.instructions.english import EDGES, sentences, without_punctuation

MULTIPLES = [str(number) for number in range(14, 51, 7)]
AFRICAN_COUNTRIES = 52
CAPITALS = """
    Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw London
    Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb
"""
CITY_HEADER = ["ID", "Country", "City", "Year", "Count"]
NAPOLEON = (datetime.date(1769, 1, 1), datetime.date(1821, 12, 31))

_QUESTION = re.compile(r"\n*(?:Question \d+[.|):;]?\s*)")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_PRODUCTS = re.compile(r'("?)ProductID\1,[ \t]*("?)Category\2,[ \t]*("?)Brand\3,[ \t]*("?)Price\4,[ \t]*("?)Stock\5')
_STUDENTS = re.compile(r'("?)StudentID\1\t *("?)Subject\2\t *("?)Grade\3\t *("?)Semester\4\t *("?)Score\5')
_SPECIAL = re.compile(r'".*[^\d\w\s].*"')


@check("custom:multiples")
def multiples_of_seven(response: str) -> bool:
    """The multiples of 7 from 14 to 49, and no other number."""
    return re.findall(r"\d+", response.replace(",", ", ")) == MULTIPLES


@check("custom:mcq_count_length")
def growing_questions(response: str) -> bool:
    """Four questions with five options each, every question longer than the one before."""
    if not response.startswith("Question"):
        return False
    questions = [question.strip() for question in _QUESTION.split(response) if question.strip()]
    lengths = []
    for question in questions:
        lines = [line.strip() for line in question.split("\n")]
        options = [bool(_OPTION.match(line)) for line in lines]
        if sum(options) != 5:
            return False
        lengths.append(len(" ".join(lines[: options.index(True)]).strip()))
    return len(questions) == 4 and all(before < after for before, after in itertools.pairwise(lengths))


@check("custom:reverse_newline")
def countries_backwards(response: str) -> bool:
    """The countries of Africa in reverse alphabetical order from Zimbabwe, one a line."""
    lines = [text for line in response.split("\n") if (text := line.strip(EDGES))]
    first = next((index for index, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    names = [_ascii(line) for line in lines[first:]]
    return len(names) >= AFRICAN_COUNTRIES and names == sorted(names, reverse=True)


@check("custom:word_reverse")
def words_backwards(response: str) -> bool:
    """One sentence that, read backwards word by word, speaks of the bald eagle."""
    text = " ".join(reversed(without_punctuation(response.lower()).split()))
    return "bald eagle" in text and sentences(text) == [text]


@check("custom:character_reverse")
def characters_backwards(response: str) -> bool:
    """The bald eagle, read backwards letter by letter."""
    return "elgae dlab" in response.lower()


@check("custom:sentence_alphabet")
def sentences_from_a_to_z(response: str) -> bool:
    """Twenty-six sentences whose first letters are the alphabet."""
    return [sentence.lstrip()[:1].lower() for sentence in sentences(response)] == list(string.ascii_lowercase)


@check("custom:european_capitals_sort")
def capitals_by_latitude(response: str) -> bool:
    """The capitals of Europe from north to south, divided by commas."""
    return tuple(name.strip() for name in _ascii(response).split(",") if name.strip()) == tuple(CAPITALS.split())


@check("custom:csv_city")
def csv_of_cities(response: str) -> bool:
    """A header and seven rows of five fields."""
    rows = _table(response)
    return len(rows) == 8 and rows[0] == CITY_HEADER and all(len(row) == 5 for row in rows)


@check("custom:csv_special_character")
def csv_with_special_characters(response: str) -> bool:
    """A header and fourteen rows of five fields, one of which is quoted and has a special character."""
    rows = _table(response.replace('"', '"""'))
    if not _PRODUCTS.fullmatch(response.split("\n")[0].strip()) or len(rows) != 15:
        return False
    return all(len(row) == 5 for row in rows[1:]) and any(_SPECIAL.match(field) for row in rows[1:] for field in row)


@check("custom:csv_quotes")
def csv_of_quoted_fields(response: str) -> bool:
    """A header and three rows of five fields, divided by tabs, all quoted."""
    rows = _table(response.replace('"', '"""'), "\t")
    if not _STUDENTS.fullmatch(response.split("\n")[0].strip()) or len(rows) != 4:
        return False
    return all(len(row) == 5 and all(re.fullmatch(r'\s*".*"\s*', field, re.DOTALL) for field in row) for row in rows)


@check("custom:date_format_list")
def dates_of_napoleon(response: str) -> bool:
    """Dates `YYYY-MM-DD`, divided by commas, within Napoleon's life."""
    dates = [text.strip() for text in response.strip().split(",")]
    return all(_DATE.fullmatch(text) and _in_napoleons_life(text) for text in dates)


def _in_napoleons_life(text: str) -> bool:
    try:
        return NAPOLEON[0] <= datetime.date.fromisoformat(text) <= NAPOLEON[1]
    except ValueError:
        return False


def _table(text: str, delimiter: str = ",") -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return []


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
