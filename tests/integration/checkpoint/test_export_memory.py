"""An export streams: its memory follows the largest tensor, not the checkpoint."""

import json
import math
import subprocess
import sys
from pathlib import Path

from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.mapping import WeightMap

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 16,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 16000,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
LARGEST_BYTES = 16000 * 512 * 4
CONSTANT_BYTES = 24 << 20

# Peak resident memory is measured over the export alone, after all imports and a first small read.
MEASURE = """
import sys
import torch
from relax_engine.checkpoint.exporter import export_checkpoint
from relax_engine.checkpoint.dcp_reader import DcpReader
run, out, origin, dtype = sys.argv[1:5]
torch.set_num_threads(1)
DcpReader(run + "/iter_0000000").read("decoder.final_layernorm.weight")
torch.ones(1).to(torch.bfloat16)
open("/proc/self/clear_refs", "w").write("5")
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
before = peak()
export_checkpoint(run, out, origin_hf_dir=origin, dtype=None if dtype == "stored" else dtype)
print(peak() - before)
"""

MAKE = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.importer import import_checkpoint
from relax_engine.checkpoint.mapping import WeightMap
folder, run, config = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
folder.mkdir()
(folder / "config.json").write_text(json.dumps(config))
weights = WeightMap(model_spec(config))
tensors = {}
for mapping in weights.parameters.values():
    tensors |= {n: p.contiguous() for n, p in weights.split(mapping.name, torch.ones(mapping.shape))}
save_file(tensors, folder / "model.safetensors")
import_checkpoint(folder, run)
"""


def python(program: str, *arguments: object) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout


def test_peak_memory_of_an_export_is_bounded_by_the_largest_tensor(tmp_path: Path):
    total = sum(4 * math.prod(m.shape) for m in WeightMap(model_spec(CONFIG)).parameters.values())
    assert total > 200e6
    python(MAKE, tmp_path / "hf", tmp_path / "run", json.dumps(CONFIG))
    for dtype in ("stored", "bfloat16"):
        used = int(python(MEASURE, tmp_path / "run", tmp_path / f"out-{dtype}", tmp_path / "hf", dtype))
        assert used < 1.5 * LARGEST_BYTES + CONSTANT_BYTES, f"{dtype}: {used / 1e6:.0f} MB for {total / 1e6:.0f} MB"
