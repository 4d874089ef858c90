"""The small model of fully_shard_training under more of PyTorch's FSDP, as JSON in the named file.

FSDP2 (fully_shard) and FSDP1 (FullyShardedDataParallel): strategies, hybrid ones over a 2 x 2 mesh
too, low precision, clipping, accumulation. Real processes over gloo on the CPU.
"""

import contextlib
import functools
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (FullyShardedDataParallel, MixedPrecision,
                                    MixedPrecisionPolicy, ShardingStrategy, fully_shard)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fully_shard_training import BATCH, OPTIMIZERS, SIZES, make_model, samples_of

NUM_STEPS = 10
GROUP_SIZE = 2  # Of hybrid strategies.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PLAIN = {"world_size": 2, "optimizer": "sgd", "param_dtype": "fp32", "reduce_dtype": "fp32",
         "micro_batches": 1, "sync": "each", "max_norm": 0.0, "reshard_group_size": 0}


class RoundedLinear(nn.Linear):
    """Multiplies in fp32, whatever the parameters are in, and rounds what goes in and comes out.

    So that the result does not hang on how a version of libtorch multiplies in low precision. In
    fp32 it is nn.Linear.
    """

    def forward(self, x):
        dtype = self.weight.dtype
        x = x.to(dtype).float()
        return nn.functional.linear(x, self.weight.float(), self.bias.float()).to(dtype)


class FloatReLU(nn.Module):
    def forward(self, x):
        return torch.relu(x.float())


