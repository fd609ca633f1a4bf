"""The HTTP API of the rollout: what every role has, and scaling.

`python -m relax_engine.components.rollout_api FILE` writes its OpenAPI document (`make docs`).
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import cloudpickle, serve

from relax_engine.components.role import ingress
from relax_engine.components.rollout import Rollout
from relax_engine.elastic.api import Elasticity, add_scaling


def _elasticity() -> Elasticity:
    """Of the replica that answers."""
    rollout: Any = serve.get_replica_context().servable_object
    elasticity: Elasticity = rollout.elasticity
    return elasticity


def _app() -> FastAPI:
    app = ingress(Rollout)
    add_scaling(app, _elasticity)
    return app


def openapi_document() -> dict[str, Any]:
    """The document that the service answers at `/rollout/openapi.json`."""
    app: FastAPI = pickle.loads(cloudpickle.dumps(_app()))  # as Serve does
    serve.ingress(app)(Rollout)  # this takes `self` out of the signatures
    return app.openapi()


RolloutDeployment = serve.deployment(serve.ingress(_app())(Rollout))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(openapi_document(), indent=2) + "\n")
