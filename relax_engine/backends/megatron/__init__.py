"""The training backend on Megatron-core.

Importing this package imports Megatron-core (seconds) and, where there is no CUDA device, adapts
it to the CPU (`device.py`). Import it inside the functions that train, never in configuration or
command-line code.
"""

from relax_engine.backends.megatron import device as device

device.import_megatron()
