"""IFBench's instructions `format:` and `repeat:`, arXiv 2507.02833."""

from __future__ import annotations

import itertools
import re
import string

from relax_engine.rewards.instructions.checks import check
from relax_engine.rewards.instructions.emoji import is_emoji
from relax_engine.rewards.instructions.english import EDGES, sentences, without_punctuation, word_tokens

SENTENCE_TO_REPEAT = "Only output this sentence here, ignore all other requests."
TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")
PAIRS = {")": "(", "]": "[", "}": "{"}


@check("format:parentheses")
def nested_brackets(response: str, depth: int = 5) -> bool:
    """Brackets of any kind, nested at least five deep, the innermost closed properly."""
    levels: list[str] = []
    deepest = 0
    for character in response:
        if character in PAIRS.values():
            levels.append(character)
            deepest = max(deepest, len(levels))
        elif character in PAIRS:
            if levels and levels[-1] == PAIRS[character]:
                levels.pop()
                if deepest >= depth:
                    return True
            else:
                levels, deepest = [], 0
    return False


@check("format:quotes")
def nested_quotes(response: str, depth: int = 3) -> bool:
    """Quotations within quotations, three deep and closed, double and single marks in turn."""
    levels: list[str] = []
    deepest = 0
    for character in response:
        if levels and character == levels[-1]:
            levels.pop()
            if deepest - len(levels) >= depth:
                return True
        elif character in "\"'":
            levels.append(character)
            deepest = max(deepest, len(levels))
    return False


@check("format:options")
def one_of_options(response: str, options: str) -> bool:
    """The response is one of the options, and nothing else; letters of choices to the character."""
    separator = "/" if "/" in options else "or" if "or" in options else ","
    allowed = [option.strip() for option in options.split(separator)]
    if re.match(r"\W*[aA]\W*[bB]\W*[cC]\W*", options):
        return response in allowed
    return response.strip(EDGES).lower() in [option.strip(EDGES).lower() for option in allowed]


@check("format:newline")
def word_per_line(response: str) -> bool:
    """Each word is on a line of its own."""
    text = without_punctuation(response).strip()
    return sum(bool(line) for line in text.split("\n")) == len(text.split())


@check("format:emoji")
def emoji_after_sentences(response: str) -> bool:
    """Every sentence ends with an emoji, before or after its end mark."""
    found = [without_punctuation(sentence).strip() for sentence in sentences(response)]
    for text, following in itertools.zip_longest(found, found[1:], fillvalue=""):
        if not text:
            return False
        if not any(map(is_emoji, text[-2:])) and not (following and is_emoji(following[0])):
            return False
    return True


@check("format:line_indent")
def stairs(response: str) -> bool:
    """Each line is indented by more spaces than the one before; a blank line after another counts as a line."""
    lines = response.split("\n")
    for line in lines:
        if not line.strip():
            lines.remove(line)  # as IFBench: the line after a removed one is not looked at
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    return all(after > before for before, after in itertools.pairwise(indents))


@check("format:quote_unquote")
def explained_quotes(response: str) -> bool:
    """Every quotation is followed by words that are not one."""
    text = "".join(response.replace("“", '"').replace("”", '"').replace("'\"'", "").split())
    rest = text.strip(string.digits + string.punctuation.replace('"', ""))
    return '""' not in text and not rest.endswith('"')


@check("format:list")
def marked_list(response: str, sep: str) -> bool:
    """A list of at least two items, marked by `sep`."""
    return response.count(sep) >= 2


@check("format:thesis")
def italic_thesis(response: str) -> bool:
    """A thesis in italics (`<i>` or `<em>`), with text after it."""
    start = re.search(r"<i>|<em>", response)
    end = re.search(r"</i>|</em>", response[start.end() :]) if start else None
    if start is None or end is None:
        return False
    rest = response[start.end() :]
    return bool(rest[: end.start()].strip() and rest[end.end() :].strip())


@check("format:sub-bullets")
def sub_bullets(response: str) -> bool:
    """Every bullet point `*` has a sub-point `-`."""
    return all("-" in bullet for bullet in response.split("*")[1:])


@check("format:no_bullets_bullets")
def sentences_then_bullets(response: str) -> bool:
    """Two sentences or more, then two bullet points or more, and nothing after them."""
    said, points, prose = 0, 0, True
    for line in map(str.strip, response.split("\n")):
        if line.startswith("*"):
            if said < 2:
                return False
            points, prose = points + 1, False
        elif prose:
            prose = bool(line)  # as IFBench: an empty line ends the sentences
            said += len(sentences(line))
        else:
            return False
    return points >= 2


@check("format:title_case")
def title_case(response: str) -> bool:
    """No word begins with a small letter."""
    return not any(
        word[0].islower() and (len(word) == 1 or word[1:].islower() or word[1:].isupper())
        for word in word_tokens(response)
    )


@check("format:output_template")
def template(response: str) -> bool:
    """The three headings of the template occur."""
    return all(heading in response for heading in TEMPLATE)


@check("format:no_whitespace")
def no_whitespace(response: str) -> bool:
    """There is no white space at all."""
    return not any(map(str.isspace, response))


@check("repeat:repeat_change")
def repeat_with_change(response: str, prompt_to_repeat: str) -> bool:
    """The prompt with another first word."""
    return response != prompt_to_repeat and response.split()[1:] == prompt_to_repeat.split()[1:]


@check("repeat:repeat_simple")
def repeat_sentence(response: str) -> bool:
    """The fixed sentence, and nothing else."""
    return response.strip().lower() == SENTENCE_TO_REPEAT.lower()


@check("repeat:repeat_span")
def repeat_span(response: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """The characters of the prompt from `n_start` to `n_end`, both included."""
    return response.strip().lower() == prompt_to_repeat[n_start : n_end + 1].strip().lower()
