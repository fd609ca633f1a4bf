"""A platform for SGLang: any x86 or ARM CPU that PyTorch runs on, in eager tensor operations.

SGLang finds it by the entry point `sglang.srt.platforms` and takes it when `$SGLANG_PLATFORM` is `relax_cpu`. Its own
CPU platform needs a build of `sgl_kernel` for AMX. What lives here: being found, and what must be so before SGLang is
imported. What does not: what the platform answers (`platform.py`), and how a server is started (`sglang_launch.py`).
"""

from __future__ import annotations

_PLATFORM = "relax_sglang_cpu.platform.PlainCpuPlatform"
_DETECTION_OPERATORS = ("nms", "qnms")
_libraries: list[object] = []


def activate() -> str:
    """The platform's class, by name; SGLang calls this before it imports anything that needs a platform."""
    _declare_detection_operators()
    return _PLATFORM


def _declare_detection_operators() -> None:
    """Let torchvision be imported beside a torch without CUDA.

    Its wheel may be built for CUDA; then its library of operators does not load, and the import stops where it
    registers their shapes. SGLang takes image transforms from it, which need no operator.
    """
    import torch

    if torch.version.cuda is not None:
        return  # they load, and declare themselves
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _DETECTION_OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)
