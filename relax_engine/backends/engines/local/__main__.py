"""`python -m relax_engine.backends.engines.local`: serve one model directory."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from pathlib import Path

from pydantic import SecretStr

from relax_engine.access.policy import ENGINE_KEY_VARIABLE
from relax_engine.utils.logging import redact_records

logger = logging.getLogger("relax_engine.engine")

_PARENT_POLL_S = 0.5


def build_parser() -> argparse.ArgumentParser:
    """The command line; names are those of `sglang.launch_server`."""
    parser = argparse.ArgumentParser(prog="relax_engine.backends.engines.local", description=__doc__)
    parser.add_argument("--model-path", type=Path, required=True, help="Hugging Face model directory.")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on.")
    parser.add_argument("--port", type=int, default=30000, help="Port to listen on.")
    parser.add_argument("--fd", type=int, help="Serve on this inherited listening socket instead of host and port.")
    parser.add_argument("--max-running-requests", type=int, default=256, help="Most requests decoded together.")
    parser.add_argument("--max-total-tokens", type=int, help="Tokens in the cache; default from a 2 GiB budget.")
    parser.add_argument("--context-length", type=int, help="Most tokens of prompt and response; default the model's.")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="auto: by device.")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda where present.")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a matrix product.")
    parser.add_argument("--random-seed", type=int, default=0, help="Seeds requests that bring no sampling_seed.")
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto", help="dummy: random weights.")
    parser.add_argument("--weight-version", default="0", help="Version of the weights loaded at start.")
    parser.add_argument("--skip-tokenizer-init", action="store_true", help="Token ids only, no text.")
    parser.add_argument(
        "--enable-return-routed-experts", action="store_true", help="Answer return_routed_experts of /generate."
    )
    parser.add_argument("--media-budget", help="Tokens of media, as JSON of `MediaBudget`'s fields.")
    parser.add_argument("--dist-timeout", type=float, default=60.0, help="Seconds for a weight transfer's steps.")
    parser.add_argument("--weight-store", help="URL of a weight store whose newest version is served from the start.")
    parser.add_argument("--api-key", help=f"Bearer token that requests need; default ${ENGINE_KEY_VARIABLE}.")
    parser.add_argument("--parent-pid", type=int, help="End when this process is no longer the parent.")
    parser.add_argument("--log-level", default="info", help="debug, info, warning or error.")
    return parser


def watch_parent(parent: int) -> None:
    """End this process when `parent` has gone, whatever else is going on."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        logger.error("parent process %d has ended; the engine ends too", parent)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted; 2 when the model cannot be served."""
    args, ignored = build_parser().parse_known_args(argv)
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    redact_records()
    if args.parent_pid is not None:
        watch_parent(args.parent_pid)
    if ignored:
        logger.warning("arguments that the embedded engine has no use for: %s", " ".join(ignored))
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))

    import torch
    import uvicorn

    from relax_engine.backends.engines.local.engine import EngineOptions, LocalEngine
    from relax_engine.backends.engines.local.errors import EngineError
    from relax_engine.backends.engines.local.server import build_app
    from relax_engine.backends.engines.local.weight_update import WeightReceiver
    from relax_engine.multimodal.processor import MediaBudget

    device = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    dtype = args.dtype if args.dtype != "auto" else "float32" if device == "cpu" else "bfloat16"
    started = time.monotonic()
    try:
        engine = LocalEngine(
            EngineOptions(
                model_path=args.model_path,
                max_running_requests=args.max_running_requests,
                max_total_tokens=args.max_total_tokens,
                context_length=args.context_length,
                dtype=dtype,
                device=device,
                threads=args.threads,
                random_seed=args.random_seed,
                load_format=args.load_format,
                weight_version=args.weight_version,
                skip_tokenizer_init=args.skip_tokenizer_init,
                return_routed_experts=args.enable_return_routed_experts,
                media_budget=MediaBudget.from_json(args.media_budget) if args.media_budget else MediaBudget(),
            )
        )
    except EngineError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    logger.info(
        "%s on %s in %s, %d cache tokens, loaded in %.2f s",
        engine.arch.name, device, dtype, engine.max_total_tokens, time.monotonic() - started,
    )  # fmt: skip
    engine.start()
    receiver = WeightReceiver(engine, timeout_s=args.dist_timeout)
    try:
        if args.weight_store and receiver.join_late(args.weight_store):
            logger.info("version %s of %s", engine.scheduler.version, args.weight_store)
    except EngineError as error:
        sys.stderr.write(f"error: {error}\n")
        engine.close()
        return 2
    key = args.api_key or os.environ.get(ENGINE_KEY_VARIABLE)
    app = build_app(engine, receiver, SecretStr(key) if key else None)
    address = {"fd": args.fd} if args.fd is not None else {"host": args.host, "port": args.port}
    uvicorn.run(app, log_level="warning", access_log=False, timeout_keep_alive=75, **address)
    receiver.close()
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
