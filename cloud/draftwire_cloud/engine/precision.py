"""Choice of device and arithmetic type."""

from typing import Literal

import torch

DtypeName = Literal["auto", "bfloat16", "float32"]


def pick_device(name: str = "auto") -> torch.device:
    """The device of that name; ``auto`` takes a GPU where there is one."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def pick_dtype(name: DtypeName, device: torch.device) -> torch.dtype:
    """The arithmetic type of that name; ``auto`` takes bf16 where the hardware computes in it.

    Raises:
        ValueError: for an unknown name.
    """
    if name == "float32":
        return torch.float32
    if name == "bfloat16":
        return torch.bfloat16
    if name != "auto":
        raise ValueError(f"dtype must be auto, bfloat16 or float32, not {name!r}")
    return torch.bfloat16 if has_fast_bf16(device) else torch.float32


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 matrix products are native there.

    On x86 torch also takes bf16 without instructions for it, and is then slower than float32: only
    AVX-512 BF16, AMX and the bf16 extension of Arm count.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "mps":
        return True
    features = torch.cpu.get_capabilities()
    return any(bool(features.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))