def runs():
    def run(topic, api, strategy, **others):
        return {"topic": topic, "api": api, "strategy": strategy, **PLAIN, **others}

    two, one = "fully_shard", "FullyShardedDataParallel"
    yield run("strategies", two, "HYBRID_SHARD", world_size=4, optimizer="adamw")
    yield run("strategies", two, "HYBRID_SHARD_ZERO2", world_size=4)
    yield run("strategies", two, "FULL_SHARD", world_size=4, reshard_group_size=GROUP_SIZE)
    yield run("strategies", two, "SHARD_GRAD_OP", optimizer="adamw")
    for strategy in ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]:
        yield run("strategies", one, strategy, optimizer="adamw")
    for strategy in ["HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]:
        yield run("strategies", one, strategy, world_size=4)

    for low, reduce in [("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp32"), ("fp16", "fp16"),
                        ("fp32", "bf16")]:
        yield run("precision", two, "FULL_SHARD", param_dtype=low, reduce_dtype=reduce)
    yield run("precision", one, "SHARD_GRAD_OP", param_dtype="bf16", reduce_dtype="bf16")
    yield run("precision", one, "FULL_SHARD", param_dtype="fp16", reduce_dtype="fp32")

    yield run("clipping", two, "FULL_SHARD", max_norm=0.25)
    yield run("clipping", two, "HYBRID_SHARD", world_size=4, max_norm=0.25)
    yield run("clipping", one, "FULL_SHARD", max_norm=0.25)
    yield run("clipping", one, "NO_SHARD", max_norm=0.25)

    for sync in ["each", "last"]:
        yield run("accumulation", two, "FULL_SHARD", micro_batches=2, sync=sync)
        yield run("accumulation", two, "HYBRID_SHARD", world_size=4, micro_batches=2, sync=sync)
        yield run("accumulation", one, "SHARD_GRAD_OP", micro_batches=2, sync=sync)


def make_layers():
    layers = [RoundedLinear(l.in_features, l.out_features) if isinstance(l, nn.Linear)
              else FloatReLU() for l in make_model()]
    model = nn.Sequential(*layers)
    model.load_state_dict(make_model().state_dict())
    return model


@functools.cache  # All runs of a process share their groups.
def make_mesh(world_size, hybrid):
    if hybrid:
        return init_device_mesh("cpu", (world_size // GROUP_SIZE, GROUP_SIZE),
                                mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cpu", (world_size,))


def mesh_of(run):
    return make_mesh(run["world_size"], run["strategy"].startswith("HYBRID"))


class Fsdp2:
    def __init__(self, run):
        self.module = make_layers()
        reshard = run["reshard_group_size"] or run["strategy"] in ("FULL_SHARD", "HYBRID_SHARD")
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[run["param_dtype"]],
                                      reduce_dtype=DTYPES[run["reduce_dtype"]])
        options = {"mesh": mesh_of(run), "reshard_after_forward": reshard, "mp_policy": policy}
        for layer in self.module:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, **options)
        fully_shard(self.module, **options)
        self.module.set_force_sum_reduction_for_comms(True)  # Gloo has no mean: sum, then divide.

    @contextlib.contextmanager
    def sync(self, sync):
        self.module.set_requires_gradient_sync(sync)
        yield

    def clip(self, max_norm):
        return nn.utils.clip_grad_norm_(self.module.parameters(), max_norm).full_tensor()

    def parameters(self):
        return {name: parameter.full_tensor()
                for name, parameter in self.module.named_parameters()}


class Fsdp1:
    def __init__(self, run):
        name = run["strategy"]
        name = "_HYBRID_SHARD_ZERO2" if name == "HYBRID_SHARD_ZERO2" else name
        precision = MixedPrecision(param_dtype=DTYPES[run["param_dtype"]],
                                   reduce_dtype=DTYPES[run["reduce_dtype"]])
        self.module = FullyShardedDataParallel(
            make_layers(), auto_wrap_policy=ModuleWrapPolicy({RoundedLinear}),
            sharding_strategy=ShardingStrategy[name], mixed_precision=precision,
            device_mesh=mesh_of(run), device_id=torch.device("cpu"), use_orig_params=True)

    def sync(self, sync):
        return contextlib.nullcontext() if sync else self.module.no_sync()

    def clip(self, max_norm):
        return self.module.clip_grad_norm_(max_norm)

    def parameters(self):
        with FullyShardedDataParallel.summon_full_params(self.module, writeback=False):
            return {name: parameter.detach().clone()
                    for name, parameter in self.module.named_parameters()}


def rounded(values):
    """Nine digits are enough to tell two fp32 numbers apart."""
    return [float(f"{value:.9g}") for value in values]


def train(run, rank):
    sharded = (Fsdp2 if run["api"] == "fully_shard" else Fsdp1)(run)
    optimizer_class, options = OPTIMIZERS[run["optimizer"]]
    optimizer = optimizer_class(sharded.module.parameters(), **options)
    losses, norms = [], []
    for step in range(1, NUM_STEPS + 1):
        parts = [whole.chunk(run["world_size"])[rank].chunk(run["micro_batches"])
                 for whole in samples_of(step)]
        losses.append(0.0)
        for i, (inputs, targets) in enumerate(zip(*parts)):
            with sharded.sync(run["sync"] == "each" or i + 1 == run["micro_batches"]):
                loss = nn.functional.mse_loss(sharded.module(inputs).float(), targets)
                loss = loss / run["micro_batches"]
                loss.backward()
                losses[-1] += loss.item()
        if run["max_norm"] > 0:
            norms.append(sharded.clip(run["max_norm"]).item())
        optimizer.step()
        optimizer.zero_grad()
    parameters = {name: rounded(values.flatten().tolist())
                  for name, values in sharded.parameters().items()}
    return {"losses": rounded(losses), "norms": rounded(norms), "parameters": parameters}


def train_rank(rank, world_size, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size,
                            init_method=f"file://{folder}/rendezvous")
    results = [train(run, rank) for run in runs() if run["world_size"] == world_size]
    with open(os.path.join(folder, str(rank)), "w", encoding="utf-8") as out:
        json.dump(results, out)
    dist.destroy_process_group()


def results_of(world_size):
    """What each run of this world size ended in, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train_rank, (world_size, folder), nprocs=world_size)
        by_rank = []
        for rank in range(world_size):
            with open(os.path.join(folder, str(rank)), encoding="utf-8") as saved:
                by_rank.append(json.load(saved))
    for ranks in zip(*by_rank):
        if any(rank["parameters"] != ranks[0]["parameters"] for rank in ranks):
            raise AssertionError(f"a run in a world of {world_size}: ranks end unequal")
        yield {**ranks[0], "losses": [rank["losses"] for rank in ranks]}


def main():
    # The group file and the loopback are all that the ranks need.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    results = {world_size: results_of(world_size) for world_size in (2, 4)}
    rows = [{**run, "options": OPTIMIZERS[run["optimizer"]][1], **next(results[run["world_size"]])}
            for run in runs()]
    header = {"torch": torch.__version__, "sizes": SIZES, "batch": BATCH, "steps": NUM_STEPS,
              "group_size": GROUP_SIZE}
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write(json.dumps(header, separators=(",", ":"))[:-1] + f',\n"runs":[\n{text}\n]}}\n')


if __name__ == "__main__":
    sys.exit(main())
