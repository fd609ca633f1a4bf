"""Rules about the model's checkpoint and how it is split and computed."""

from __future__ import annotations

import json
from pathlib import Path

from relax_engine.config.layout import read_layout
from relax_engine.config.roles import devices_of
from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def model_directory(config: RunConfig, report: Reporter) -> Findings:
    """--hf-checkpoint is a Hugging Face directory of a supported architecture, with a tokenizer."""
    from relax_engine.checkpoint.errors import UnsupportedModelError
    from relax_engine.checkpoint.families import UnknownArchitectureError, classifier_spec, model_spec, policy_spec

    if config.model.hf_checkpoint is None:
        yield report.error("hf_checkpoint", "no model is named", "--hf-checkpoint DIR with config.json and a tokenizer")
        return
    directory = Path(config.model.hf_checkpoint)
    description = directory / "config.json"
    if not directory.is_dir():
        yield report.error("hf_checkpoint", "no such directory", "download the model first, and name its directory")
        return
    if not description.is_file():
        yield report.error("hf_checkpoint", "the directory has no config.json", "name a Hugging Face model directory")
        return
    try:
        hf_config = json.loads(description.read_text(encoding="utf-8"))
        with_head = classifier_spec if config.algorithm.loss_type == "seq_cls" else policy_spec
        spec = with_head(model_spec(hf_config))
    except json.JSONDecodeError as error:
        yield report.error("hf_checkpoint", f"config.json is not valid JSON: {error}", "download the model again")
        return
    except (UnknownArchitectureError, UnsupportedModelError) as error:
        yield report.error("hf_checkpoint", str(error), "name a model of a supported architecture")
        return
    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        yield report.error("hf_checkpoint", "the directory has no tokenizer", "copy tokenizer.json beside config.json")
    context = config.rollout.rollout_max_context_len
    if context is not None and context > spec.max_position_embeddings:
        yield report.error(
            "rollout_max_context_len rollout_max_prompt_len rollout_max_response_len",
            f"{context} tokens are more than the model's {spec.max_position_embeddings} positions",
            f"--rollout-max-context-len {spec.max_position_embeddings}",
        )


@rule
def model_is_the_preset(config: RunConfig, report: Reporter) -> Findings:
    """The model directory has the architecture that the preset says."""
    from relax_engine.config.model_presets import read_preset

    name, directory = config.model.model_preset, config.model.hf_checkpoint
    if name is None or directory is None:
        return
    path = Path(directory, "config.json")
    if not path.is_file():
        return  # `model_directory` says so
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return
    expected = read_preset(name).hf_config
    sizes = [key for key, value in expected.items() if isinstance(value, int) and not key.endswith("_token_id")]
    wrong = [key for key in (*sizes, "architectures") if key in found and found[key] != expected[key]]
    if wrong:
        shown = ", ".join(f"{key} {found[key]} instead of {expected[key]}" for key in wrong[:4])
        yield report.error(
            "model_preset hf_checkpoint",
            f"config.json is of another model: {shown}",
            "the preset of this model, or none",
        )


@rule
def media_need_a_media_model(config: RunConfig, report: Reporter) -> Findings:
    """Media columns are read by models that read media of that kind."""
    from relax_engine.multimodal.model import family_of

    wanted = config.media.multimodal_keys
    if not wanted:
        return
    try:
        family = family_of(config.model.hf_checkpoint or "")
    except (OSError, ValueError):
        return  # `model_directory` says so
    if family is None:
        yield report.error(
            "multimodal_keys hf_checkpoint",
            "this model reads text only, so the media would be ignored",
            "remove --multimodal-keys",
        )
        return
    for kind in wanted:
        if kind not in family.placeholders:
            yield report.error(
                "multimodal_keys hf_checkpoint",
                f"this model reads {', '.join(family.placeholders)}, no {kind!r}",
                "name columns by the kinds that it reads, or another model",
            )


@rule
def media_budgets_are_ranges(config: RunConfig, report: Reporter) -> Findings:
    """The least that a medium takes is not above the most."""
    media = config.media
    for least, most in (
        ("image_min_token_num", "image_max_token_num"),
        ("video_min_token_num", "video_max_token_num"),
        ("video_fps_min_frames", "video_fps_max_frames"),
    ):
        low, high = getattr(media, least), getattr(media, most)
        if low > high:
            yield report.error(f"{least} {most}", f"{low} is above {high}", f"a smaller --{least.replace('_', '-')}")


