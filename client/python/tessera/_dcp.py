"""Models in folders that torch.distributed.checkpoint (DCP) wrote, read by torch itself."""

from __future__ import annotations

import ctypes as C
import hashlib
import math
import os
import struct

import torch

from . import _tensors, errors
from ._library import FILL, Callbacks, lib
from .errors import TesseraError

_METADATA = ".metadata"
# With one of these the folder has two models, which the library refuses.
_OTHER_FORMS = ("model.safetensors", "model.safetensors.index.json")


def is_folder(path: str) -> bool:
    def has(name):
        return os.path.exists(os.path.join(path, name))
    return "://" not in path and has(_METADATA) and not any(map(has, _OTHER_FORMS))


def _invalid(message: str) -> TesseraError:
    return TesseraError(message, "INVALID_ARGUMENT")


def _reading(what: str, error: Exception) -> TesseraError:
    """Of whatever torch fails with on files."""
    code = ("NOT_FOUND" if isinstance(error, FileNotFoundError) else
            "PERMISSION_DENIED" if isinstance(error, PermissionError) else "DATA_LOSS")
    return TesseraError(f"{what}: {type(error).__name__}: {error}", code)


class _Folder:
    def __init__(self, path: str):
        # Here, because importing tessera need not take longer by it.
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata
        self.path, self._reader = path, FileSystemReader(path)
        try:
            self._metadata = self._reader.read_metadata()
            entries = self._metadata.state_dict_metadata
        except Exception as error:
            raise _reading(os.path.join(path, _METADATA), error) from error
        self.tensors = {name: entry for name, entry in sorted(entries.items())
                        if isinstance(entry, TensorStorageMetadata)}
        self._reader.set_up_storage_reader(self._metadata, True)

    def describe(self) -> str:
        return repr([(name, tuple(entry.size), entry.properties.dtype)
                     for name, entry in self.tensors.items()])

    def check(self, name: str, wanted: str, like: torch.Tensor, exact: bool) -> None:
        """That the tensor fits. exact: integers fit a tensor of the same dtype; else none."""
        entry = self.tensors[name]
        dtype, shape = entry.properties.dtype, tuple(entry.size)
        if shape != tuple(like.shape):
            raise _invalid(f"{self.path}: tensor '{name}' has shape {shape}, and {wanted} "
                           f"has {tuple(like.shape)}")
        if not (dtype.is_floating_point and like.is_floating_point() or
                exact and dtype is like.dtype):
            raise _invalid(f"{self.path}: tensor '{name}' is {dtype}, and {wanted} is {like.dtype}")
        stored = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
        if stored < like.numel():
            raise TesseraError(f"{self.path}: of tensor '{name}' {stored} elements are stored, and "
                               f"it has {like.numel()}", "DATA_LOSS")

    def read(self, name: str, into: torch.Tensor) -> None:
        """What dcp.load does for a tensor, without other ranks; converts to the dtype of `into`."""
        from torch.distributed.checkpoint import DefaultLoadPlanner
        if into.numel() == 0:
            return
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        planner.set_up_planner({name: into}, self._metadata, True)
        try:
            plan = planner.finish_plan(planner.create_local_plan())
            self._reader.read_data(plan, planner).wait()
        except Exception as error:
            raise _reading(f"{self.path}: tensor '{name}'", error) from error


