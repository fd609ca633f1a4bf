"""What rows of each task type must hold beyond a prompt and a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_prep.checks.prompts import prompt_text
from data_prep.media import MediaReader, read_all
from data_prep.schema import PLACEHOLDERS

TEXT, CHOICE, MULTIMODAL, AGENTIC = "text", "multiple-choice", "multimodal", "agentic"
TASKS = (TEXT, CHOICE, MULTIMODAL, AGENTIC)


def task_defect(task: str, prompt: Any, label: Any, metadata: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """Why a row is none of that task, or None if it is one."""
    if task == CHOICE:
        return choice_defect(label, metadata)
    if task == MULTIMODAL:
        return media_defect(prompt, row)
    return tools_defect(metadata) if task == AGENTIC else None


def choice_defect(label: Any, metadata: Mapping[str, Any]) -> str | None:
    """Choices must differ, and the label be the letter of one of them."""
    choices, letters = metadata.get("choices"), metadata.get("valid_letters")
    if not isinstance(choices, list) or len(choices) < 2:
        return "metadata has no list 'choices' of two or more"
    if len({str(choice).strip() for choice in choices}) < len(choices):
        return "two of the choices are the same"
    letters = letters if isinstance(letters, list) else [chr(ord("A") + number) for number in range(len(choices))]
    if len(letters) != len(choices):
        return f"{len(choices)} choices, but {len(letters)} letters"
    return (
        None if label in letters else f"the label {label!r:.40} is none of the letters {', '.join(map(str, letters))}"
    )


def media_defect(prompt: Any, row: Mapping[str, Any]) -> str | None:
    """There must be media, as many as placeholders, and they must decode."""
    media = {column: row[column] for column in PLACEHOLDERS if row.get(column)}
    if not media:
        return f"none of the columns {', '.join(PLACEHOLDERS)} holds anything"
    try:
        read_all(MediaReader(root=None), media, prompt_text(prompt))
    except ValueError as error:
        return str(error)
    return None


def tools_defect(metadata: Mapping[str, Any]) -> str | None:
    """There must be tools: their definitions, or arguments for those of the environment."""
    extra = metadata.get("extra_info")
    held = [metadata, extra if isinstance(extra, Mapping) else {}]
    found = next((place[name] for place in held for name in ("tools", "tools_kwargs") if place.get(name)), None)
    if found is None:
        return "metadata has neither 'tools' nor 'tools_kwargs'"
    if isinstance(found, list):
        for position, tool in enumerate(found):
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                return f"tool {position} has no name"
    return None
