"""What the architecture promises about the code itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import relax_engine
from relax_engine.config.fields import all_fields
from relax_engine.config.rules.accepted import HARMLESS, REFUSED

ROOT = Path(__file__).parents[2]
PACKAGES = ("relax_engine", "data_prep", "tasks", "workflows", "examples")


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def test_import_arrows() -> None:
    """The contracts of pyproject.toml hold."""
    program = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "module",
    [
        "relax_engine",
        "relax_engine.config",
        "relax_engine.config.doctor",
        "relax_engine.algorithms",
        "relax_engine.cli.simulate",
    ],
)
def test_light_modules_import_nothing_heavy(module: str) -> None:
    program = (
        f"import sys, {module}\n"
        "sys.exit(str(sorted({'torch', 'ray', 'megatron', 'transformers', 'pandas'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == "[]"


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_names_of_test_files_are_unique() -> None:
    """pytest imports them by name: two of a name cannot be collected in one run."""
    files = (path.name for path in (ROOT / "tests").rglob("*.py"))
    names = Counter(name for name in files if name not in ("conftest.py", "__init__.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_flags_that_the_code_reads_exist() -> None:
    """`config.flat.NAME` and `args.NAME` style reads name fields."""
    read = re.compile(r"\b(?:config\.flat|self\.flat|flat)\.([a-z][a-z0-9_]*)\b(?!\()")
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        if re.search(r"\bRunConfig\b|\.flat\b", path.read_text())
        for name in read.findall(path.read_text())
        if name not in all_fields() and not name.startswith(("sglang_", "router_"))
    }
    assert unknown == set()


def test_every_flag_has_a_reader_or_says_that_it_has_none() -> None:
    """A field is read outside the configuration, or the doctor tells whoever sets it that it has no effect.

    Fields that only feed other fields or rules are listed here.
    """
    inside = {"custom_config_path", "experiment_name", "tb_experiment_name", "use_dynamic_batch_size"}
    inside |= {
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "true_on_policy_mode",
        "dpo_reference_free",
    }
    elsewhere = [path for path in sources() if not {"config", "migrate"} & set(path.relative_to(ROOT).parts)]
    text = "\n".join(path.read_text() for path in elsewhere)
    words = set(re.findall(r"\w+", text))
    unread = {name for name in all_fields() if name not in words} - inside
    assert unread == {*HARMLESS, *REFUSED}


@pytest.mark.parametrize("name", [name for name in relax_engine.__all__ if name != "__version__"])
def test_public_names_are_importable(name: str) -> None:
    assert callable(getattr(relax_engine, name))


def test_unknown_public_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = relax_engine.trian
    assert dir(relax_engine) == sorted(relax_engine.__all__)
