"""Which states may follow which."""

import pytest

from relax_engine.elastic.requests import ScaleIn, ScaleOut
from relax_engine.elastic.states import (
    CANCELLABLE,
    IN_TRANSITIONS,
    OUT_TRANSITIONS,
    IllegalTransitionError,
    ScaleInStatus,
    ScaleOutStatus,
)

ENDS = {"ACTIVE", "PARTIAL", "FAILED", "CANCELLED", "NOOP"}


@pytest.mark.parametrize("status", ScaleOutStatus)
def test_every_scale_out_state_leads_to_an_end(status: ScaleOutStatus) -> None:
    reached, frontier = {status}, [status]
    while frontier:
        for following in OUT_TRANSITIONS.get(frontier.pop(), ()):
            if following not in reached:
                reached.add(following)
                frontier.append(following)
    assert reached & ENDS
    assert (status in ENDS) == (not OUT_TRANSITIONS.get(status))
    # What was made is taken away again before a request ends without it.
    if status in (ScaleOutStatus.READY, ScaleOutStatus.WEIGHT_SYNCING):
        assert ScaleOutStatus.REMOVING in OUT_TRANSITIONS[status]


def test_the_documented_paths() -> None:
    created = ScaleOut(model_name="m", timeout_s=1, num_replicas=2)
    for status in ("CREATING", "HEALTH_CHECKING", "WEIGHT_SYNCING", "READY", "ACTIVE"):
        created.advance(ScaleOutStatus(status))
    assert created.finished
    removed = ScaleIn(model_name="m", timeout_s=1, selected_engines=("http://a",))
    for name in ("DRAINING", "REMOVING", "COMPLETED"):
        removed.advance(ScaleInStatus(name))
    assert removed.finished
    assert {"PENDING", "CREATING"} == CANCELLABLE
    assert ScaleInStatus.REMOVING in IN_TRANSITIONS[ScaleInStatus.PENDING]  # force


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ([], "ACTIVE"),
        ([], "WEIGHT_SYNCING"),
        (["CREATING"], "READY"),
        (["CREATING", "HEALTH_CHECKING"], "READY"),  # weights come first
        (["CREATING", "HEALTH_CHECKING", "WEIGHT_SYNCING"], "ACTIVE"),
        (["CREATING", "REMOVING", "CANCELLED"], "PENDING"),
        (["CANCELLED"], "CREATING"),
    ],
)
def test_shortcuts_are_defects(path: list[str], wrong: str) -> None:
    request = ScaleOut(model_name="m", timeout_s=1, num_replicas=2)
    for status in path:
        request.advance(ScaleOutStatus(status))
    before = request.status
    with pytest.raises(IllegalTransitionError, match=f"from {before} to {wrong}"):
        request.advance(ScaleOutStatus(wrong))
    assert request.status is before
