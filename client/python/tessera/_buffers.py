"""A model's persistent buffers as a part of the job's state, and of its files."""

from __future__ import annotations

import ctypes as C

import torch

from . import _plan, _tensors
from ._library import (BODY, GET_TENSORS, HOOK, TAKE_TENSORS, BufferHooks, Callbacks, Tensor,
                       TrainerTensors, lib)


class Keeper:
    """Tells the session what has changed, and takes from it what was loaded or put."""

    def __init__(self, session, buffers):
        self._session, self._buffers = session, buffers
        self._told: list[bytes | None] = [None] * len(buffers)
        self._taken = [0] * len(buffers)
        self._begun: list[bytes] = []
        callbacks = Callbacks()
        # The C functions live as long as the session.
        self._hooks = BufferHooks(
            stage=BODY(callbacks.wrap(lambda _: self._stage())),
            take=HOOK(lambda _: self._take()),
            begin_step=HOOK(lambda _: self.begin_step()),
            restore=BODY(callbacks.wrap(lambda _: self.restore())))
        self._tensors = TrainerTensors(get=GET_TENSORS(callbacks.wrap(self._get)),
                                       take=TAKE_TENSORS(callbacks.wrap(self._take_loaded)))
        if buffers:
            lib.set_buffer_hooks(session, C.byref(self._hooks))
            lib.set_trainer_tensors(session, C.byref(self._tensors))

    def resume(self) -> None:
        """For a process that continues a job of others."""
        if self._buffers:
            lib.resume_buffers(self._session)

    def _tensor(self, index: int) -> torch.Tensor:
        _, module, short = self._buffers[index]
        return module._buffers[short]

    def _stage(self) -> None:
        for index in range(len(self._buffers)):
            values = _tensors.to_bytes(self._tensor(index))
            if values == self._told[index]:
                continue
            lib.set_buffer(self._session, index, values, len(values))
            self._told[index] = values

    def _stored(self, index: int):
        values, size = C.c_void_p(), C.c_size_t()
        given, sequence = C.c_int(), C.c_uint64()
        lib.get_buffer(self._session, index, C.byref(values), C.byref(size), C.byref(given),
                       C.byref(sequence))
        return values.value, size.value, bool(given.value), sequence.value

    def _take(self) -> None:
        for index in range(len(self._buffers)):
            address, size, given, sequence = self._stored(index)
            if not given or sequence == self._taken[index]:
                continue
            self._taken[index] = sequence
            values = C.string_at(address, size)
            self._put(index, values)
            self._told[index] = values

    def _put(self, index: int, values: bytes) -> None:
        tensor = self._tensor(index)
        if values:
            source = torch.frombuffer(bytearray(values), dtype=tensor.dtype).view(tensor.shape)
            with torch.no_grad():
                tensor.copy_(source)

    def begin_step(self) -> None:
        self._begun = [_tensors.to_bytes(self._tensor(i)) for i in range(len(self._buffers))]

    def restore(self) -> None:
        if self._begun:
            for index, values in enumerate(self._begun):
                self._put(index, values)
                self._told[index] = None
        lib.restore_buffers(self._session)
        self._take()

    def _get(self, _, with_values: int, out) -> None:
        for index, (name, _, _) in enumerate(self._buffers):
            tensor = self._tensor(index)
            values = _tensors.to_bytes(tensor) if with_values else None
            shape = (C.c_int64 * tensor.dim())(*tensor.shape)
            described = Tensor(name=name.encode(), dtype=_plan.STORED_DTYPES[tensor.dtype].encode(),
                               shape=shape, num_dimensions=tensor.dim(),
                               values=C.cast(C.c_char_p(values), C.c_void_p) if with_values
                               else None,
                               size_bytes=len(values) if with_values else 0)
            lib.tensors_add(out, C.byref(described))

    def _take_loaded(self, _, loaded) -> None:
        by_name = {name: index for index, (name, _, _) in enumerate(self._buffers)}
        types = {name: dtype for dtype, name in _plan.STORED_DTYPES.items()}
        for position in range(lib.tensors_size(loaded)):
            described = Tensor()
            lib.tensors_get(loaded, position, C.byref(described))
            index = by_name.get(described.name.decode())
            if index is None:
                continue
            tensor = self._tensor(index)
            source = _tensors.at(described.values, tensor.shape,
                                 types[described.dtype.decode()])
            with torch.no_grad():
                tensor.copy_(source)
