"""A site that lends an engine: a job on its own Ray cluster, which starts one and writes where it answers.

`python lending_site.py RAY_ADDRESS MODEL`; ends with its standard input.
"""

from __future__ import annotations

import sys

import ray

from relax_engine.components.engine_host import EngineHost


def main() -> None:
    address, model = sys.argv[1:]
    ray.init(address=address, log_to_driver=False)
    host = ray.remote(EngineHost).options(num_cpus=1).remote({"model_path": model, "timeout_s": 120.0})
    url, _, _ = ray.get(host.facts.remote(), timeout=180)
    print(url, flush=True)
    sys.stdin.read()
    ray.get(host.close.remote(), timeout=30)


if __name__ == "__main__":
    main()
