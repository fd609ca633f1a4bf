"""The rules of a task type as a Great Expectations suite, and its verdict in our words.

Great Expectations costs seconds to import, so only `data_prep.validate` imports this module, when it has rows to check.
Its usage statistics are switched off before it loads.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read while the library is imported

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
from great_expectations.data_context.types.base import ProgressBarsConfig

from data_prep.errors import Finding
from data_prep.report import OK, RowFacts, RuleResult, ValidationReport

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

_SITE = "data_docs"


FLAGS = {
    "task": "the row holds what its task type needs",
    "label sanity": "the reward can score a response by the label",
    "duplicate": "no other row has the same prompt",
    "near duplicate": "no other row has nearly the same prompt",
    "leak": "the prompt is none of the evaluation's",
}
"""Rules that were decided row by row, and what they ask for."""


def expectations(
    limit: int | None, flags: Collection[str], *, counted: bool, mostly: float
) -> dict[str, tuple[str, Expectation]]:
    """Rule name -> what it asks for, and the expectation that checks it.

    Args:
        limit: longest prompt in tokens, None for any.
        flags: names of the further rules.
        counted: whether prompt lengths are known.
        mostly: share of rows that must follow a rule.
    """
    rules: dict[str, tuple[str, Any]] = {
        "rows": ("the dataset has at least one row", gxe.ExpectTableRowCountToBeBetween(min_value=1)),
        "id present": ("every row has an id", gxe.ExpectColumnValuesToNotBeNull(column="id", mostly=mostly)),
        "id unique": ("no id occurs twice", gxe.ExpectColumnValuesToBeUnique(column="id", mostly=mostly)),
        "prompt": ("the prompt is text, or messages with known roles that end with the user's", _ok("prompt", mostly)),
        "label": ("the label is a non-empty string", _ok("label", mostly)),
    }
    if counted:
        asks = "the prompt has at least one token" if limit is None else f"the prompt has 1 to {limit} tokens"
        between = gxe.ExpectColumnValuesToBeBetween(column="prompt_tokens", min_value=1, max_value=limit, mostly=mostly)
        rules["prompt length"] = (asks, between)
    return rules | {name: (FLAGS[name], _ok(name, mostly)) for name in flags}


def _ok(column: str, mostly: float) -> Any:
    return gxe.ExpectColumnValuesToBeInSet(column=column, value_set=[OK], mostly=mostly)


def run_suite(
    facts: RowFacts, limit: int | None, report: ValidationReport, *, task: str, max_rows: int, max_bad_share: float
) -> None:
    """Check the rows and fill the report; with `report.docs`, also write the data documentation there.

    Args:
        facts: the rows.
        limit: longest prompt in tokens, None for any.
        report: receives one result per rule, one finding with at most `max_rows` example rows per rule that more than
            `max_bad_share` of the rows break, and all rows that break one.
        task: name of the suite.
        max_rows: example rows in a finding.
        max_bad_share: share of rows that may break a rule.
    """
    frame = _frame(facts)
    rules = expectations(limit, facts.flags, counted="prompt_tokens" in frame, mostly=1 - max_bad_share)
    results = _checkpoint(frame, [expectation for _, expectation in rules.values()], report.docs, task)
    for (name, (asks, _)), result in zip(rules.items(), results, strict=True):
        broken = _broken(result)
        failed = max(int(result["result"].get("unexpected_count") or 0), len(broken))
        report.rules.append(RuleResult(name, asks, len(facts.row), failed, bool(result["success"])))
        for row, detail in broken:
            report.bad.setdefault(row, f"{name}: {detail}")
        if not result["success"]:
            report.findings.append(Finding(name, f"expected that {asks}", failed, tuple(broken[:max_rows])))


def _frame(facts: RowFacts) -> pd.DataFrame:
    columns: dict[str, Any] = {"row": facts.row, "id": facts.id, "prompt": facts.prompt, "label": facts.label}
    columns |= facts.flags
    if facts.prompt_tokens:
        columns["prompt_tokens"] = pd.array(facts.prompt_tokens, dtype="Int64")
    return pd.DataFrame(columns)


def _checkpoint(frame: pd.DataFrame, suite: list[Expectation], docs: Path | None, task: str) -> list[dict[str, Any]]:
    """Run the suite; one result per expectation, in order."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("prompts").add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all")
    named = context.suites.add(gx.ExpectationSuite(name=task, expectations=suite))
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=task, data=batch, suite=named))
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
        name=task,
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


def _broken(result: dict[str, Any]) -> list[tuple[int, str]]:
    """Rows that break a rule, with their values."""
    column = result["expectation_config"]["kwargs"].get("column")
    rows = result["result"].get("unexpected_index_list") or []
    return [(int(entry["row"]), str(entry.get(column))) for entry in rows]
