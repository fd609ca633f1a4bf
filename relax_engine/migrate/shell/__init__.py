"""Bash scripts, read and evaluated without running anything.

What lives here: a parser of the part of bash that launch scripts are written in (`scanner`, `parser`, `syntax`) and an
interpreter that assigns variables, takes branches and collects the commands that would run (`interpreter`). It starts
no process and opens no file but those that `source` names. What does not: the meaning of the commands.
"""
