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
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
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


OPTIMIZERS = {  # What the folders with an optimizer have: class, numbers, numbers of the bias.
    "adamw": (torch.optim.AdamW, {"lr": 0.25, "betas": (0.5, 0.75), "eps": 0.125, "weight_decay": 0.0625},
              {"lr": 0.5, "weight_decay": 0.0}),
    "adamw_flattened": (torch.optim.AdamW, {"lr": 0.25, "weight_decay": 0.5}, {}),
    "sgd": (torch.optim.SGD, {"lr": 0.25, "momentum": 0.5}, {}),
}


def net():
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(fractions(parameter.shape, 50 + k))
    return model


def moments(kind, k, shape):
    """What the k-th parameter's state holds: never trained, so that no arithmetic is in it."""
    if kind == "sgd":  # The last parameter has had no gradient yet.
        return {"momentum_buffer": fractions(shape, 70 + k) if k < 3 else None}
    return {"step": torch.tensor(float(3 + k)), "exp_avg": fractions(shape, 60 + k),
            "exp_avg_sq": fractions(shape, 80 + k).abs()}


def save_optimizer(kind, no_dist):
    """A folder with {"model": ..., "optim": ...}; sharded by FSDP2 unless one process is alone."""
    model = net() if no_dist else fully_shard(net())
    optimizer_class, numbers, of_biases = OPTIMIZERS[kind]
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    groups = [{"params": others}, {"params": biases, **of_biases}]
    optimizer = optimizer_class(groups if of_biases else model.parameters(), **numbers)
    for k, parameter in enumerate(model.parameters()):
        state = moments(kind, k, parameter.shape)
        if not no_dist:
            state = {name: tensor if name == "step" else
                     distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
                     for name, tensor in state.items()}
        optimizer.state[parameter] = state
    options = StateDictOptions(flatten_optimizer_state_dict=kind.endswith("flattened"))
    model_state, optim_state = get_state_dict(model, optimizer, options=options)
    dcp.save({"model": model_state, "optim": optim_state}, no_dist=no_dist,
             storage_writer=dcp.FileSystemWriter(kind, thread_count=1))


def described_optimizer(kind):
    expected = {}
    for k, (name, parameter) in enumerate(net().named_parameters()):
        expected[f"model.{name}"] = described(parameter.detach())
        for moment, tensor in moments(kind, k, parameter.shape).items():
            if tensor is not None:
                expected[f"optim.state.{name}.{moment}"] = described(tensor)
    return expected


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
    save_optimizer("adamw", no_dist=False)
    dist.barrier()
    dist.destroy_process_group()


def save_alone(folder):
    os.chdir(folder)
    dcp_files._generate_uuid = lambda: "save"
    dcp.save(whole(), storage_writer=dcp.FileSystemWriter("alone"), no_dist=True)
    save_optimizer("adamw_flattened", no_dist=True)
    save_optimizer("sgd", no_dist=True)


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
                                       ("fsdp1", fsdp1),
                                       *((kind, described_optimizer(kind)) for kind in OPTIMIZERS))]
    with open(sys.argv[1], "w", encoding="ascii") as out:
        json.dump({"torch": torch.__version__.split("+")[0], "folders": folders}, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
