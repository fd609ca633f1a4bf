"""Reward code of other frameworks, rewritten as syntax trees: comments and formatting stay.

What lives here: which modules a reward needs (`modules`), the rewriting (`transform`, `dispatch`), the entry point
(`entry`), and all of it for one reward (`reward`). What does not: running code (`relax_engine.migrate.dry_run`).
"""
