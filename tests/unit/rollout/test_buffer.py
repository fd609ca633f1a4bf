"""Groups that wait: order, the user's choice, and the form in a checkpoint."""

import json
from typing import Any

import pytest

from relax_engine.rollout.buffer import GroupBuffer, GroupBufferError, resume_state, unpack_groups
from relax_engine.types import Sample, SampleGroup, SampleStatus, WeightVersionSpan


def group(number: int, tokens: int = 0) -> SampleGroup:
    sample = Sample(group_index=number, index=number, tokens=[1, 2], metadata={"n": number})
    if tokens:
        sample.tokens = [1, 2, *range(tokens)]
        sample.rollout_tokens = list(range(tokens))
        sample.response_length = tokens
        sample.loss_mask = [1] * tokens
        sample.rollout_log_probs = [-0.1 * (i + 1) / 3 for i in range(tokens)]
        sample.weight_versions = [WeightVersionSpan(4, 0, tokens)]
        sample.status, sample.abort_count = SampleStatus.ABORTED, 1
    return [sample]


def numbers(groups: list[SampleGroup]) -> list[int]:
    return [group[0].group_index for group in groups]


def test_the_oldest_come_first_whenever_they_were_added() -> None:
    buffer = GroupBuffer()
    buffer.add([group(5), group(2)])
    buffer.add([group(3)])
    assert (len(buffer), buffer.numbers) == (3, [2, 3, 5])
    taken, given_up = buffer.take(2, 0)
    assert (numbers(taken), given_up, buffer.numbers) == ([2, 3], [], [5])
    assert numbers(buffer.take(9, 0)[0]) == [5]


def newest(args: Any, rollout_id: int, buffer: list[SampleGroup], num: int) -> list[SampleGroup]:
    """The newest ones; the oldest is thrown away."""
    assert (args, rollout_id) == ("args", 7)
    del buffer[0]
    return [buffer.pop() for _ in range(num)]


def test_a_filter_chooses_and_gives_up() -> None:
    buffer = GroupBuffer(newest, "args")
    buffer.add(map(group, range(5)))
    taken, given_up = buffer.take(2, 7)
    assert (numbers(taken), numbers(given_up), buffer.numbers) == ([4, 3], [0], [1, 2])


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda args, rollout_id, buffer, num: buffer[:2], r"returned groups \[0, 1\]; at most 1 of \[0, 1, 2\]"),
        (lambda args, rollout_id, buffer, num: buffer[:1], "remove what you return, add nothing"),
        (lambda args, rollout_id, buffer, num: [group(9)], r"groups \[9\]; at most 1"),
        (lambda args, rollout_id, buffer, num: buffer.append(group(9)) or [], "add nothing"),
    ],
)
def test_a_filter_that_breaks_its_contract_is_named(choose: Any, message: str) -> None:
    buffer = GroupBuffer(choose)
    buffer.add(map(group, range(3)))
    with pytest.raises(GroupBufferError, match=message):
        buffer.take(1, 0)


def test_a_checkpoint_holds_what_was_sampled_and_numbers_of_the_rest() -> None:
    """Log-probs come back to the last bit."""
    under_way = {number: group(number, tokens) for number, tokens in ((3, 0), (4, 5), (7, 0), (8, 0))}
    state = json.loads(json.dumps(resume_state(9, under_way)))
    assert (state["next_group"], state["pending"]) == (7, [3, 4])
    assert unpack_groups(state["groups"]) == {4: under_way[4]}


def test_a_begun_group_at_the_end_is_pending() -> None:
    state = resume_state(6, {4: group(4), 5: group(5, 2)})
    assert (state["next_group"], state["pending"], len(state["groups"])) == (6, [4, 5], 1)


def test_what_json_cannot_hold_is_named_with_its_sample() -> None:
    waiting = group(4, 2)
    waiting[0].metadata["image"] = object()
    with pytest.raises(GroupBufferError, match=r"sample 4 of group 4 waits .*object is not JSON serializable"):
        resume_state(5, {4: waiting})
