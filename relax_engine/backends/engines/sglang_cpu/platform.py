"""What SGLang asks a platform: its device, its kernels, and what it can do."""

from __future__ import annotations

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class PlainCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """A CPU without kernels of its own: PyTorch's attention, every layer's plain implementation, no graphs."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def is_pin_memory_available(self, device: object = None) -> bool:
        """Nothing is copied to another device."""
        return False

    def get_default_attention_backend(self) -> str:
        """PyTorch's scaled dot product, one sequence after the other."""
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        """Layers take their `forward_native`."""
        return "native"

    def get_compile_backend(self, mode: str | None = None) -> str:
        """Only asked for where `torch.compile` is switched on."""
        return "inductor"
