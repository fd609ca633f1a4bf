"""What Megatron-core assumes about CUDA, and what stands in for it on a CPU-only host.

What lives here: importing Megatron-core, the substitutes, and the choice of device and
communication backend. What does not: anything about models or training.

Megatron-core asks `torch.cuda` for devices, streams and RNG state unconditionally, and passes
`device="cuda"` as a literal. Instead of patching torch for the whole process, its modules are given
their own view of `torch`: a module with torch's contents in which only those names differ. Code
outside `megatron.core` sees torch as it is. Where CUDA is present `import_megatron` substitutes
nothing, but for `HAVE_TE` of latent attention, which is false without Transformer Engine there, too. The names
substituted are private to Megatron-core 0.16.1, which is why its version is pinned.

Substitutes, and who needs them:

| name | used by | on the CPU |
|---|---|---|
| `torch.cuda.current_device` | communication buffers, weight initialisation | `torch.device("cpu")` |
| `torch.cuda.get_rng_state`, `manual_seed`, `_set_cuda_rng_state` | RNG tracker | the CPU generator |
| `torch.cuda.synchronize` | process groups, checkpoints | nothing to wait for |
| `torch.cuda.current_stream`, `stream` | pipeline communication, experts' dispatch | a stream that is always done |
| `maybe_move_tensor_to_cpu` | experts' all-to-all | counts as NumPy arrays also where they are on the CPU already |
| `Tensor.cuda` | copy of a tied embedding on the last pipeline stage | the tensor, which is there already |
| `te_general_gemm` | router | absent, which its module forgets to say without Transformer Engine |
| `device="cuda"` in factory calls | schedules, optimizer, gradient norm | `"cpu"` |
| `Tensor.type() == "torch.cuda.FloatTensor"` | optimizer constructors | compared without `cuda` |
| `torch.compile` of small fusions at import | activation fusions (unused here) | left uncompiled |
| `linear_with_*` of the parallel layers | all float32 matrix products | oneDNN's (`products.py`), where torch has it |
| `FusedAdam`'s shared step count | distributed optimizer's checkpoint | torch AdamW's per-parameter step |
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from relax_engine.backends.megatron import products

_MODULES = (
    "megatron.core",
    "megatron.core.parallel_state",
    "megatron.core.tensor_parallel",
    "megatron.core.models.gpt",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.pipeline_parallel",
    "megatron.core.distributed",
    "megatron.core.optimizer",
    "megatron.core.optimizer_param_scheduler",
    "megatron.core.dist_checkpointing",
    "megatron.core.dist_checkpointing.strategies.torch",
    "megatron.core.transformer.multi_latent_attention",
)

_FACTORIES = ("arange", "empty", "full", "ones", "tensor", "zeros")


def compute_device() -> torch.device:
    """The device that parameters and activations of this process live on."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def communication_backend() -> str:
    """The `torch.distributed` backend for `compute_device`."""
    return "nccl" if torch.cuda.is_available() else "gloo"


@functools.cache
def import_megatron() -> None:
    """Import Megatron-core's modules and, without CUDA, give them the substitutes. Runs once."""
    on_cpu = not torch.cuda.is_available()
    with _quiet_import(), _without_compilation() if on_cpu else contextlib.nullcontext():
        for name in _MODULES:
            importlib.import_module(name)
    _silence_known_deprecations()
    _know_what_is_absent()
    if on_cpu:
        _give_cpu_view_of_torch()
        _forget_stream_advice()
        _use_cpu_generator()
        _accept_cpu_tensor_types()
        _keep_step_per_parameter()
        _route_on_cpu()
        _keep_tied_embedding()
        if products.available():
            products.replace_linear_functions()


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Hide the notices about absent Transformer Engine and Apex, optional here, and Megatron's own old imports."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"megatron\.core\..*")
        warnings.filterwarnings("ignore", message=r".*(Transformer Engine|Apex).*not installed", category=UserWarning)
        yield


def _silence_known_deprecations() -> None:
    """Calls inside Megatron 0.16 that torch 2.13 comments on at run time; nothing a user could change."""
    for category, message in (
        (FutureWarning, "`torch.distributed.(reduce_scatter_tensor|all_gather_into_tensor)` is deprecated"),
        (UserWarning, "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed"),
        (DeprecationWarning, "Warning: tp_group is None, using default tp group"),
    ):
        warnings.filterwarnings("ignore", message=message, category=category)


def _know_what_is_absent() -> None:
    """Latent attention takes Transformer Engine for present where its import only left placeholders."""
    latent: Any = importlib.import_module("megatron.core.transformer.multi_latent_attention")
    latent.HAVE_TE = isinstance(latent.TELinear, type)


@contextlib.contextmanager
def _without_compilation() -> Iterator[None]:
    """Megatron decorates fusions with `torch.compile` at import: on a CPU they would need a C++ compiler."""
    original = torch.compile
    torch.compile = lambda function=None, **_: function if function is not None else (lambda f: f)  # type: ignore
    try:
        yield
    finally:
        torch.compile = original


