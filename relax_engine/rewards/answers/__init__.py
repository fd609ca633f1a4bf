"""Comparing answers: one file per kind of answer.

What lives here: mathematical text, plain numbers, words, letters of choices, and computer algebra within limits. What
does not: finding the answer in a response (`relax_engine.rewards.boxed`, `.extract`) and scores.
"""
