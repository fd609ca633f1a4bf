"""Options that no present field needs, on sections of the test's own."""

from __future__ import annotations

import pytest

from relax_engine.config import fields, flags
from relax_engine.config.fields import FieldSpec
from relax_engine.config.flags import build_parser, help_text
from relax_engine.config.sections.base import Section, flag, read_literal, split_bracketed


class Toy(Section):
    """A toy."""

    verbose: bool = True
    """Talk 100% of the time."""

    size: int = flag(3, ge=1, lt=9, unit="boxes")
    """How many."""


SPECS = {name: FieldSpec(name, "toy", info) for name, info in Toy.model_fields.items()}


def test_a_flag_that_is_on_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "SECTIONS", {"toy": Toy})
    monkeypatch.setattr(flags, "all_fields", lambda: SPECS)
    parser = build_parser("toy", "A toy.")
    assert vars(parser.parse_args([])) == {}
    assert parser.parse_args(["--no-verbose"]).verbose is False
    assert parser.parse_args(["--verbose"]).verbose is True
    assert "100% of the time" in parser.format_help()


def test_help_text_has_unit_bounds_and_default() -> None:
    assert help_text(SPECS["size"]) == "How many. [boxes; >= 1, < 9; default 3]"
    assert help_text(SPECS["verbose"]) == "Talk 100%% of the time. [default on]"


def test_two_sections_cannot_share_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "SECTIONS", {"one": Toy, "two": Toy})
    with pytest.raises(RuntimeError, match="verbose occurs in sections one and two"):
        fields.all_fields.__wrapped__()


def test_literals() -> None:
    assert read_literal('{"a": true}') == {"a": True}
    assert read_literal("{'a': True}") == {"a": True}
    assert split_bracketed("[]") == []
    with pytest.raises(ValueError, match="column 2"):
        read_literal("{a: 1}")
