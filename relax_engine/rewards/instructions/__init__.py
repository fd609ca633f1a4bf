"""Instructions that a program can check: the lists of IFEval (arXiv 2311.07911) and IFBench (arXiv 2507.02833).

What lives here: one function per instruction id, and the text tools they share (sentences, words, languages,
syllables), which need no downloads. What does not: scoring a sample (`relax_engine.rewards.instruction_following`).
"""
