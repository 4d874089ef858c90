"""Tensors within what a forward takes and returns, and tensors over memory that is not torch's."""

from __future__ import annotations

import collections.abc
import ctypes
import dataclasses

import torch

# By tessera_dtype.
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FULL = (torch.float32, torch.float64)
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


def each(value) -> list[torch.Tensor]:
    """The tensors in it: in lists, tuples, dicts, dataclasses, and objects that hold these."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple, set, frozenset)):
        items = value
    elif isinstance(value, collections.abc.Mapping):
        items = value.values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return [value.data]
    else:
        return []
    found = []
    for item in items:
        found += [item] if isinstance(item, torch.Tensor) else each(item)
    return found


def cast_floating(value, dtype: torch.dtype):
    """The same with floating-point tensors in `dtype`; containers of other types stay."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(cast_floating(item, dtype) for item in value)
    if type(value) is dict:
        return {key: cast_floating(item, dtype) for key, item in value.items()}
    return value


_SAME_SIZE = {torch.float32: "<f4", torch.float64: "<f8", torch.bfloat16: "<i2",
              torch.float16: "<f2"}


class _GpuMemory:
    """What torch.as_tensor takes for memory of a GPU."""

    def __init__(self, address: int, numel: int, dtype: torch.dtype):
        # numpy's names of types have no bf16.
        self.__cuda_array_interface__ = {
            "shape": (numel,), "typestr": _SAME_SIZE[dtype], "data": (address, False),
            "strides": None, "version": 3}


def at(address: int, shape, dtype: torch.dtype, gpu: int = -1) -> torch.Tensor:
    """A tensor over memory at `address`, which must outlive it; gpu: whose memory, -1: the host's."""
    numel = 1
    for size in shape:
        numel *= size
    if gpu >= 0:
        device = torch.device("cuda", gpu)
        if numel == 0:
            return torch.empty(shape, dtype=dtype, device=device)
        flat = torch.as_tensor(_GpuMemory(address, numel, dtype), device=device)
        return flat.view(dtype).view(shape)
    if numel == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    size_bytes = numel * torch.empty((), dtype=dtype).element_size()
    buffer = (ctypes.c_char * size_bytes).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def to_bytes(tensor: torch.Tensor) -> bytes:
    dense = tensor.detach().contiguous()
    if dense.numel() == 0:
        return b""
    return bytes(dense.view(-1).view(torch.uint8).cpu().numpy())
