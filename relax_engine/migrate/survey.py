"""How much of many recipes maps.

What lives here: mapping every launch script below a folder, or every recipe of a JSON list, and counting. What does
not: files of migrated recipes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from relax_engine.migrate.errors import MigrationError
from relax_engine.migrate.launch import Framework
from relax_engine.migrate.recipe import read_listing, read_script
from relax_engine.migrate.report import Report, Status


@dataclass(slots=True)
class Survey:
    """Counts over all recipes; `needs` has what needs somebody, `skipped` the files that start no training."""

    recipes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    needs: Counter[tuple[str, str]] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)

    @property
    def given(self) -> int:
        """Settings that the sources give."""
        return sum(self.statuses.values()) - self.statuses[Status.DEFAULTED.value]

    @property
    def share(self) -> float:
        """Share of them that is mapped, or not needed for a reason."""
        settled = self.statuses[Status.MAPPED.value] + self.statuses[Status.NOT_NEEDED.value]
        return settled / self.given if self.given else 1.0

    def add(self, report: Report) -> None:
        """Count one recipe."""
        self.recipes += 1
        self.statuses.update(report.counts())
        self.needs.update((entry.key, entry.reason) for entry in report.entries if entry.status is Status.NEEDS_YOU)


def survey(framework: Framework, source: Path) -> Survey:
    """Map every recipe below a folder, of a script or of a JSON list.

    Raises:
        MigrationError: a JSON file that is no list of recipes, or a script that cannot be parsed.
    """
    result = Survey()
    for report in _reports(framework, source, result.skipped):
        result.add(report)
    return result


def _reports(framework: Framework, source: Path, skipped: list[str]) -> Iterator[Report]:
    if source.suffix == ".json":
        yield from (recipe.draft.report for recipe in read_listing(source, framework))
        return
    for script in sorted(source.rglob("*.sh")) if source.is_dir() else [source]:
        try:
            yield read_script(script, framework).draft.report
        except MigrationError as error:
            if "starts training" not in str(error):
                raise
            skipped.append(str(script))
