"""Which parameters are in which unit, and what the job is told of the model and of its config."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Callable, Iterable, Union

import torch

from . import _torch_private as private
from .errors import TesseraError

UnitChoice = Union[type, torch.nn.Module, Iterable, Callable[[torch.nn.Module], bool], None]

DTYPES = {torch.float32: "DTYPE_FP32", torch.float64: "DTYPE_FP64", torch.bfloat16: "DTYPE_BF16",
          torch.float16: "DTYPE_FP16"}
STORED_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16",
    torch.int32: "I32", torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
}
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")


def _invalid(message: str) -> TesseraError:
    return TesseraError(message, "INVALID_ARGUMENT")


@dataclasses.dataclass(frozen=True)
class Precision:
    """In what the model computes, and gradients travel. Shards and the optimizer are fp32 (fp64).

    cast_forward_inputs: floating-point arguments of the model's forward are cast to `param`.
    """

    param: torch.dtype = torch.float32
    reduce: torch.dtype | None = None  # None: as `param`.
    cast_forward_inputs: bool = True


class Unit:
    """Parameters that are gathered and reduced together."""

    def __init__(self, index: int, name: str, module: torch.nn.Module):
        self.index, self.name, self.module = index, name, module
        self.names: list[str] = []
        self.parameters: list[torch.nn.Parameter] = []
        self.aliases: list[tuple[str, int]] = []  # Another name, and whose it is.


def _chooser(units: UnitChoice) -> Callable[[torch.nn.Module], bool]:
    if units is None:
        return lambda module: False
    if isinstance(units, type):
        units = [units]
    if isinstance(units, torch.nn.Module):
        # A container is a list of its children, as ModuleList and Sequential are.
        units = [units]
    if callable(units):
        return units
    listed = list(units)
    types = tuple(item for item in listed if isinstance(item, type))
    modules = {id(item) for item in listed if isinstance(item, torch.nn.Module)}
    for item in listed:
        if not isinstance(item, (type, torch.nn.Module)):
            raise _invalid(f"units: {item!r} is neither a module nor a class of modules")
    return lambda module: id(module) in modules or (
        isinstance(module, types) and not isinstance(module, private.WITHOUT_FORWARD))


def make_units(root: torch.nn.Module, choice: UnitChoice,
               ignored: Iterable[torch.nn.Module]) -> tuple[list[Unit], list[torch.nn.Module]]:
    """The units of the tree: the root first, then the chosen modules in the tree's order; and all
    modules that were chosen, also those whose parameters are in others' units."""
    units = _cut(root, _chooser(choice), ignored)
    chosen = [unit.module for unit in units[1:]]
    if choice is not None and len(units) == 1:
        raise _invalid("units: no module below the root is one of these")
    for unit in units:
        for name, parameter in zip(unit.names, unit.parameters):
            _check(name, parameter)
    kept = [unit for unit in units if unit.parameters or unit.index == 0]
    if not any(unit.parameters for unit in kept):
        raise _invalid("the model has no parameters")
    if not kept[0].parameters:
        kept = kept[1:]
    for index, unit in enumerate(kept):
        unit.index = index
    return kept, chosen


def take_over_replaced(root: torch.nn.Module, units: list[Unit], chosen: list[torch.nn.Module],
                       ignored: Iterable[torch.nn.Module]) -> None:
    """Gives `units` the parameters that the tree has now: to_empty() and
    load_state_dict(assign=True) make new ones, with the same names.

    Errors: FAILED_PRECONDITION  a parameter was added, removed, or came to another unit.
    """
    ids = {id(module) for module in chosen}
    found = _cut(root, lambda module: id(module) in ids, ignored)
    before, now = _places(units), _places(found)
    changes = {name: _change(name, before, now) for name in {**now, **before}
               if before.get(name) != now.get(name)}
    if changes:
        # One that is untied has moved others.
        name = max(changes, key=lambda name: changes[name].startswith("untied"))
        raise TesseraError(
            f"parameter '{name}' was {changes[name]} after shard(), and the job would not train the "
            "model as it is: change the model first, and shard() it then", "FAILED_PRECONDITION")
    of_module = {id(unit.module): unit for unit in found}
    for unit in units:
        unit.parameters[:] = of_module[id(unit.module)].parameters
        for name, parameter in zip(unit.names, unit.parameters):
            _check(name, parameter)


def _change(name: str, before: dict, now: dict) -> str:
    if name not in before:
        return "added or renamed"
    if name not in now:
        return "removed or renamed"
    if before[name][1] != name and now[name][1] == name:
        return f"untied from '{before[name][1]}' (to_empty() and assign=True do that: tie them again)"
    return "moved or tied"


