"""The 25 instructions of IFEval, arXiv 2311.07911."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from relax_engine.rewards.instructions.checks import check, compare
from relax_engine.rewards.instructions.english import sentences, word_count, word_tokens
from relax_engine.rewards.instructions.languages import is_language

CONSTRAINED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def occurrences(text: str, phrase: str) -> int:
    """How often `phrase` occurs, whatever its case; also inside of words, as IFEval counts."""
    return len(re.findall(re.escape(phrase), text, re.IGNORECASE))


@check("keywords:existence")
def has_keywords(response: str, keywords: Sequence[str]) -> bool:
    """All keywords occur."""
    return all(occurrences(response, keyword) for keyword in keywords)


@check("keywords:frequency")
def keyword_frequency(response: str, keyword: str, frequency: int, relation: str = "at least") -> bool:
    """A keyword occurs so often."""
    return compare(occurrences(response, keyword.strip()), relation, frequency)


@check("keywords:forbidden_words")
def no_forbidden_words(response: str, forbidden_words: Sequence[str]) -> bool:
    """None of the words occurs as a whole word."""
    return not any(re.search(rf"\b{re.escape(word)}\b", response, re.IGNORECASE) for word in forbidden_words)


@check("keywords:letter_frequency")
def letter_frequency(response: str, letter: str, let_frequency: int, let_relation: str = "at least") -> bool:
    """A letter occurs so often, in either case."""
    return compare(response.lower().count(letter.strip().lower()), let_relation, let_frequency)


@check("language:response_language")
def response_language(response: str, language: str) -> bool:
    """The response is in a language."""
    return is_language(response, language)


@check("length_constraints:number_sentences")
def number_of_sentences(response: str, num_sentences: int, relation: str) -> bool:
    """So many sentences."""
    return compare(len(sentences(response)), relation, num_sentences)


@check("length_constraints:number_paragraphs")
def number_of_paragraphs(response: str, num_paragraphs: int) -> bool:
    """Exactly so many paragraphs, divided by `***`; none between two dividers is empty."""
    paragraphs = [paragraph.strip() for paragraph in re.split(r"\s?\*\*\*\s?", response)]
    if not all(paragraphs[1:-1]):
        return False
    return sum(map(bool, paragraphs)) == num_paragraphs


@check("length_constraints:number_words")
def number_of_words(response: str, num_words: int, relation: str) -> bool:
    """So many words."""
    return compare(word_count(response), relation, num_words)


@check("length_constraints:nth_paragraph_first_word")
def nth_paragraph_first_word(response: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """So many paragraphs, divided by empty lines, and the n-th begins with the word."""
    parts = response.split("\n\n")
    count = sum(bool(part.strip()) for part in parts)
    if not 1 <= nth_paragraph <= count or not parts[nth_paragraph - 1].strip():
        return False
    word = parts[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    return count == num_paragraphs and re.split(r"[.,?!'\"]", word)[0].lower() == first_word.lower()


@check("detectable_content:number_placeholders")
def placeholders(response: str, num_placeholders: int) -> bool:
    """At least so many placeholders in square brackets."""
    count = 0
    for line in response.split("\n"):
        start = line.find("[")
        while start >= 0 and (end := line.find("]", start)) >= 0:
            count += 1
            start = line.find("[", end)
    return count >= num_placeholders


@check("detectable_content:postscript")
def postscript(response: str, postscript_marker: str) -> bool:
    """A postscript that begins with the marker."""
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    marker = postscript_marker.strip()
    return re.search(patterns.get(marker, re.escape(marker.lower())), response.lower()) is not None


@check("detectable_format:number_bullet_lists")
def bullet_points(response: str, num_bullets: int) -> bool:
    """Exactly so many lines that begin with `* ` or `-`."""
    starred = re.findall(r"^[^\S\n]*\*[^\*].*$", response, re.MULTILINE)
    return len(starred) + len(re.findall(r"^[^\S\n]*-.*$", response, re.MULTILINE)) == num_bullets


@check("detectable_format:constrained_response")
def constrained_response(response: str) -> bool:
    """One of the three answers, yes, no or maybe, occurs."""
    return any(answer in response for answer in CONSTRAINED_ANSWERS)


@check("detectable_format:number_highlighted_sections")
def highlighted_sections(response: str, num_highlights: int) -> bool:
    """At least so many `*highlighted*` sections; as in IFEval, `**these**` are found twice."""
    single = re.findall(r"\*[^\n\*]*\*", response)
    double = re.findall(r"\*\*[^\n\*]*\*\*", response)
    return sum(bool(section.strip("*").strip()) for section in (*single, *double)) >= num_highlights


@check("detectable_format:multiple_sections")
def multiple_sections(response: str, section_spliter: str, num_sections: int) -> bool:
    """At least so many sections, each headed by the word and a number."""
    return len(re.findall(rf"\s?{re.escape(section_spliter.strip())}\s?\d+\s?", response)) >= num_sections


@check("detectable_format:json_format")
def json_format(response: str) -> bool:
    """The whole response is JSON, possibly in a fenced block."""
    text = re.sub(r"^```(?:json|Json|JSON)?|```$", "", response.strip()).strip()
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


@check("detectable_format:title")
def title(response: str) -> bool:
    """A title in double angular brackets."""
    return any(line[line.find("<<") : line.rfind(">>")].strip("<> ") for line in response.split("\n") if "<<" in line)


@check("combination:two_responses")
def two_responses(response: str) -> bool:
    """Two different responses, divided by six asterisks."""
    parts = [part.strip() for part in response.split("******")]
    if not all(parts[1:-1]):
        return False
    filled = [part for part in parts if part]
    return len(filled) == 2 and filled[0] != filled[1]


@check("combination:repeat_prompt")
def repeat_prompt(response: str, prompt_to_repeat: str) -> bool:
    """The response begins with the prompt."""
    return response.strip().lower().startswith(prompt_to_repeat.strip().lower())


@check("startend:end_checker")
def ends_with(response: str, end_phrase: str) -> bool:
    """The response ends with the phrase, in any case."""
    return response.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@check("startend:quotation")
def quotation(response: str) -> bool:
    """The whole response is in double quotation marks."""
    text = response.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


@check("change_case:capital_word_frequency")
def capital_words(response: str, capital_frequency: int, capital_relation: str = "at least") -> bool:
    """So many words are written in capitals."""
    return compare(sum(word.isupper() for word in word_tokens(response)), capital_relation, capital_frequency)


@check("change_case:english_capital")
def english_capitals(response: str) -> bool:
    """English, in capitals alone."""
    return response.isupper() and is_language(response, "en")


@check("change_case:english_lowercase")
def english_lowercase(response: str) -> bool:
    """English, in small letters alone."""
    return response.islower() and is_language(response, "en")


@check("punctuation:no_comma")
def no_comma(response: str) -> bool:
    """There is no comma."""
    return "," not in response
