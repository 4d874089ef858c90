"""Checkpoint folders that PyTorch's DCP writes, as JSON in the file named as argument.

Two real processes over gloo save small state dicts of DTensors, plain tensors and other objects.
Each file of a folder is in base64, and beside it stands what every tensor holds, so that a test
can write the folder out and read it back. Values are fractions that every dtype here holds exactly.
"""

import base64
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.filesystem as dcp_files
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

WORLD_SIZE = 2


def fractions(shape, offset, dtype=torch.float32):
    numel = torch.Size(shape).numel()
    values = [((i * 7 + offset) % 61 - 30) / 4 for i in range(numel)]
    return torch.tensor(values, dtype=torch.float64).to(dtype).view(shape)


def tensors():
    """name -> (whole tensor, placements on the mesh of 2 by 1, or None: a plain tensor)"""
    return {
        "embed.weight": (fractions([7, 3], 1), [Shard(0)]),
        "block.0.up.weight": (fractions([4, 6], 2), [Shard(1)]),
        "block.0.up.bias": (fractions([1], 3), [Shard(0)]),
        "block.0.cube": (fractions([3, 4, 5], 4), [Shard(1)]),
        "head.weight": (fractions([2, 3], 5, torch.bfloat16), [Replicate()]),
        "head.half": (fractions([5], 6, torch.float16), [Shard(0)]),
        "head.double": (fractions([5], 7, torch.float64), [Shard(0)]),
        "scale": (fractions([], 8), None),
        "empty": (fractions([0, 4], 9), None),
        "plain": (fractions([3, 2], 10), None),
        "turned": (fractions([3, 4], 11).t(), None),
        "a.view": (fractions([20], 12)[5:9], None),
        "steps": (torch.arange(4), None),
        "mask": (torch.tensor([True, False]), None),
        "small": (fractions([4], 13).to(torch.float8_e4m3fn), None),
        "waves": (torch.tensor([1 + 2j]), None),
    }


def whole():
    """What is_plain folders hold: no process group, one file an item."""
    return {"weight": fractions([5, 3], 21), "bias": fractions([3], 22)}


def linear():
    """What the folder "fsdp1" holds: FSDP1's own sharded state dict, of ShardedTensors."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(fractions(parameter.shape, 40 + k))
    return model


def save_fsdp1():
    model = FullyShardedDataParallel(linear(), device_id=torch.device("cpu"))
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        dcp.save(model.state_dict(), storage_writer=dcp.FileSystemWriter("fsdp1"))


def save_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE,
                            init_method=f"file://{folder}/rendezvous")
    os.chdir(folder)
    dcp_files._generate_uuid = lambda: "save"
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    state = {name: tensor if placements is None else distribute_tensor(tensor, mesh, placements)
             for name, (tensor, placements) in tensors().items()}
    state["extra"] = {"epoch": 3, "text": "x", "list": [1, fractions([2], 30)]}
    dcp.save(state, storage_writer=dcp.FileSystemWriter("sharded", thread_count=1))
    dcp.save({"model": {name: state[name] for name in ("embed.weight", "scale")}},
             storage_writer=dcp.FileSystemWriter("nested", single_file_per_rank=False))
    save_fsdp1()
    dist.barrier()
    dist.destroy_process_group()


def save_alone(folder):
    os.chdir(folder)
    dcp_files._generate_uuid = lambda: "save"
    dcp.save(whole(), storage_writer=dcp.FileSystemWriter("alone"), no_dist=True)


def files_of(folder):
    files = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            files[name] = base64.b64encode(file.read()).decode("ascii")
    return files


def described(tensor):
    row = {"dtype": str(tensor.dtype), "shape": list(tensor.shape)}
    if tensor.dtype.is_floating_point and tensor.dtype != torch.float8_e4m3fn:
        row["values"] = tensor.to(torch.float64).reshape(-1).tolist()
    return row


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(save_rank, args=(folder,), nprocs=WORLD_SIZE)
        save_alone(folder)
        expected = {name: described(tensor) for name, (tensor, _) in tensors().items()}
        expected["extra.list.1"] = described(fractions([2], 30))
        nested = {f"model.{name}": expected[name] for name in ("embed.weight", "scale")}
        alone = {name: described(tensor) for name, tensor in whole().items()}
        fsdp1 = {name: described(tensor) for name, tensor in linear().state_dict().items()}
        folders = [{"name": name, "files": files_of(os.path.join(folder, name)), "tensors": holds}
                   for name, holds in (("sharded", expected), ("nested", nested), ("alone", alone),
                                       ("fsdp1", fsdp1))]
    with open(sys.argv[1], "w", encoding="ascii") as out:
        json.dump({"torch": torch.__version__.split("+")[0], "folders": folders}, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
