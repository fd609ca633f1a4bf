"""Credit of a user: the main context has its reward above the group's mean, the other one half of it."""

from typing import Any


def advantages(metadata_by_slot: list[dict[str, dict[str, Any]]]) -> list[dict[str, float]]:
    """Half of the credit for the helper."""
    rewards = [contexts["main"]["reward"] for contexts in metadata_by_slot]
    mean = sum(rewards) / len(rewards)
    return [{"main": reward - mean, "check": 0.5 * (reward - mean)} for reward in rewards]
