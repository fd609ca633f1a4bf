"""Deadlines and the watch over roles."""

from __future__ import annotations

from relax_engine.config.sections.base import Section, flag


class Health(Section):
    """Health checks, restarts and how long anything may wait."""

    use_health_check: bool = False
    """Take a role that has not answered for 120 seconds for failed, and an engine that fails its health checks."""

    use_fault_tolerance: bool = False
    """Restart an engine, role or run that was interrupted, instead of ending the run."""

    max_global_restart: int = flag(3, ge=0)
    """Restarts of the whole run from its last checkpoint, in a row and without a new checkpoint between them."""

    rollout_health_check_interval: float = flag(30.0, gt=0, unit="seconds")
    """Time between two health checks of an engine."""

    rollout_health_check_timeout: float = flag(30.0, gt=0, unit="seconds")
    """Longest answer of an engine to a health check."""

    rollout_health_check_first_wait: float = flag(0.0, ge=0, unit="seconds")
    """Time after an engine's start without health checks."""

    rollout_health_check_max_consecutive_failures: int = flag(2, ge=1)
    """Health checks that an engine may fail in a row before it is restarted; one is enough where nobody answers."""

    progress_timeout: float = flag(3600.0, gt=0, unit="seconds")
    """Longest time in which no role makes progress; then the run fails and says who waits for what."""

    role_deadline: float = flag(600.0, gt=0, unit="seconds")
    """Longest start of a role, and longest answer of a role to a control call."""

    wait_timeout: float = flag(1800.0, gt=0, unit="seconds")
    """Longest wait of a role for samples; missing it is an error that names what was waited for."""
