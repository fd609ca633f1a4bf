"""Which teacher a sample is distilled from, by its metadata.

What lives here: the routes of `--opd-teacher-routes`, in order, and the teacher of a sample. What does not: asking it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relax_engine.errors import RelaxError
from relax_engine.types import Sample


class TeacherRouteError(RelaxError):
    """A sample names no teacher of the run."""


def teacher_urls(args: Any) -> list[list[str]]:
    """The engines of each teacher: of `--opd-teacher-url`, or of each route in the order of `--opd-teacher-routes`."""
    if not args.opd_teacher_routes:
        return [list(args.opd_teacher_url)]
    return [[urls] if isinstance(urls, str) else list(urls) for urls in args.opd_teacher_routes.values()]


def teacher_indices(samples: Sequence[Sample], args: Any) -> np.ndarray:
    """The route of each sample, int32 `[rows]`.

    Raises:
        TeacherRouteError: a sample whose metadata names none; tells sample, value and routes.
    """
    routes = list(args.opd_teacher_routes)
    found = []
    for sample in samples:
        name = sample.metadata.get(args.opd_teacher_key)
        if name not in routes:
            raise TeacherRouteError(
                f"sample {sample.index}: metadata[{args.opd_teacher_key!r}] is {name!r}, and --opd-teacher-routes has "
                f"{routes}"
            )
        found.append(routes.index(name))
    return np.array(found, np.int32)
