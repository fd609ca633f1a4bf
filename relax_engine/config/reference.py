"""The configuration reference, generated from the fields.

What lives here: `docs/configuration.md` and `docs/configuration.schema.json` as text, and the command that writes
them (`python -m relax_engine.config.reference docs`, or `make docs`). What does not: any fact about a field.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from relax_engine.config.fields import SECTIONS, FieldSpec, all_fields
from relax_engine.config.run_config import RunConfig

_INTRODUCTION = """\
# Configuration

Generated from `relax_engine/config/sections` by `make docs`; edit the docstrings there.

A run is configured by flags, by a YAML file (`--config FILE.yaml`), by Flyte inputs or from Python
(`RunConfig.from_flat(rollout_batch_size=32)`); all four give the same object, and flags win over the file. In YAML
and Python the names have underscores; YAML keys may stand flat or under their section:

```yaml
rollout_batch_size: 32
optimizer:
  lr: 1.0e-6
```

`relax doctor` with the same flags shows the configuration in force and checks it. `--sglang-NAME VALUE` and
`--router-NAME VALUE` are passed on to the engine's server and to the router. Hooks receive all values as `args`
(`args.rollout_batch_size`), with the keys of `--custom-config-path` added.
"""


def render_markdown() -> str:
    """The text of `docs/configuration.md`: one table per section."""
    parts = [_INTRODUCTION]
    for section, model in SECTIONS.items():
        parts.append(f"## {section}\n\n{' '.join(inspect.cleandoc(model.__doc__ or '').split())}\n")
        parts.append(_table(spec for spec in all_fields().values() if spec.section == section))
    return "\n".join(parts)


def _table(specs: Iterable[FieldSpec]) -> str:
    lines = ["| flag | type | default | meaning |", "| --- | --- | --- | --- |"]
    for spec in specs:
        facts = "; ".join(fact for fact in (spec.unit, spec.bounds) if fact)
        kind = "flag" if spec.is_bool else spec.type_name
        cells = [f"`{spec.flag}`", kind, f"`{spec.default_text}`" if spec.default_text else ""]
        cells.append(spec.help + (f" ({facts})" if facts else ""))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def render_schema() -> str:
    """The text of `docs/configuration.schema.json`: JSON Schema of a sectioned YAML file."""
    return json.dumps(RunConfig.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


def write(directory: Path) -> None:
    """Write both files into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "configuration.md").write_text(render_markdown(), encoding="utf-8")
    (directory / "configuration.schema.json").write_text(render_schema(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
