"""What PyTorch's FSDP says of flat parameters and their shards, as JSON in the file
named as argument.

Every number comes from PyTorch's own FlatParamHandle: random units and world sizes 1 to 8, each
rank's handle built and sharded on a process group of its own that sends nothing. Nothing here
computes a layout. See golden/README.md for the form of the record.
"""

import json
import random
import sys

import torch
from torch import nn
from torch.distributed.fsdp._flat_param import FlatParamHandle, HandleShardingStrategy
from torch.testing._internal.distributed.fake_pg import FakeProcessGroup

NUM_UNITS = 225
WORLD_SIZES = range(1, 9)
DTYPES = ["float32", "float16", "bfloat16", "float64"]
DIMENSIONS = [1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 19, 23, 31, 37]
# As named_modules() meets them.
MODULES = ["", "0", "0.a", "0.b", "1", "1.a", "1.a.x", "2"]

GROUPS = {(rank, world_size): FakeProcessGroup(rank, world_size)
          for world_size in WORLD_SIZES for rank in range(world_size)}


def random_shape(rng):
    """Of 1 to 3 dimensions, sometimes with none in one; PyTorch's handle takes nothing 0-d."""
    if rng.random() < 0.12:
        shape = [rng.choice(DIMENSIONS) for _ in range(rng.randint(1, 3))]
        shape[rng.randrange(len(shape))] = 0
        return shape
    num_dimensions = rng.choice([1, 1, 2, 2, 2, 3])
    return [rng.choice(DIMENSIONS[:9] if num_dimensions == 3 else DIMENSIONS)
            for _ in range(num_dimensions)]


def random_parameters(rng):
    """Rows of [name, shape] and, where shared, the primary's name; in module-walk order."""
    rows = []
    modules = sorted(rng.randrange(len(MODULES)) for _ in range(rng.randint(1, 12)))
    for index, module in enumerate(modules):
        name = f"p{index}" if MODULES[module] == "" else f"{MODULES[module]}.p{index}"
        primaries = [row for row in rows if len(row) == 2]
        if primaries and rng.random() < 0.15:
            primary = rng.choice(primaries)
            rows.append([name, primary[1], primary[0]])
        else:
            rows.append([name, random_shape(rng)])
    return rows


def num_elements(rows):
    return sum(torch.Size(row[1]).numel() for row in rows if len(row) == 2)


def random_unit(rng, index):
    rows = random_parameters(rng)
    while num_elements(rows) == 0:  # FlatParamHandle.shard() asserts that there is an element.
        rows = random_parameters(rng)
    unit = {"name": f"unit{index}", "dtype": rng.choice(DTYPES), "parameters": rows}
    if rng.random() < 0.25:
        unit["compute_dtype"] = rng.choice(["float16", "bfloat16", "float32"])
    return unit


def make_module(unit):
    root = nn.Module()
    made = {}
    for name, shape, *primary in unit["parameters"]:
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        made[name] = made[primary[0]] if primary else nn.Parameter(
            torch.zeros(shape, dtype=getattr(torch, unit["dtype"])))
        module.register_parameter(leaf, made[name])
    return root


def make_handle(unit, aligned, rank, world_size):
    module = make_module(unit)
    compute_dtype = getattr(torch, unit["compute_dtype"]) if "compute_dtype" in unit else None
    return FlatParamHandle(
        params=list(module.parameters()), fully_sharded_module=module, device=torch.device("cpu"),
        sharding_strategy=HandleShardingStrategy.FULL_SHARD, offload_params=False,
        mp_param_dtype=compute_dtype, mp_reduce_dtype=None, keep_low_precision_grads=False,
        process_group=GROUPS[rank, world_size], use_orig_params=aligned)


def rows_of(shard_param_infos):
    """[parameter, offset_in_shard, numel_in_shard, intra_param_start_idx, intra_param_end_idx]."""
    return [[index, info.offset_in_shard, info.numel_in_shard, info.intra_param_start_idx,
             info.intra_param_end_idx]
            for index, info in enumerate(shard_param_infos) if info.in_shard]