def _places(units: list[Unit]) -> dict[str, tuple[int, str]]:
    """By each name of a parameter: the module of its unit, and its name there."""
    places = {}
    for unit in units:
        places.update((name, (id(unit.module), name)) for name in unit.names)
        places.update((alias, (id(unit.module), unit.names[i])) for alias, i in unit.aliases)
    return places


def _cut(root, chosen: Callable[[torch.nn.Module], bool], ignored) -> list[Unit]:
    """The root's unit and one of each chosen module, with or without parameters."""
    skipped = {id(inner) for module in ignored for inner in module.modules()}
    units, unit_of_module = [Unit(0, "root", root)], {id(root): 0}
    for name, module in root.named_modules():
        if module is root or id(module) in skipped or not chosen(module):
            continue
        unit_of_module[id(module)] = len(units)
        units.append(Unit(len(units), private.name_in_state_dict(name), module))
    _assign(root, units, unit_of_module, skipped)
    return units


def _name(prefix: str, short: str) -> str:
    return private.name_in_state_dict(f"{prefix}.{short}" if prefix else short)


def _assign(root, units, unit_of_module, skipped) -> None:
    # By name, the innermost unit above each module.
    unit_by_prefix = {name: unit_of_module[id(module)]
                      for name, module in root.named_modules(remove_duplicate=False)
                      if id(module) in unit_of_module}
    owners: dict[int, set[int]] = {}
    found: list[tuple[str, torch.nn.Parameter]] = []
    for prefix, module in root.named_modules(remove_duplicate=False):
        if id(module) in skipped:
            continue
        for short, parameter in module._parameters.items():
            if parameter is None:
                continue
            above = prefix
            while above not in unit_by_prefix:
                above = above.rpartition(".")[0]
            found.append((_name(prefix, short), parameter))
            owners.setdefault(id(parameter), set()).add(unit_by_prefix[above])
    known: dict[int, tuple[Unit, int]] = {}
    for name, parameter in found:
        if id(parameter) in known:
            unit, index = known[id(parameter)]
            unit.aliases.append((name, index))
            continue
        # What several units use is the root's, which is open whenever they are.
        of = owners[id(parameter)]
        unit = units[next(iter(of)) if len(of) == 1 else 0]
        known[id(parameter)] = (unit, len(unit.parameters))
        unit.names.append(name)
        unit.parameters.append(parameter)


def _check(name: str, parameter: torch.nn.Parameter) -> None:
    if parameter.dtype in (torch.bfloat16, torch.float16):
        raise _invalid(
            f"parameter '{name}' is of {parameter.dtype}, and shards are of float32 or float64: call "
            "model.float() before shard(), and have the model compute in that type by "
            f"shard(model, precision=tessera.Precision({parameter.dtype}))")
    if parameter.dtype not in (torch.float32, torch.float64):
        raise _invalid(f"parameter '{name}' is of {parameter.dtype}, which cannot be sharded: "
                       "make it a buffer, or put its module into ignored_modules")
    if parameter.layout is not torch.strided:
        raise _invalid(f"parameter '{name}' is not a dense tensor: put its module into "
                       "ignored_modules")
    if parameter.device.type not in ("cpu", "cuda", "meta"):
        raise _invalid(f"parameter '{name}' is on {parameter.device}: jobs run on CPUs and on "
                       "NVIDIA's GPUs; move the model there first")
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        raise _invalid(f"parameter '{name}' is not initialised: run the model once before shard()")


def persistent_buffers(root: torch.nn.Module) -> list[tuple[str, torch.nn.Module, str]]:
    """(name, module, name in the module) of each buffer that state_dict() has."""
    found = []
    for prefix, module in root.named_modules():
        for short, buffer in module._buffers.items():
            if buffer is None or short in private.non_persistent_buffers(module):
                continue
            name = _name(prefix, short)
            if buffer.dtype not in STORED_DTYPES or buffer.layout is not torch.strided:
                raise _invalid(f"buffer '{name}' is {buffer.dtype}, {buffer.layout}: files cannot "
                               "hold it; register it with persistent=False")
            found.append((name, module, short))
    return found


def model_json(units: list[Unit], buffers) -> str:
    listed = []
    for unit in units:
        parameters = [
            {"name": name, "shape": list(p.shape), "dtype": DTYPES[p.dtype],
             "requires_grad": p.requires_grad}
            for name, p in zip(unit.names, unit.parameters)]
        for name, index in unit.aliases:
            parameters.append({**parameters[index], "name": name,
                               "shared_with": unit.names[index]})
        listed.append({"name": unit.name, "parameters": parameters})
    return json.dumps({
        "units": listed,
        "buffers": [{"name": name, "dtype": STORED_DTYPES[module._buffers[short].dtype],
                     "shape": list(module._buffers[short].shape)}
                    for name, module, short in buffers]})


def number(value: float):
    """As JSON of protobuf's has it."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return "NaN" if math.isnan(value) else value