class _Plan:
    """Where each parameter and buffer comes from."""

    def __init__(self, sharded, folder: _Folder, strict: bool):
        self.parameters: dict[tuple[int, int], str] = {}  # By unit and its parameter.
        self.buffers: list[tuple[torch.Tensor, torch.Tensor]] = []  # A buffer, and its new values.
        self.missing: list[str] = []
        known: set[str] = set()
        for unit in sharded.units:
            for index, (name, parameter) in enumerate(zip(unit.names, unit.parameters)):
                names = [name, *(alias for alias, of in unit.aliases if of == index)]
                known.update(names)
                self._find(folder, unit.index, index, names, parameter)
        for name, module, short in sharded._buffers:
            known.add(name)
            if name not in folder.tensors:
                self.missing.append(name)
                continue
            buffer = module._buffers[short]
            folder.check(name, "the buffer", buffer, exact=True)
            values = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")
            folder.read(name, values)
            self.buffers.append((buffer, values))
        self.unexpected = [name for name in folder.tensors if name not in known]
        if strict and (self.missing or self.unexpected):
            raise _invalid(f"{folder.path}: {'; '.join(self._differences(folder))}")

    def _find(self, folder, unit, index, names, parameter) -> None:
        stored = [name for name in names if name in folder.tensors]
        for name in stored:  # Tied weights are stored by each name; the first is read.
            folder.check(name, "the parameter", parameter, exact=False)
        if stored:
            self.parameters[unit, index] = stored[0]
        else:
            self.missing.append(names[0])

    def _differences(self, folder):
        if self.missing:
            yield f"it lacks {_some(self.missing)}"
            first = self.missing[0]
            for key in (name[:-len(first) - 1] for name in folder.tensors
                        if name.endswith("." + first)):
                if all(f"{key}.{name}" in folder.tensors for name in self.missing):
                    yield (f"it has them under the key '{key}': dcp.load({{'{key}': state}}) and "
                           "set_model_state_dict(model, state) load them")
        if self.unexpected:
            yield f"the model lacks {_some(self.unexpected)}"


def _some(names: list[str], most: int = 12) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + rest


def _agree(sharded, found: str, refusal: Exception | None) -> None:
    """Raises on all ranks if one has a refusal, or if they found different things."""
    record = struct.Struct("<i32s400s")  # An error's code, what was found, the error's message.
    code = errors.code_of(refusal) if refusal else 0
    own = record.pack(code, hashlib.sha256(found.encode()).digest(), str(refusal or "").encode())
    gathered = C.create_string_buffer(len(own) * sharded.world_size)
    lib.all_gather(sharded.session, own, len(own), gathered)
    ranks = list(record.iter_unpack(gathered.raw))
    if refusal:
        raise refusal
    for rank, (code, digest, message) in enumerate(ranks):
        if code:
            text = message.rstrip(b"\0").decode("utf-8", "replace")
            raise errors.from_code(code, f"rank {rank}: {text}")
        if digest != ranks[0][1]:
            raise TesseraError(f"rank {rank} sees another model than rank 0, or loads it otherwise",
                               "FAILED_PRECONDITION")


def load_model(sharded, path: str, strict: bool) -> dict | None:
    """What checkpoint.load_model() returns; None where the folder is not DCP's. Collective, on all
    ranks or on none. Each rank reads one parameter at a time."""
    folder = plan = refusal = None
    path = path.removeprefix("file://")
    try:
        if is_folder(path):
            folder = _Folder(path)
            plan = _Plan(sharded, folder, strict)
    except Exception as error:  # pylint: disable=broad-except
        refusal = error
    try:
        _agree(sharded, f"{strict} {folder.describe()}" if folder else "", refusal)
        if folder is None:
            return None
        _write(sharded, folder, plan)
    except Exception:
        # A rank that cannot read has ended the epoch, so that the others hear of it, wherever they are.
        sharded.recover()
        raise
    with torch.no_grad():
        for buffer, values in plan.buffers:
            buffer.copy_(values)
    return {"missing": plan.missing, "unexpected": plan.unexpected}


def _write(sharded, folder: _Folder, plan: _Plan) -> None:
    units = [unit for unit in sharded.units
             if any((unit.index, i) in plan.parameters for i in range(len(unit.parameters)))]
    kept: dict[str, torch.Tensor] = {}  # A unit is written as a whole.
    for unit in units:
        absent = {name for i, name in enumerate(unit.names)
                  if (unit.index, i) not in plan.parameters}
        if absent:
            whole: dict[str, torch.Tensor] = {}
            sharded._read(lib.read_parameters, (unit.index,), unit, whole)
            kept.update((name, whole[name]) for name in absent)
    callbacks = Callbacks()

    def fill(_, unit, parameter, memory, elements):
        del elements
        of, stored = sharded.units[unit], plan.parameters.get((unit, parameter))
        target = _tensors.at(memory, of.parameters[parameter].shape, sharded._full_dtype(unit))
        if stored is None:
            target.copy_(kept[of.names[parameter]])
        else:
            folder.read(stored, target)

    numbers = (C.c_int * len(units))(*[unit.index for unit in units])
    with torch.no_grad():
        callbacks.run(lambda: lib.write_parameters(
            sharded.session, numbers, len(units), FILL(callbacks.wrap(fill)), None))