@rule
def model_divides(config: RunConfig, report: Reporter) -> Findings:
    """The model's heads, experts and layers divide over the layout."""
    from relax_engine.checkpoint.divisibility import misfits
    from relax_engine.checkpoint.errors import UnsupportedModelError
    from relax_engine.checkpoint.families import UnknownArchitectureError, model_spec

    try:
        layout = read_layout(config.flat)
        description = Path(config.model.hf_checkpoint or "", "config.json").read_text(encoding="utf-8")
        spec = model_spec(json.loads(description))
    except (OSError, json.JSONDecodeError, UnknownArchitectureError, UnsupportedModelError):
        return  # `model_directory` says so
    except ValueError as error:
        if not config.parallelism.sequence_parallel or config.parallelism.tensor_model_parallel_size > 1:
            names = (
                "pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank decoder_first_pipeline_num_layers"
            )
            yield report.error(names, str(error), "--pipeline-model-parallel-size 2, or leave the others out")
        return
    for flags, problem in misfits(spec, layout):
        yield report.error(flags, problem, "choose sizes that divide")


@rule
def experts_fit_the_devices(config: RunConfig, report: Reporter) -> Findings:
    """The actor's devices are a whole number of sets of experts."""
    try:
        layout = read_layout(config.flat)
    except ValueError:
        return  # `model_divides` says so
    devices, needed = devices_of(config, "actor"), layout.experts_tensor * layout.expert * layout.pipeline
    if layout.expert > 1 and devices % needed:
        yield report.error(
            "expert_model_parallel_size expert_tensor_parallel_size pipeline_model_parallel_size resource",
            f"{devices} actor devices are not a multiple of {needed}, over which one set of experts lies",
            f"a multiple of {needed} devices, or a smaller --expert-model-parallel-size",
        )


@rule
def sequence_parallel_needs_tensor_parallel(config: RunConfig, report: Reporter) -> Findings:
    """Sequence parallelism splits activations over tensor-parallel ranks."""
    if config.parallelism.sequence_parallel and config.parallelism.tensor_model_parallel_size == 1:
        yield report.error(
            "sequence_parallel tensor_model_parallel_size",
            "there are no tensor-parallel ranks to split the sequence over",
            "remove --sequence-parallel, or --tensor-model-parallel-size 2",
        )


@rule
def recompute_is_complete(config: RunConfig, report: Reporter) -> Findings:
    """Full recomputation says how and how many layers; selective says neither."""
    model = config.model
    details = [name for name in ("recompute_method", "recompute_num_layers") if getattr(model, name) is not None]
    if model.recompute_granularity == "full" and len(details) < 2:
        yield report.error(
            "recompute_granularity recompute_method recompute_num_layers",
            "recomputing whole layers needs a method and a number of layers",
            "--recompute-method uniform --recompute-num-layers 1",
        )
    if model.recompute_granularity != "full" and details:
        yield report.warning(
            f"{' '.join(details)} recompute_granularity",
            "without effect: these belong to the recomputation of whole layers",
            "--recompute-granularity full, or leave them out",
        )


@rule
def frozen_parts_exist(config: RunConfig, report: Reporter) -> Findings:
    """--freeze-... names parts that the model has, and leaves some of it to train."""
    from relax_engine.multimodal.model import family_of

    prefix = "freeze_"
    frozen = [
        name.removeprefix(prefix) for name, on in config.model.model_dump().items() if name.startswith(prefix) and on
    ]
    directory = Path(config.model.hf_checkpoint or "")
    if not frozen or not (directory / "config.json").is_file():
        return
    try:
        family = family_of(directory)
    except (ValueError, KeyError):
        return  # `model_directory` says so
    kinds = () if family is None else family.placeholders
    present = ["language_model"]
    present += [f"vision_{part}" for part in ("model", "projection") if "image" in kinds]
    present += [f"audio_{part}" for part in ("model", "projection") if "audio" in kinds]
    for part in frozen:
        if part not in present:
            yield report.error(
                f"freeze_{part} hf_checkpoint",
                f"the model has no {part.partition('_')[0]} encoder",
                f"remove --freeze-{part.replace('_', '-')}",
            )
    if set(present) <= set(frozen):
        yield report.error(
            " ".join(f"freeze_{part}" for part in present), "nothing is left to train", "freeze less of the model"
        )
