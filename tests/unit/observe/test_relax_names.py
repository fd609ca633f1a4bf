"""The table of Relax's names: each that is kept leads to a definition of its own."""

import pytest

from relax_engine.observe.definitions import METRICS, render_markdown
from relax_engine.observe.relax_names import RELAX, RelaxName


@pytest.mark.parametrize("old", RELAX, ids=lambda old: old.name)
def test_names_that_are_kept_are_defined(old: RelaxName) -> None:
    defined = {metric.name for metric in METRICS}
    assert set(old.here) <= defined
    assert old.here or old.note, "a name that is not there says why"


def test_the_documentation_has_every_name_once() -> None:
    assert len({old.name for old in RELAX}) == len(RELAX)
    table = render_markdown().partition("## Names of Relax")[2]
    assert all(f"| `{old.name}` |" in table for old in RELAX)
