"""``relax import``: a Hugging Face model directory to a Megatron distributed checkpoint."""

from __future__ import annotations

import argparse
import logging
import sys


def main(argv: list[str]) -> int:
    """Run the import. Returns 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="relax import", description="Convert a Hugging Face model (safetensors) to a Megatron checkpoint."
    )
    parser.add_argument("--hf-checkpoint", required=True, metavar="DIR", help="config.json and *.safetensors")
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="run root to create; usable as --load, or s3://..."
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="default: as stored")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    from relax_engine.checkpoint.errors import CheckpointError, UnsupportedModelError
    from relax_engine.checkpoint.families import UnknownArchitectureError
    from relax_engine.checkpoint.importer import import_checkpoint
    from relax_engine.checkpoint.mapping import WeightMappingError

    try:
        result = import_checkpoint(options.hf_checkpoint, options.output, dtype=options.dtype)
    except (CheckpointError, UnknownArchitectureError, UnsupportedModelError, WeightMappingError, OSError) as error:
        print(f"relax import: {error}", file=sys.stderr)
        return 1
    print(result.path)
    return 0
