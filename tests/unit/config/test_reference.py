"""The generated documentation is current and complete."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from relax_engine.config import parse_args
from relax_engine.config.fields import SECTIONS, all_fields, pass_through_field
from relax_engine.config.reference import render_markdown, render_schema

DOCS = Path(__file__).parents[3] / "docs"


def test_documents_are_up_to_date() -> None:
    assert (DOCS / "configuration.md").read_text() == render_markdown(), "run `make docs`"
    assert (DOCS / "configuration.schema.json").read_text() == render_schema(), "run `make docs`"


def test_names_are_unique_over_sections() -> None:
    assert len(all_fields()) == sum(len(model.model_fields) for model in SECTIONS.values())


@pytest.mark.parametrize("name", list(all_fields()))
def test_every_field_says_what_it_does(name: str) -> None:
    sentence = all_fields()[name].help
    assert len(sentence) >= 15
    assert sentence.endswith(".")


def test_schema_knows_bounds_and_choices() -> None:
    definitions = json.loads(render_schema())["$defs"]
    assert definitions["Data"]["properties"]["rollout_batch_size"]["minimum"] == 1
    assert definitions["Algorithm"]["properties"]["kl_loss_type"]["enum"] == ["k1", "k2", "k3", "low_var_kl"]


def test_help_lists_every_flag_by_section(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse_args(["--help"])
    assert raised.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n  {spec.flag}" in text for spec in all_fields().values())
    assert all(f"\n{section}:\n" in text for section in SECTIONS)
    assert "[weight versions; >= 0; default 0]" in " ".join(text.split())


def test_parsing_is_fast() -> None:
    start = time.process_time()
    parse_args(["--lr", "1e-6"])
    assert time.process_time() - start < 0.2


def test_typed_fields_are_not_passed_through() -> None:
    assert pass_through_field("sglang_server_concurrency") is None
    assert pass_through_field("sglang_mem_fraction_static") == ("sglang_args", "mem_fraction_static")
    assert pass_through_field("router_policy") == ("router_args", "policy")
    assert pass_through_field("lr") is None