def metadata_of(shard_metadata):
    """Columns, each with one entry for each parameter in the shard."""
    return [list(shard_metadata.param_names), list(shard_metadata.param_shapes),
            list(shard_metadata.param_numels), list(shard_metadata.param_offsets)]


def dotted(module_name, parameter_name):
    return f"{module_name}.{parameter_name}" if module_name else parameter_name


def record_placement(handle):
    flat = handle.flat_param
    starts = [start for (start, _), padding
              in zip(handle._get_flat_param_offsets(), flat._is_padding_mask) if not padding]
    return {
        "fqns": list(flat._fqns), "numels": list(flat._numels), "starts": starts,
        "shared": [[dotted(info.module_name, info.param_name),
                    dotted(info.prim_module_name, info.prim_param_name)]
                   for info in flat._shared_param_infos]}


def record_world(unit, aligned, world_size, placement, with_metadata):
    sizes = set()
    ranks = []
    metadata = []
    for rank in range(world_size):
        handle = make_handle(unit, aligned, rank, world_size)
        if record_placement(handle) != placement:
            raise AssertionError(f"{unit['name']}: placement depends on the world")
        handle.shard()
        handle.init_flat_param_attributes()
        flat = handle.flat_param
        sizes.add((flat._unpadded_unsharded_size.numel(), flat._padded_unsharded_size.numel(),
                   flat._sharded_size.numel()))
        ranks.append([flat._shard_numel_padded, *rows_of(flat._shard_param_infos)])
        if with_metadata:
            metadata.append(metadata_of(handle.shard_metadata()))
    if len(sizes) != 1:
        raise AssertionError(f"{unit['name']}: ranks differ: {sizes}")
    unpadded, padded, shard = sizes.pop()
    world = {"unpadded": unpadded, "padded": padded, "shard": shard, "ranks": ranks}
    if with_metadata:
        world["metadata"] = metadata
    return world


def record_unit(unit, index):
    record = dict(unit)
    for kind, aligned in (("unaligned", False), ("aligned", True)):
        placement = record_placement(make_handle(unit, aligned, 0, 1))
        worlds = [record_world(unit, aligned, world_size, placement,
                               not aligned and world_size == index % len(WORLD_SIZES) + 1)
                  for world_size in WORLD_SIZES]
        record[kind] = {**placement, "worlds": worlds}
    return record


def record_ranges(name, dtype, aligned, shapes):
    """_get_shard_metadata() of ranges, ends inclusive, that begin and end around each boundary."""
    unit = {"name": name, "dtype": dtype,
            "parameters": [[f"{i}.weight", shape] for i, shape in enumerate(shapes)]}
    handle = make_handle(unit, aligned, 0, 2)
    boundaries = {edge for offsets in handle._get_flat_param_offsets() for edge in offsets}
    middle = handle.flat_param.numel() // 2
    points = sorted({point + step for point in boundaries | {middle} for step in (-1, 0, 1)
                     if 0 <= point + step < handle.flat_param.numel()})
    ranges = [[start, end, *rows_of(handle._get_shard_metadata(start, end))]
              for start in points for end in points if start <= end]
    return {**unit, "aligned": aligned, "ranges": ranges}


def list_text(name, records):
    """One record a line, so that a change of one shows as one."""
    rows = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    return f'"{name}":[\n{rows}\n]'


def main():
    torch.set_num_threads(1)
    rng = random.Random(20240607)
    units = [random_unit(rng, index) for index in range(NUM_UNITS)]
    ranges = [
        record_ranges("FLAT-7", "float32", False, [[7, 3], [5, 7], [5, 5]]),
        record_ranges("FLAT-8", "float32", True, [[7, 3], [5, 7], [5, 5]]),
        record_ranges("FLAT-9", "float16", True, [[5, 2], [5, 5], [3, 5]]),
    ]
    records = [record_unit(unit, index) for index, unit in enumerate(units)]
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write("{" + f'"torch":{json.dumps(torch.__version__)},\n'
                  + list_text("ranges", ranges) + ",\n" + list_text("units", records) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main())
