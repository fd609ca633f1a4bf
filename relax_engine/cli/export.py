"""``relax export``: a Megatron distributed checkpoint to a Hugging Face model directory."""

from __future__ import annotations

import argparse
import logging
import sys


def main(argv: list[str]) -> int:
    """Run the export. Returns 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="relax export", description="Convert a Megatron checkpoint to a Hugging Face model (safetensors)."
    )
    parser.add_argument("--input-dir", required=True, metavar="DIR", help="a run root (its latest is taken) or iter_*")
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="directory or s3://bucket/prefix to create")
    parser.add_argument(
        "--origin-hf-dir", required=True, metavar="DIR", help="the model the run began with: config and tokenizer"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the output directory if it exists")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="default: as stored")
    parser.add_argument("--max-shard-mb", type=int, default=5120, metavar="MIB", help="size of one file (default 5120)")
    parser.add_argument("--fp8", action="store_true", help="store the weights of linear layers as 8-bit floats")
    parser.add_argument(
        "--fp8-strategy", choices=["block", "channel", "tensor"], default="block", help="what has a scale"
    )
    parser.add_argument("--fp8-block-size", type=int, nargs=2, default=[128, 128], metavar=("ROWS", "COLUMNS"))
    parser.add_argument(
        "--adapters-only", action="store_true", help="of a checkpoint of adapters, a PEFT directory; default: merged"
    )
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    from relax_engine.checkpoint.errors import CheckpointError, UnsupportedModelError
    from relax_engine.checkpoint.exporter import export_checkpoint
    from relax_engine.checkpoint.families import UnknownArchitectureError
    from relax_engine.checkpoint.fp8 import Fp8

    rows, columns = options.fp8_block_size
    try:
        result = export_checkpoint(
            options.input_dir,
            options.output_dir,
            origin_hf_dir=options.origin_hf_dir,
            dtype=options.dtype,
            fp8=Fp8(options.fp8_strategy, (rows, columns)) if options.fp8 else None,
            max_shard_bytes=options.max_shard_mb * 2**20,
            force=options.force,
            adapters_only=options.adapters_only,
        )
    except (CheckpointError, UnknownArchitectureError, UnsupportedModelError, ValueError, OSError) as error:
        print(f"relax export: {error}", file=sys.stderr)
        return 1
    print(result.path)
    return 0
