"""A site that lends an engine: a job on its own Ray cluster, which starts one and writes where it answers.

`python lending_site.py RAY_ADDRESS MODEL`; ends with its standard input.
"""

from __future__ import annotations

import os
import sys

import ray
from pydantic import SecretStr

from relax_engine.backends.engines.starting import EngineStart
from relax_engine.components.engine_host import EngineHost


def main() -> None:
    address, model = sys.argv[1:]
    ray.init(address=address, log_to_driver=False)
    start = EngineStart("local", model, timeout_s=120.0, api_key=SecretStr(os.environ["RELAX_ENGINE_API_KEY"]))
    host = ray.remote(EngineHost).options(num_cpus=1).remote(start)
    url, _, _ = ray.get(host.facts.remote(), timeout=180)
    print(url, flush=True)
    sys.stdin.read()
    ray.get(host.close.remote(), timeout=30)


if __name__ == "__main__":
    main()
