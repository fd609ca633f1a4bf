"""Presets of known models: what their `config.json` says, and flags that fit them on 80 GB devices.

What lives here: reading `models/*.yaml`, putting a preset's flags below those that were given, and writing a preset
from a model directory (`python -m relax_engine.config.model_presets DIR NAME ...`). What does not: how much memory
they take (`relax_engine.simulation.memory`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from relax_engine.config.fields import all_fields
from relax_engine.errors import ConfigError
from relax_engine.utils.suggest import nearest

_FOLDER = Path(__file__).with_name("models")
_NOT_ARCHITECTURE = ("transformers_version", "_name_or_path", "torch_dtype", "use_cache", "initializer_range")


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """`parameters` counts all weights, towers of other modalities included; `devices` are what `flags` are made for."""

    model: str
    parameters: int
    devices: int
    flags: Mapping[str, Any]
    hf_config: Mapping[str, Any]


def preset_names() -> list[str]:
    """All presets, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


@cache
def read_preset(name: str) -> ModelPreset:
    """The preset `name`, whatever its case.

    Raises:
        ConfigError: there is none of that name; the nearest is named.
    """
    known = {each.lower(): each for each in preset_names()}
    if name.lower() not in known:
        close = nearest(name.lower(), known)
        hint = f"did you mean {known[close]}?" if close else f"known: {', '.join(known.values())}"
        raise ConfigError(f"--model-preset {name}: no such preset; {hint}")
    return ModelPreset(**yaml.safe_load((_FOLDER / f"{known[name.lower()]}.yaml").read_text(encoding="utf-8")))


def with_model_preset(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Add the flags of `--model-preset` to a sectioned configuration, where they are not given.

    Raises:
        ConfigError: no such preset.
    """
    name = sections.get("model", {}).get("model_preset")
    if name is None:
        return dict(sections)
    result: dict[str, Any] = {section: dict(values) for section, values in sections.items()}
    for field, value in read_preset(name).flags.items():
        result.setdefault(all_fields()[field].section, {}).setdefault(field, value)
    return result


def write_preset(
    directory: Path, name: str, *, model: str, parameters: int, devices: int, flags: Mapping[str, Any], folder: Path
) -> Path:
    """Make a preset of a model directory's `config.json`; returns its file."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    architecture = {key: value for key, value in config.items() if key not in _NOT_ARCHITECTURE}
    preset = ModelPreset(model, parameters, devices, dict(flags), architecture)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(asdict(preset), sort_keys=False), encoding="utf-8")
    return path


def main(argv: Sequence[str] | None = None) -> None:
    """Write one preset."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path, help="a model directory with config.json")
    parser.add_argument("name", help="of the preset")
    parser.add_argument("--model", required=True, help="its name on the Hugging Face hub")
    parser.add_argument("--parameters", type=int, required=True, help="number of weights, as its hub page says")
    parser.add_argument("--devices", type=int, default=8, help="devices of 80 GB that the flags are made for")
    parser.add_argument("--flags", type=json.loads, default={}, help="flags by field name, as JSON")
    parser.add_argument("--folder", type=Path, default=_FOLDER)
    options = parser.parse_args(argv)
    write_preset(
        options.directory,
        options.name,
        model=options.model,
        parameters=options.parameters,
        devices=options.devices,
        flags=options.flags,
        folder=options.folder,
    )


if __name__ == "__main__":
    main()
