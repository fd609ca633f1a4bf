"""Finding the first cause in what Ray raises."""

from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from relax_engine.core.failure import RoleError, role_failure, root_cause
from relax_engine.rollout.prompts import PromptDataError


def remote(cause: BaseException, depth: int = 1) -> BaseException:
    """`cause` as it arrives after `depth` remote calls, both the plain error and the one that has the cause's type."""
    error = cause
    for level in range(depth):
        task_error = RayTaskError(f"f{level}", f"\x1b[36mray::f{level}()\x1b[39m traceback of {cause}", error)
        error = task_error.as_instanceof_cause()
    return error


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_the_cause_is_found_through_any_number_of_calls(depth: int) -> None:
    cause = ValueError("rank 1: x")
    assert root_cause(remote(cause, depth)) is cause


def test_the_cause_is_found_inside_groups_and_under_groups() -> None:
    cause = PromptDataError("row 3: no prompt")
    assert root_cause(ExceptionGroup("tasks", [ExceptionGroup("more", [remote(cause, 2)]), KeyError("later")])) is cause
    assert root_cause(remote(ExceptionGroup("tasks", [cause]))) is cause


def test_a_plain_ray_task_error_without_cause_ends_the_search() -> None:
    error = RayTaskError("f", "traceback", None)
    assert root_cause(error) is error


def test_the_message_names_role_and_cause_and_the_log_has_the_rest(tmp_path: Path) -> None:
    error = role_failure("actor", remote(ValueError("rank 1: x"), 2), tmp_path)
    assert str(error).startswith("role 'actor' failed: ValueError: rank 1: x\n")
    assert str(tmp_path / "errors.log") in str(error)
    log = (tmp_path / "errors.log").read_text()
    assert log.startswith("role actor: ")
    assert "traceback of rank 1: x" in log
    assert "\x1b" not in log


def test_our_own_errors_speak_for_themselves(tmp_path: Path) -> None:
    error = role_failure("rollout", remote(PromptDataError("row 3: no prompt")), tmp_path)
    assert str(error).startswith("role 'rollout' failed: row 3: no prompt\n")


def test_an_error_without_text_still_says_what_it_was(tmp_path: Path) -> None:
    assert "failed: TimeoutError" in str(role_failure("rollout", remote(TimeoutError()), tmp_path))
    assert "ActorDiedError: " in str(role_failure("actor", ActorDiedError(), tmp_path))


def test_a_role_error_is_not_wrapped_again(tmp_path: Path) -> None:
    error = RoleError("role 'actor' did not answer close() within 5 s")
    assert role_failure("actor", error, tmp_path) is error
