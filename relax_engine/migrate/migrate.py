"""A whole migration: settings, reward, mode, checks, files.

What lives here: the order of the steps. What does not: the steps.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_engine.errors import ConfigError
from relax_engine.migrate.check import compare, configuration, doctor
from relax_engine.migrate.code.collect import Collection
from relax_engine.migrate.code.environment import EnvironmentCode, migrate_action_tool, migrate_tools
from relax_engine.migrate.code.reward import RewardCode, migrate_reward
from relax_engine.migrate.errors import MigrationError
from relax_engine.migrate.launch import Framework
from relax_engine.migrate.modes import Modes, plan, proposals
from relax_engine.migrate.prepare import prerequisites
from relax_engine.migrate.recipe import Recipe, read_script
from relax_engine.migrate.report import Report
from relax_engine.migrate.shell.symbols import is_known, render
from relax_engine.migrate.verl.rewards import built_in_reward
from relax_engine.migrate.verl.turns import GENERATE, MOST_TURNS
from relax_engine.migrate.write import divided, run_script, settings_file


@dataclass(frozen=True, slots=True)
class Choices:
    """What the caller decides.

    Attributes:
        reward: The source's reward, `file.py:name`; None for the one that the script names.
        data_source: Keep of a dispatch over `data_source` this one only.
        rows: Rows to compare both rewards on.
        arguments: Arguments of the launch script.
        environment: The source's tools: verl's YAML file, or `file.py:name` of a class of RedAccel; None for those that
            the script names.
    """

    reward: str | None = None
    data_source: str | None = None
    rows: Path | None = None
    arguments: list[str] | None = None
    environment: str | None = None


def migrate(framework: Framework, source: Path, out: Path, choices: Choices | None = None) -> Report:
    """Migrate the recipe that a launch script starts into the folder `out`; returns the report.

    Raises:
        MigrationError: the source cannot be read, or `out` is no name for a Python package.
    """
    choices = choices or Choices()
    algo, package, root = _package(out)
    recipe = read_script(source, framework, choices.arguments)
    draft, report = recipe.draft, recipe.draft.report
    report.recipe = algo
    modes = _modes(recipe)
    collection = Collection(algo, recipe.root, choices.data_source)
    _write(out, _reward_files(recipe, package, collection, choices))
    _write(out, _environment_files(recipe, package, collection, choices.environment or recipe.tools))
    prepare = prerequisites(draft.values, framework if framework in ("verl", "redaccel") else None)
    known, shell = divided(draft.values)
    refusal = _judge(recipe, modes, root)
    _write(
        out,
        {
            f"{algo}.yaml": settings_file(known, draft.custom, f"{source.name} ({framework})"),
            f"run_{algo}.sh": run_script(algo, len(package.split(".")), shell, modes, prepare, refusal),
        },
    )
    reward = _source_reward(recipe, choices)
    if choices.rows is not None and reward is not None:
        _compare(report, root, f"{package}.reward_{algo}", reward, choices.rows)
    _write(out, {"migration.md": report.to_markdown(), "migration.json": report.to_json()})
    return report


def _package(out: Path) -> tuple[str, str, Path]:
    """Name of the recipe, dotted name of its folder, and the folder that this name is imported from."""
    folder = out.resolve()
    if not folder.name.isidentifier():
        raise MigrationError(f"--out {out}: the folder's name is imported: use letters, digits and underscores")
    here = Path.cwd()
    if folder.is_relative_to(here) and folder != here:
        parts = folder.relative_to(here).parts
        if all(part.isidentifier() for part in parts) and _leads_here(parts[0], here):
            return folder.name, ".".join(parts), here
    return folder.name, folder.name, folder.parent


def _leads_here(name: str, here: Path) -> bool:
    """Whether a top-level package is, or would be, the folder of that name in `here`."""
    spec = importlib.util.find_spec(name)
    return spec is None or spec.origin is None or Path(spec.origin).is_relative_to(here)


def _source_reward(recipe: Recipe, choices: Choices) -> str | None:
    """The source's reward as `file.py:name`, where there is one whose file is known."""
    if choices.reward is not None:
        return choices.reward if ":" in choices.reward else f"{choices.reward}:compute_score"
    path = recipe.reward.get("path")
    if path is None or not is_known(path):
        return built_in_reward(recipe.root)
    file = Path(path) if Path(path).is_absolute() else recipe.root / path
    return f"{file}:{recipe.reward.get('name', 'compute_score')}"


