"""`--rm-type remote_rm`: a reward behind HTTP."""

from __future__ import annotations

from typing import Any

from relax_engine.rewards.http import TRIES, TRY_SECONDS, post_json
from relax_engine.types import Sample


async def remote_rm_reward(
    args: Any, sample: Sample, *, url: str | None = None, tries: int = TRIES, try_s: float = TRY_SECONDS
) -> Any:
    """What the server at `--rm-url` (or `url`) answers: a number, or an object that holds one under `--reward-key`.

    It is posted `prompt`, `response`, `label` and `metadata` as one JSON object.

    Raises:
        ValueError: there is no address.
        HttpError: the server refused, or could not be reached in `tries` tries of `try_s` seconds.
    """
    address = url or args.rm_url
    if not address:
        raise ValueError("the reward remote_rm needs --rm-url, the address to post samples to")
    payload = {"prompt": sample.prompt, "response": sample.response, "label": sample.label, "metadata": sample.metadata}
    return await post_json(address, payload, tries=tries, try_s=try_s)
