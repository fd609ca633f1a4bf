"""A taskset of the package `verifiers`, for a test: the reward is how many letters the answer has, up to four."""

import verifiers.v1 as vf

__all__ = ["LettersTaskset"]


class LettersTask(vf.Task):
    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)

    @vf.reward
    async def letters(self, trace: vf.Trace) -> float:
        return min(len(trace.last_reply), 4) / 4


class LettersTaskset(vf.Taskset[LettersTask, vf.TasksetConfig]):
    def load(self):
        for word in ("one", "two", "three"):
            yield LettersTask(vf.TaskData(prompt=f"spell {word}", system_prompt="Be brief."))