class _FinishedStream:
    """Stands in for a CUDA stream or event: work submitted to a CPU is done when the call returns."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, *_: Any) -> None:
        pass

    def wait_event(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record_event(self) -> _FinishedStream:
        return self


def _copy_module(module: types.ModuleType) -> types.ModuleType:
    copy = types.ModuleType(module.__name__)
    copy.__dict__.update(module.__dict__)
    return copy


def _give_cpu_view_of_torch() -> None:
    cpu = torch.device("cpu")
    view = _copy_module(torch)
    cuda = _copy_module(torch.cuda)
    cuda.__dict__.update(
        current_device=lambda: cpu,
        get_rng_state=lambda *_, **__: torch.get_rng_state(),
        manual_seed=lambda seed: torch.manual_seed(seed),
        synchronize=lambda *_: None,
        current_stream=lambda *_: _FinishedStream(),
        default_stream=lambda *_: _FinishedStream(),
        stream=lambda *_: contextlib.nullcontext(),
        Stream=_FinishedStream,
        Event=_FinishedStream,
    )
    view.__dict__["cuda"] = cuda
    for name in _FACTORIES:
        view.__dict__[name] = _on_cpu(getattr(torch, name))
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and getattr(module, "torch", None) is torch:
            module.__dict__["torch"] = view


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def on_cpu(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "device" in kwargs and kwargs["device"] is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return on_cpu


def _forget_stream_advice() -> None:
    """Megatron advises CUDA_DEVICE_MAX_CONNECTIONS=1 for overlapping kernels, once; a CPU has no use for it."""
    layers = importlib.import_module("megatron.core.tensor_parallel.layers")
    layers.linear_with_grad_accumulation_and_async_allreduce.warned = True


def _use_cpu_generator() -> None:
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random.__dict__["_get_cuda_rng_state"] = lambda *_, **__: torch.get_rng_state()
    random.__dict__["_set_cuda_rng_state"] = lambda state, *_, **__: torch.set_rng_state(state)


def _accept_cpu_tensor_types() -> None:
    """Optimizer constructors ask for `torch.cuda.*Tensor` by name."""
    optimizer = importlib.import_module("megatron.core.optimizer.optimizer")
    distributed = importlib.import_module("megatron.core.optimizer.distrib_optimizer")
    for cls in (optimizer.Float16OptimizerWithFloat16Params, distributed.DistributedOptimizer):
        cls.__init__ = _with_cuda_type_names(cls.__init__)


def _keep_tied_embedding() -> None:
    """The copy of a tied embedding is moved to the GPU when it is made."""
    cls = importlib.import_module("megatron.core.models.common.language_module.language_module").LanguageModule
    cls.setup_embeddings_and_output_layer = _with_method(
        cls.setup_embeddings_and_output_layer, "cuda", lambda tensor, *_, **__: tensor
    )


def _with_cuda_type_names(function: Callable[..., Any]) -> Callable[..., Any]:
    original = torch.Tensor.type

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    return _with_method(function, "type", type_name)


def _with_method(function: Callable[..., Any], name: str, substitute: Callable[..., Any]) -> Callable[..., Any]:
    """`function` where, while it runs, tensors have another method `name`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        original = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, substitute)
        try:
            return function(*args, **kwargs)
        finally:
            setattr(torch.Tensor, name, original)

    return call


def _keep_step_per_parameter() -> None:
    """Let the distributed optimizer's checkpoint round-trip with torch AdamW.

    FusedAdam keeps one step count per group. torch AdamW keeps a `step` tensor per parameter, which a
    resharded checkpoint does not carry, and which loading would make one tensor shared by all.
    """
    cls = importlib.import_module("megatron.core.optimizer.distrib_optimizer").DistributedOptimizer
    set_states, load = cls._set_main_param_and_optimizer_states, cls.load_state_dict

    def set_with_step(self: Any, model_param: torch.Tensor, tensors: dict[str, torch.Tensor]) -> Any:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        if "step" in state:
            tensors.setdefault("step", state["step"])
        return set_states(self, model_param, tensors)

    def load_with_own_steps(self: Any, state_dict: dict[str, Any]) -> Any:
        result = load(self, state_dict)
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()
        return result

    cls._set_main_param_and_optimizer_states = set_with_step
    cls.load_state_dict = load_with_own_steps


def _route_on_cpu() -> None:
    """Counts for an all-to-all leave Megatron's dispatcher as NumPy arrays only if they came from a GPU."""
    dispatcher: Any = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    utils: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    original = dispatcher.maybe_move_tensor_to_cpu

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        moved = original(tensor, as_numpy, record_stream)
        return moved.numpy() if as_numpy and isinstance(moved, torch.Tensor) else moved

    dispatcher.maybe_move_tensor_to_cpu = move
    if not hasattr(utils, "te_general_gemm"):
        utils.te_general_gemm = None
