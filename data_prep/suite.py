"""The rules for text tasks as a Great Expectations suite, and its verdict in our words.

Great Expectations costs seconds to import, so only `data_prep.validate` imports this module, when it has rows to check.
Its usage statistics are switched off before it loads.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read while the library is imported

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
from great_expectations.data_context.types.base import ProgressBarsConfig

from data_prep.errors import Finding
from data_prep.report import OK, RowFacts, RuleResult

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

_SITE = "data_docs"


def expectations(limit: int | None, *, counted: bool) -> dict[str, tuple[str, Expectation]]:
    """Rule name -> what it asks for, and the expectation that checks it.

    Args:
        limit: longest prompt in tokens, None for any.
        counted: whether prompt lengths are known.
    """
    rules: dict[str, tuple[str, Any]] = {
        "rows": ("the dataset has at least one row", gxe.ExpectTableRowCountToBeBetween(min_value=1)),
        "id present": ("every row has an id", gxe.ExpectColumnValuesToNotBeNull(column="id")),
        "id unique": ("no id occurs twice", gxe.ExpectColumnValuesToBeUnique(column="id")),
        "prompt": (
            "the prompt is text, or messages with known roles that end with the user's",
            gxe.ExpectColumnValuesToBeInSet(column="prompt", value_set=[OK]),
        ),
        "label": (
            "the label is a non-empty string",
            gxe.ExpectColumnValuesToBeInSet(column="label", value_set=[OK]),
        ),
    }
    if counted:
        asks = "the prompt has at least one token" if limit is None else f"the prompt has 1 to {limit} tokens"
        between = gxe.ExpectColumnValuesToBeBetween(column="prompt_tokens", min_value=1, max_value=limit)
        rules["prompt length"] = (asks, between)
    return rules


def run_suite(
    facts: RowFacts, limit: int | None, docs: Path | None, max_rows: int
) -> tuple[list[RuleResult], list[Finding]]:
    """Check the rows; with `docs`, also write the data documentation there.

    Returns:
        One result per rule, and one finding with at most `max_rows` example rows per broken rule.
    """
    frame = _frame(facts)
    rules = expectations(limit, counted="prompt_tokens" in frame)
    results = _checkpoint(frame, [expectation for _, expectation in rules.values()], docs)
    outcomes, findings = [], []
    for (name, (asks, _)), result in zip(rules.items(), results, strict=True):
        figures = result["result"]
        failed = 0 if result["success"] else int(figures.get("unexpected_count") or 0)
        outcomes.append(RuleResult(name, asks, len(facts.row), failed))
        if not result["success"]:
            findings.append(Finding(name, f"expected that {asks}", failed, _examples(result, max_rows)))
    return outcomes, findings


def _frame(facts: RowFacts) -> pd.DataFrame:
    columns: dict[str, Any] = {"row": facts.row, "id": facts.id, "prompt": facts.prompt, "label": facts.label}
    if facts.prompt_tokens:
        columns["prompt_tokens"] = pd.array(facts.prompt_tokens, dtype="Int64")
    return pd.DataFrame(columns)


def _checkpoint(frame: pd.DataFrame, suite: list[Expectation], docs: Path | None) -> list[dict[str, Any]]:
    """Run the suite; one result per expectation, in order."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("prompts").add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all")
    named = context.suites.add(gx.ExpectationSuite(name="text", expectations=suite))
    definition = context.validation_definitions.add(gx.ValidationDefinition(name="text", data=batch, suite=named))
    actions: list[Any] = []
    if docs is not None:
        context.add_data_docs_site(
            site_name=_SITE,
            site_config={
                "class_name": "SiteBuilder",
                "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
                "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs.absolute())},
            },
        )
        actions.append(gx.checkpoint.UpdateDataDocsAction(name="docs", site_names=[_SITE]))
    checkpoint = gx.Checkpoint(
        name="text",
        validation_definitions=[definition],
        actions=actions,
        result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["row"]},
    )
    outcome = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    (run,) = outcome.run_results.values()
    by_kind = {_key(result["expectation_config"]): result for result in run.to_json_dict()["results"]}
    return [
        by_kind[_key({"type": e.expectation_type, "kwargs": {"column": getattr(e, "column", None)}})] for e in suite
    ]


def _key(config: dict[str, Any]) -> tuple[str, str | None]:
    return config["type"], config["kwargs"].get("column")


def _examples(result: dict[str, Any], max_rows: int) -> tuple[tuple[int, str], ...]:
    column = result["expectation_config"]["kwargs"].get("column")
    rows = result["result"].get("unexpected_index_list") or []
    return tuple((int(entry["row"]), str(entry.get(column))) for entry in rows[:max_rows])
