"""What stops a migration."""

from __future__ import annotations

from relax_engine.errors import RelaxError


class MigrationError(RelaxError):
    """A source that cannot be read or has nothing to migrate; the message names the file and the line."""
