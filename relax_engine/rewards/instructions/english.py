"""Sentences, words and syllables of English text, by rule and without downloads.

Sentences end as in Punkt (Kiss and Strunk, 2006): at `.`, `?` or `!` before white space, except after the abbreviations
listed here and after initials; what closes a quotation stays with it. Words are those of the Penn Treebank.
"""

from __future__ import annotations

import re
import string

PUNCTUATION = string.punctuation
EDGES = string.punctuation + " "
LONGEST_WORD = 100


def words_of(text: str) -> frozenset[str]:
    """The words of a list that is written as running text."""
    return frozenset(text.split())


STOP_WORDS = words_of(
    """i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself
    it its itself they them their theirs themselves what which who whom this that these those am is are was were be been
    being have has had having do does did doing a an the and but if or because as until while of at by for with about
    against between into through during before after above below to from up down in out on off over under again further
    then once here there when where why how all any both each few more most other some such no nor not only own same so
    than too very s t can will just don should now d ll m o re ve y ain aren couldn didn doesn hadn hasn haven isn ma
    mightn mustn needn shan shouldn wasn weren won wouldn"""
)
PRONOUNS = words_of(
    """i me we us you he him she her it they them my mine our ours your yours his hers its their theirs myself ourselves
    yourself yourselves himself herself itself themselves this that these those who whom whose which what whoever
    whomever whatever whichever anybody anyone anything everybody everyone everything nobody nothing somebody someone
    something each either neither both all some any none"""
)
CONJUNCTIONS = words_of("and but for nor or so yet")
_ABBREVIATIONS = words_of(
    """dr mr mrs ms prof sr jr st vs e.g i.e u.s u.k u.n a.m p.m inc ltd co corp jan feb mar apr jun jul aug sep sept
    oct nov dec gen col maj capt lt sgt rep sen gov rev hon mt fig no vol pp d.c ph.d p.s"""
)
_END = re.compile(r"(?<=[.?!])(?P<closing>[\"')\]}]*)\s+(?=\S)")
_LAST_WORD = re.compile(r"(\S+?)[.]$")
_CONTRACTION = re.compile(r"(?i)(n't|'(?:s|m|d|ll|re|ve))$")
_TOKEN = re.compile(r"\.\.\.|--|``|''|[^\W_]+(?:[-'.,’_/&@][^\W_]+)*|[^\w\s]|_+")
_VOWELS = re.compile(r"[aeiouy]+")


def sentences(text: str) -> list[str]:
    """The sentences of `text`, stripped; a text without an end mark is one."""
    found, start = [], 0
    text = text.strip()
    for match in _END.finditer(text):
        end = match.start()
        if _ends_sentence(text[max(start, end - LONGEST_WORD) : end], text[match.end()]):
            found.append(text[start : match.end("closing")])
            start = match.end()
    if start < len(text):
        found.append(text[start:])
    return found


def word_tokens(text: str) -> list[str]:
    """Words and punctuation marks, contractions divided: `don't.` is `do`, `n't`, `.`."""
    tokens = []
    for token in _TOKEN.findall(text):
        contraction = _CONTRACTION.search(token)
        if contraction and contraction.start() > 0:
            tokens += [token[: contraction.start()], contraction[0]]
        else:
            tokens.append(token)
    return tokens


def word_count(text: str) -> int:
    """The number of runs of letters, digits and underscores."""
    return len(re.findall(r"\w+", text))


def without_punctuation(text: str) -> str:
    """`text` without ASCII punctuation."""
    return text.translate(str.maketrans("", "", string.punctuation))


def syllables(word: str) -> int:
    """How many syllables an English word has: groups of vowels, but for a silent `e` and `ed`; at least 1."""
    word = re.sub(r"[^a-z]", "", word.lower())
    count = len(_VOWELS.findall(word))
    if re.search(r"[^aeiouyl]e$|[^aeiouytd]ed$|[^aeiouy]les$|[^aeiouyszxcg]es$", word) and count > 1:
        count -= 1
    count += len(re.findall(r"ia(?!l$|n$)|[^qg]ua|io(?!n|us)|eo(?!n|us)|[aeiou]ing$|creat", word))
    return max(count, 1)


def _ends_sentence(before: str, following: str) -> bool:
    """Whether a mark at the end of `before` ends the sentence, if the next word begins with `following`."""
    if not before.endswith("."):
        return True
    word = _LAST_WORD.search(before)
    if word is None:
        return True
    name = word[1].strip("\"'([{*_").lower()
    if name in _ABBREVIATIONS or (len(name) == 1 and name.isalpha() and name != "i"):
        return False
    if name.isdecimal() or before.endswith(".."):
        return not following.islower()
    return True