def _reward_files(recipe: Recipe, package: str, collection: Collection, choices: Choices) -> dict[str, str]:
    draft, algo = recipe.draft, collection.algo
    path = f"{package}.reward_{algo}.reward_func"
    if draft.report.framework in ("slime", "relax") or draft.values.get("loss_type") == "sft":
        return {}
    reference = _source_reward(recipe, choices)
    file, _, name = (reference or "").rpartition(":")
    if not file or not Path(file).is_file():
        what = f"{file} is not there" if file else "the script names none"
        draft.needs("reward", name, f"no reward to rewrite: {what}; give --reward FILE.py:NAME")
        return {}
    code = migrate_reward(Path(file), name, collection, settings=recipe.reward_arguments)
    draft.settle("reward", reference or "", {"custom_rm_path": path, "reward_key": "score"}, "rewritten")
    if code.group:
        draft.values["group_rm"] = True
    if code.judge:
        draft.needs("reward judge", "", "the reward asks a judge: give --genrm-url, and judge_model under `custom`")
    _report_code(draft.report, code)
    for item in code.unresolved:
        draft.needs("reward import", item, "its file is not in the source: replace what it is used for")
    return {"__init__.py": "", **code.files}


def _environment_files(recipe: Recipe, package: str, collection: Collection, reference: str | None) -> dict[str, str]:
    """`env_<algo>.py` of the tools at `reference`, and what else turns need."""
    draft = recipe.draft
    turns = draft.values.get("custom_generate_function_path") == GENERATE
    if reference is None:
        if turns:
            draft.needs("environment", "", "turns need an environment: name its module in rollout_interaction_env_path")
        return {}
    file, _, name = reference.rpartition(":") if ".py:" in reference else (reference, "", "")
    path = recipe.root / file
    if not is_known(file) or not path.is_file():
        draft.needs("environment", reference, f"{render(file)} is not there; give --environment")
        return {}
    code: EnvironmentCode = migrate_action_tool(path, name, collection) if name else migrate_tools(path, collection)
    module = f"{package}.env_{collection.algo}"
    draft.custom |= {"rollout_interaction_env_path": module, "max_turns": draft.custom.get("max_turns", MOST_TURNS)}
    targets: dict[str, Any] = {"custom_generate_function_path": GENERATE}
    if code.schemas:
        template = draft.values.get("apply_chat_template_kwargs") or {}
        targets["apply_chat_template_kwargs"] = {**template, "tools": code.schemas}
    draft.settle("environment", reference, targets, f"rewritten as {module}")
    for problem in code.problems:
        draft.needs("tool", reference, problem)
    for item in code.unresolved:
        draft.needs("tool import", item, "its file is not in the source: replace what it is used for")
    return {"__init__.py": "", **code.files}


def _report_code(report: Report, code: RewardCode) -> None:
    copied = [name for name in code.files if not name.startswith("reward_")]
    if copied:
        report.notes.append(f"modules that the reward imports were copied beside it: {', '.join(copied)}")
    report.notes += code.notes


def _modes(recipe: Recipe) -> Modes:
    draft = recipe.draft
    try:
        config = configuration(draft.values)
    except ConfigError as error:
        raise MigrationError(f"{recipe.path}: its settings exclude each other: {render(str(error))}") from error
    modes = plan(config, recipe.actor, recipe.rollout)
    draft.report.proposals += proposals(config, modes)
    if recipe.asynchronous:
        draft.report.notes.append("the source runs sampling ahead of training: start the script with `async`")
    for name in ("max_staleness", "colocate", "fully_async", "hybrid", "resource"):
        draft.values.pop(name, None)
    return modes


def _judge(recipe: Recipe, modes: Modes, root: Path) -> str:
    """Put the doctor's findings into the report; returns why there is no async mode, or nothing."""
    draft = recipe.draft
    sync, asynchronous = (doctor(draft.values | fields, root) for fields in (modes.sync, modes.asynchronous))
    for name, found in (("sync", sync), ("async", asynchronous)):
        draft.report.findings[name] = [f"{finding.severity}: {finding}" for finding in found]
    known = {finding.rule for finding in sync if finding.severity == "error"}
    only = [finding for finding in asynchronous if finding.severity == "error" and finding.rule not in known]
    return f"this recipe does not run in async mode: {only[0]}" if only else ""


def _compare(report: Report, root: Path, module: str, source: str, rows: Path) -> None:
    try:
        result = compare(root, module, source, rows)
    except MigrationError as error:
        report.notes.append(f"the rewards were not compared: {error}")
        return
    if result.differing:
        report.notes.append(f"rewards differ on {result.differing} of {result.compared} responses:")
        report.notes += result.examples
    else:
        report.notes.append(f"rewards agree on all {result.compared} responses")


def _write(out: Path, files: dict[str, str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = out / name
        path.write_text(text, encoding="utf-8")
        if name.endswith(".sh"):
            path.chmod(0o755)
