"""Recipes of other frameworks, rewritten for this engine: `relax migrate`.

What lives here: reading launch scripts without running them (`shell`), the tables from foreign settings to our flags
(`verl`, `slime`), rewriting reward code (`code`), and the files that come out. What does not: converting data
(`data_prep`) and judging configurations (`relax_engine.config.doctor`).
"""
