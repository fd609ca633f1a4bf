"""Deadlines and the watch over roles."""

from __future__ import annotations

from relax_engine.config.sections.base import Section, flag


class Health(Section):
    """Health checks, restarts and how long anything may wait."""

    use_health_check: bool = False
    """Watch the roles' heartbeats and report the one that fell silent."""

    use_fault_tolerance: bool = False
    """Restart a failed engine or role instead of ending the run."""

    role_deadline: float = flag(600.0, gt=0, unit="seconds")
    """Longest start of a role, and longest answer of a role to a control call."""

    wait_timeout: float = flag(1800.0, gt=0, unit="seconds")
    """Longest wait of a role for samples; missing it is an error that names what was waited for."""
