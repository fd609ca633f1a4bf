"""Errors that are meant for a person: the command line prints them without a traceback."""

from __future__ import annotations


class RelaxError(Exception):
    """Base of every error that names a thing, its value, and the way out."""


class ConfigError(RelaxError):
    """The configuration cannot be run."""
