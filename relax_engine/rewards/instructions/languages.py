"""Which language a text is in, by script, letters and common words; for the languages that IFEval asks for.

What does not live here: a statistical model. Short or mixed texts in languages that share a script may be mistaken.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

SCRIPTS = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "THAI": "th",
    "BENGALI": "bn",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HEBREW": "he",
    "GREEK": "el",
    "ARMENIAN": "hy",
    "GEORGIAN": "ka",
    "CJK": "zh-cn",
}
"""Languages that their script gives away, by the first word of their letters' Unicode names."""

LETTERS = {
    "CYRILLIC": (("uk", "їєґі"), ("bg", "ъ"), ("ru", "ыэё")),
    "ARABIC": (("fa", "پچژگیک"), ("ur", "پچژگیکٹڈڑےںہھ"), ("ar", "ةىيك")),
}
COMMON = {
    "ru": "и в не на я что он с как это по но они мы из у за так же от",
    "uk": "і в не на що з як це та до є за він ми від але по для також",
    "bg": "и в не на се че да от за са като това по до със която което е",
    "hi": "है हैं के में की और को का से पर यह नहीं एक भी कि था ने हो",
    "mr": "आहे आहेत आणि च्या मध्ये हे ते या एक आहेत करण्यासाठी तर होते की",
    "ne": "छ छन् र को मा लाई हो यो पनि गर्न भएको हुन्छ छैन",
    "en": "the and of to in is that it for you with on are this be as have not was we they at or from by an will can",
    "es": "el la los las de que y en un una es por con para no se lo como más su al del está pero son muy",
    "pt": "o a os as de que e em um uma é por com para não se do da mais como são ao na no dos das você muito",
    "fr": "le la les de des et en un une est que pour dans qui ne pas sur avec il au du ce sont plus vous nous je",
    "de": "der die das und ist in den von zu mit ein eine nicht sie es ich auf für dem im auch als wir sind wird",
    "it": "il la i le di che e in un una è per con non del della si sono come più anche ma gli al questo da",
    "nl": "de het een en van is in dat op te voor met zijn niet aan ook als er maar om ik je wordt",
    "sv": "och att det i som en på är av för med till den har inte om ett jag men de kan",
    "pl": "i w nie na się z do to jest że jak o po za ale co są dla przez od być tym",
    "fi": "ja on ei se että ovat oli mutta myös kun hän tai ole joka niin kuin voi ne sen",
    "vi": "và của là có không cho một các được trong người với này những để khi tôi đã rằng",
    "sw": "na ya wa kwa ni katika la za kama hii cha kuwa si yake au hiyo watu lakini wake mimi",
    "tr": "ve bir bu için ile da de çok olarak daha olan gibi ne ama en kadar var değil",
    "id": "yang dan di itu dengan untuk tidak ini dari dalam akan pada adalah saya ke bisa karena",
}
_BY_SCRIPT = {"CYRILLIC": ("ru", "uk", "bg"), "DEVANAGARI": ("hi", "mr", "ne")}
_COMMON = {language: frozenset(words.split()) for language, words in COMMON.items()}
_WORD = re.compile(r"[^\W\d_]+(?:[\u0900-\u097f]+[^\W\d_]*)*")


def language_of(text: str) -> str | None:
    """The ISO 639-1 code of the language of `text` (`zh-cn` for Chinese); None if it has no letters."""
    scripts = Counter(
        unicodedata.name(character, "?").split(maxsplit=1)[0].partition("-")[0]
        for character in text
        if character.isalpha()
    )
    if not scripts:
        return None
    if (scripts["HIRAGANA"] + scripts["KATAKANA"]) * 10 > scripts.total():
        return "ja"
    script = scripts.most_common(1)[0][0]
    if script in SCRIPTS:
        return SCRIPTS[script]
    words = _WORD.findall(unicodedata.normalize("NFC", text).lower())
    latin = [language for language in _COMMON if language not in ("ru", "uk", "bg", "hi", "mr", "ne")]
    scores = {language: sum(word in _COMMON[language] for word in words) for language in _BY_SCRIPT.get(script, latin)}
    if script in LETTERS:
        for language, letters in LETTERS[script]:
            scores[language] = scores.get(language, 0) + sum(text.count(letter) for letter in letters)
    best = max(scores, key=lambda language: scores[language])
    return best if scores[best] else {"LATIN": "en", "CYRILLIC": "ru", "DEVANAGARI": "hi"}.get(script, best)


def is_language(text: str, code: str) -> bool:
    """Whether `text` is in the language `code`; as in IFEval, a text without letters passes for any."""
    found = language_of(text)
    return found is None or found == code or found.partition("-")[0] == code
