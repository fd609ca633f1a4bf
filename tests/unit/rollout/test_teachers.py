"""Which teacher a sample has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from relax_engine.rollout.teachers import TeacherRouteError, teacher_indices, teacher_urls
from relax_engine.types import Sample

ROUTES = {"math": "http://a:1", "code": ["http://b:1", "http://b:2"]}
ARGS = SimpleNamespace(opd_teacher_routes=ROUTES, opd_teacher_key="source", opd_teacher_url=[])


def test_routes_are_in_the_order_of_their_names() -> None:
    assert teacher_urls(ARGS) == [["http://a:1"], ["http://b:1", "http://b:2"]]
    one = SimpleNamespace(opd_teacher_routes={}, opd_teacher_url=["http://t:1", "http://t:2"])
    assert teacher_urls(one) == [["http://t:1", "http://t:2"]]


def test_metadata_names_the_teacher() -> None:
    samples = [Sample(metadata={"source": name}) for name in ("code", "math", "code")]
    assert teacher_indices(samples, ARGS).tolist() == [1, 0, 1]
    for metadata in ({}, {"source": "law"}):
        with pytest.raises(TeacherRouteError, match=r"sample 4: metadata\['source'\] is .*\['math', 'code'\]"):
            teacher_indices([Sample(index=4, metadata=metadata)], ARGS)
