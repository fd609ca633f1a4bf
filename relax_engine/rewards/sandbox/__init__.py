"""A sandbox for programs that a model wrote: Linux, without root.

What lives here: confinement (`confine`, `landlock`, `seccomp`, `namespaces`), the process that runs programs
(`supervisor`), and its client (`run`). What does not: tests and scores (`relax_engine.rewards.code`).

The supervisor is started as a script with a bare interpreter, so the modules it needs import one another relatively and
nothing else but the standard library.
"""
