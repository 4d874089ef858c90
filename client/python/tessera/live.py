"""A job's state while it trains, for a process outside of it: an evaluation, a comparison."""

from __future__ import annotations

import ctypes as C
import dataclasses
import json
import os

import torch

from . import _cluster, _plan, _tensors
from ._library import LiveOptions, Tensor, lib
from .errors import TesseraError

_DTYPES = {torch.float32: b"fp32", torch.bfloat16: b"bf16", torch.float16: b"fp16"}


@dataclasses.dataclass
class Live:
    """What read() found: all of one committed step, on all ranks."""

    step: int  # The last one that was trained.
    tensors: dict[str, torch.Tensor]  # By name, whole, in host memory; buffers are rank 0's.


def read(job: str | None = None, include=(), exclude=(), *, dtype: torch.dtype | None = None,
         moments: bool = False, buffers: bool = True, coordinator: str | None = None,
         tls: tuple[str, str, str] | None = None, insecure: bool = False) -> Live:
    """Reads parameters, and what else is asked for, of a job that trains. No trainer takes part.

        state = tessera.live.read("train", coordinator="unix:/run/tessera-coordinator/coordinator.sock")
        model.load_state_dict(state.tensors)

    job, coordinator: None: TESSERA_JOB and TESSERA_COORDINATOR of the environment. tls, insecure: as
      init()'s.
    include, exclude: patterns of names; "*" is any text, "?" any one byte. No include: all.
    dtype: what parameters and moments are rounded to; None: as the job keeps them.
    moments: the optimizer's state too, as "state.NAME.exp_avg".
    Errors: TesseraError NOT_FOUND  no such job or name; FAILED_PRECONDITION  it has no values yet;
      UNAVAILABLE, DEADLINE_EXCEEDED  nothing answers; PERMISSION_DENIED  not yours to read.
    """
    coordinator = coordinator or os.environ.get("TESSERA_COORDINATOR")
    job = job or os.environ.get("TESSERA_JOB")
    if not coordinator or not job:
        raise TesseraError("live.read() needs job= and coordinator=, or TESSERA_JOB and "
                           "TESSERA_COORDINATOR in the environment", "INVALID_ARGUMENT")
    if dtype is not None and dtype not in _DTYPES:
        raise TesseraError(f"dtype: {dtype} is not float32, bfloat16 or float16",
                           "INVALID_ARGUMENT")
    tls, insecure = _cluster.protection(tls, insecure)
    options = LiveOptions(
        coordinator_address=coordinator.encode(), job_id=job.encode(), insecure_connect=insecure,
        include=_texts(include), num_include=len(include), exclude=_texts(exclude),
        num_exclude=len(exclude), moments=moments, no_buffers=not buffers,
        dtype=_DTYPES.get(dtype))
    if tls:
        options.tls_certificate_path, options.tls_key_path, options.tls_ca_path = (
            path.encode() for path in tls)
    found, text = lib.tensors_new(), C.c_void_p()
    try:
        lib.live_read(C.byref(options), found, C.byref(text))
        description = json.loads(C.string_at(text).decode("utf-8", "replace"))
        tensors = _taken(found)
    finally:
        lib.free(text)
        lib.tensors_delete(found)
    for alias, name in description["aliases"].items():
        if name in tensors:
            tensors[alias] = tensors[name]
    return Live(description["step"], tensors)


def _texts(names):
    if isinstance(names, str):
        raise TesseraError("include and exclude are lists of patterns", "INVALID_ARGUMENT")
    return (C.c_char_p * len(names))(*[name.encode() for name in names])


def _taken(found) -> dict[str, torch.Tensor]:
    types = {name: dtype for dtype, name in _plan.STORED_DTYPES.items()}
    tensors = {}
    for index in range(lib.tensors_size(found)):
        described = Tensor()
        lib.tensors_get(found, index, C.byref(described))
        shape = [described.shape[i] for i in range(described.num_dimensions)]
        values = _tensors.at(described.values, shape, types[described.dtype.decode()])
        tensors[described.name.decode("utf-8", "replace")] = values.clone()
    return tensors
