"""The error of a reward that gave no usable score."""

from __future__ import annotations

from relax_engine.errors import RelaxError


class RewardError(RelaxError, RuntimeError):
    """A reward function raised, missed its deadline, died, or returned something that is no reward.

    Attributes:
        path: The function, as configured.
        sample_index: `Sample.index`; of a group call, the first sample's.
        group_index: `Sample.group_index`.
        cause: What went wrong, in one line.
        elapsed_s: Seconds the call ran.
        details: The function's traceback, when it raised.
    """

    def __init__(
        self, *, path: str, sample_index: int, group_index: int, cause: str, elapsed_s: float, details: str = ""
    ) -> None:
        self.path = path
        self.sample_index = sample_index
        self.group_index = group_index
        self.cause = cause
        self.elapsed_s = elapsed_s
        self.details = details
        super().__init__(
            f"reward {path!r} failed on sample {sample_index} of group {group_index} after {elapsed_s:.2f} s: {cause}"
            + (f"\n{details}" if details else "")
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by fields, so that the error crosses process boundaries whole."""
        fields = ("path", "sample_index", "group_index", "cause", "elapsed_s", "details")
        return _rebuild, ({name: getattr(self, name) for name in fields},)


def _rebuild(fields: dict[str, object]) -> RewardError:
    return RewardError(**fields)  # type: ignore[arg-type]
