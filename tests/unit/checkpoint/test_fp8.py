"""FP8 exports: what is stored, and how far it is from what was."""

import json
from pathlib import Path

import pytest
import torch
from hf_models import config, make_model, read_weights

from relax_engine.checkpoint import export_checkpoint, import_checkpoint
from relax_engine.checkpoint.fp8 import Fp8
from relax_engine.cli.export import main

WEIGHT = torch.randn(50, 70, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 2, 50)[:, None]


def dequantised(quantised: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """q * s, scales spread over their blocks."""
    if scales.dim() == 1:
        return quantised.float() * scales
    spread = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return quantised.float() * spread[: quantised.shape[0], : quantised.shape[1]]


@pytest.mark.parametrize(
    ("fp8", "shape", "block"),
    [
        (Fp8("block", (16, 32)), (4, 3), (16, 32)),
        (Fp8("channel"), (50, 1), (1, 70)),
        (Fp8("tensor"), (1,), (50, 70)),
    ],
    ids=["block", "channel", "tensor"],
)
def test_every_number_is_within_half_a_unit_in_the_last_place(fp8: Fp8, shape: tuple[int, ...], block: tuple[int, int]):
    quantised, scales = fp8.quantise(WEIGHT)
    assert quantised.dtype is torch.float8_e4m3fn
    assert tuple(scales.shape) == shape == fp8.scale_shape((50, 70))
    # Each block's largest magnitude becomes 448.
    for i, band in enumerate(WEIGHT.split(block[0])):
        for j, cell in enumerate(band.split(block[1], dim=1)):
            scale = scales.view(-1, 1)[i, j] if scales.dim() == 1 else scales[i, j]
            torch.testing.assert_close(scale, cell.abs().max() / 448)
    spread = dequantised(torch.ones(50, 70), scales, block)
    error = (dequantised(quantised, scales, block) - WEIGHT).abs()
    # Three bits of mantissa: half a step is 2^-4 of a normal number, 2^-10 of the scale below 2^-6 of it.
    assert torch.all(error <= torch.maximum(WEIGHT.abs() * 2.0**-4, spread * 2.0**-10) * 1.001)


def test_zeros_stay_zeros():
    quantised, scales = Fp8("block", (4, 4)).quantise(torch.zeros(4, 4))
    assert torch.all(quantised.float() == 0)
    assert torch.all(torch.isfinite(scales))


@pytest.mark.parametrize("strategy", ["block", "channel", "tensor"])
def test_an_export_quantises_linear_layers_and_says_so(tmp_path: Path, strategy: str):
    origin = make_model(tmp_path / "hf", config(tied=False, dtype=torch.bfloat16), dtype=torch.bfloat16)
    run = import_checkpoint(origin, tmp_path / "run").root
    arguments = ["--input-dir", str(run), "--output-dir", str(tmp_path / "out"), "--origin-hf-dir", str(origin)]
    assert main([*arguments, "--fp8", "--fp8-strategy", strategy, "--fp8-block-size", "8", "16"]) == 0
    before, after = read_weights(origin), read_weights(tmp_path / "out")
    suffix = "_scale_inv" if strategy == "block" else "_scale"
    linear = {name for name in before if "_proj.weight" in name}
    assert len(linear) == 3 * 7
    assert after.keys() == before.keys() | {name + suffix for name in linear}
    block = {"block": (8, 16), "channel": (1, 10**6), "tensor": (1, 1)}[strategy]
    for name, tensor in before.items():
        if name in linear:
            back = dequantised(after[name], after[name + suffix], block)
            assert (back - tensor.float()).abs().max() <= tensor.float().abs().max() * 2.0**-4
        else:
            assert torch.equal(after[name], tensor)
    written = json.loads((tmp_path / "out/config.json").read_text())
    quantization = written["quantization_config"]
    assert written["dtype"] == "bfloat16"
    if strategy == "block":
        assert (quantization["quant_method"], quantization["weight_block_size"]) == ("fp8", [8, 16])
        assert quantization["modules_to_not_convert"] == ["lm_head", "model.embed_tokens"]
    else:
        weights = quantization["config_groups"]["group_0"]["weights"]
        assert (quantization["quant_method"], weights["strategy"]) == ("compressed-tensors", strategy)


def test_transformers_reads_the_blocks_as_the_weights_they_were(tmp_path: Path):
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    sizes = {**config(), "hidden_size": 32, "intermediate_size": 64, "head_dim": 16}
    origin = make_model(tmp_path / "hf", sizes)
    run = import_checkpoint(origin, tmp_path / "run").root
    out = export_checkpoint(run, tmp_path / "out", origin_hf_dir=origin, fp8=Fp8("block", (16, 16))).path
    model = AutoModelForCausalLM.from_pretrained(
        out, quantization_config=FineGrainedFP8Config(weight_block_size=(16, 16), dequantize=True), dtype=torch.float32
    )
    stored = read_weights(Path(out))
    name = "model.layers.1.mlp.down_proj.weight"
    expected = dequantised(stored[name], stored[f"{name}_scale_inv"], (16, 16))
    torch.testing.assert_close(model.state_dict()[name].float(), expected, rtol=1e-2, atol=0)
