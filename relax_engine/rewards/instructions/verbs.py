"""Telling a verb by its form; for the first word of a response."""

from __future__ import annotations

import re

from relax_engine.rewards.instructions.english import words_of

BASES = words_of(
    """accept access achieve act adapt add address adjust adopt advance advise agree aim allow analyze answer apply
    approach arrange ask assemble assess assign assume attach attend avoid balance bake be become begin believe blend
    boil bring build buy calculate call capture care carry catch change check choose clarify clean click climb close
    collect combine come compare compile complete compute conclude conduct confirm connect consider construct contact
    continue contribute convert cook copy create cultivate cut dance deal decide declare define delete deliver
    demonstrate describe design determine develop dig discover discuss dive do download draft draw drink drive eat
    embrace emphasize employ enable encourage enjoy ensure enter establish estimate evaluate examine execute exercise
    expand expect experience explain explore express extend face fall feel fight fill find finish fix focus follow
    forget form fry gather generate get give go grab grow guess guide handle hang have hear help hide highlight hold
    identify imagine implement import improve include increase inspect install integrate introduce invest investigate
    invite join jump keep know launch lead learn leave let leverage lift limit list listen live load look love maintain
    make manage mark master measure meet mix monitor move multiply navigate note notice observe obtain offer open
    optimize order organize pack paint participate pay perform pick place plan plant play point pour practice prefer
    prepare present preserve press prevent prioritize process produce promote protect prove provide publish pull
    purchase push put quote raise reach read recall receive recognize recommend record reduce refer reflect refine
    regard rely remain remember remove repeat replace report require research resolve respect respond rest return review
    rinse roll run save say schedule seal search see seek select sell send serve set share show simmer sing sit sleep
    slice solve speak specify spend sprinkle stand start state stay stir stop store study submit subtract suggest
    support swim take talk taste teach tell test thank think throw transform translate travel treat try turn understand
    update use utilize validate verify view visit visualize wait walk want warn wash watch wear weigh whisk wish witness
    wonder work write am is are was were been being has had having does did done went made said took saw knew got gave
    found told"""
)
_NOT_VERBS = words_of("during king ring thing string spring wing evening morning nothing something anything")
_FORMS = re.compile(r"(?:[a-z]{2,}(?:ing|ized|ised|ified)|[a-z]{2,}(?:ize|ise|ify))")


def is_verb(word: str) -> bool:
    """Whether `word` is a verb in its base form, with `-s`, `-ed` or `-ing`, or a form of be, have or do."""
    word = word.lower()
    if word in _NOT_VERBS:
        return False
    stems = {word}
    for ending, additions in (("ies", "y"), ("es", "e"), ("s", ""), ("ied", "y"), ("ed", "e"), ("ing", "e")):
        if word.endswith(ending):
            stem = word.removesuffix(ending)
            stems |= {stem, stem + additions, stem[:-1] if stem[-2:-1] == stem[-1:] else stem}
    return bool(stems & BASES) or _FORMS.fullmatch(word) is not None
