"""Tensors within what a forward takes and returns, and tensors over memory that is not torch's."""

from __future__ import annotations

import collections.abc
import dataclasses
import math

import torch

from . import _torch_private as private

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


def at(address: int, shape, dtype: torch.dtype, gpu: int = -1) -> torch.Tensor:
    """A tensor over memory at `address`, which must outlive it; gpu: whose memory, -1: the host's."""
    device = torch.device("cuda", gpu) if gpu >= 0 else torch.device("cpu")
    tensor = torch.empty(0, dtype=dtype, device=device)
    size_bytes = math.prod(shape) * tensor.element_size()
    if size_bytes == 0:
        return tensor.view(shape)
    return tensor.set_(private.storage_at(address, size_bytes, device), 0, shape)


def to_bytes(tensor: torch.Tensor) -> bytes:
    dense = tensor.detach().contiguous()
    if dense.numel() == 0:
        return b""
    return bytes(dense.view(-1).view(torch.uint8).cpu().numpy())
