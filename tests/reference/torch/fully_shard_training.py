"""What a small model becomes under PyTorch's FSDP2, as JSON in the file named as argument.

Three Linear layers, each its own unit of fully_shard, trained by real processes over gloo on the
CPU in fp32. Parameters and samples begin as fractions that fp32 holds exactly, by formulae that
golden/README.md states, so that a test can form them too.
"""

import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SIZES = [3, 16, 17, 3]
BATCH = 8
NUM_STEPS = 20
WORLD_SIZES = [2, 4]
OPTIMIZERS = {
    "adamw": (torch.optim.AdamW,
              {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}),
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0}),
}


def fractions(count, multiplier, offset, modulus, divisor):
    values = [((i * multiplier + offset) % modulus - modulus // 2) / divisor for i in range(count)]
    return torch.tensor(values, dtype=torch.float32)


def make_model():
    model = nn.Sequential(nn.Linear(SIZES[0], SIZES[1]), nn.ReLU(),
                          nn.Linear(SIZES[1], SIZES[2]), nn.ReLU(),
                          nn.Linear(SIZES[2], SIZES[3]))
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(fractions(parameter.numel(), 29, 7 * k, 97, 128).view_as(parameter))
    return model


def samples_of(step):
    """The whole batch of a step, counted from 1: inputs and targets."""
    inputs = fractions(BATCH * SIZES[0], 37, 11 * step, 101, 64).view(BATCH, SIZES[0])
    targets = fractions(BATCH * SIZES[-1], 41, 13 * step, 103, 64).view(BATCH, SIZES[-1])
    return inputs, targets


def train_rank(rank, world_size, kind, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size,
                            init_method=f"file://{folder}/rendezvous")
    mesh = init_device_mesh("cpu", (world_size,))
    model = make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.set_force_sum_reduction_for_comms(True)  # Gloo has no mean: sum, then divide.
    optimizer_class, options = OPTIMIZERS[kind]
    optimizer = optimizer_class(model.parameters(), **options)
    losses = []
    for step in range(1, NUM_STEPS + 1):
        inputs, targets = (whole.chunk(world_size)[rank] for whole in samples_of(step))
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    parameters = {name: parameter.full_tensor().flatten().tolist()
                  for name, parameter in model.named_parameters()}
    with open(os.path.join(folder, str(rank)), "w", encoding="utf-8") as out:
        json.dump({"losses": losses, "parameters": parameters}, out)
    dist.destroy_process_group()


def train(world_size, kind):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train_rank, (world_size, kind, folder), nprocs=world_size)
        results = []
        for rank in range(world_size):
            with open(os.path.join(folder, str(rank)), encoding="utf-8") as saved:
                results.append(json.load(saved))
    if any(result["parameters"] != results[0]["parameters"] for result in results):
        raise AssertionError(f"{kind} in a world of {world_size}: ranks end unequal")
    return {"optimizer": kind, "options": OPTIMIZERS[kind][1], "world_size": world_size,
            "losses": [result["losses"] for result in results],
            "parameters": results[0]["parameters"]}


def main():
    # The group file and the loopback are all that the ranks need.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    runs = [train(world_size, kind) for kind in OPTIMIZERS for world_size in WORLD_SIZES]
    rows = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    header = {"torch": torch.__version__, "sizes": SIZES, "batch": BATCH, "steps": NUM_STEPS}
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write(json.dumps(header, separators=(",", ":"))[:-1] + f',\n"runs":[\n{rows}\n]}}\n')


if __name__ == "__main__":
    sys.exit(main())
