"""Steps of a byte-level GPT by Tessera from Python and from C++, by PyTorch's FSDP2 and DDP, and by
DeepSpeed's ZeRO-3 where it is installed, on the CPUs of one machine.

    tools/bench --peers [--json rows.json]

Each way of each world size is a run of its own: one process a rank (and Tessera's coordinator,
worker and executors), fp32, AdamW, one thread a rank. A run takes --steps steps; the runs of one
world size follow each other, round by round, so that what else the machine does meets all of them. Printed for each: the median over rounds of tokens per second, of a step by the time of
forward and backward alone, measured in the same run, the difference of the two for each unit (a
block, or the rest) in microseconds, milliseconds of a core that a trainer's process takes for a step
and for forward and backward alone, and the peak of the memory of all processes, in which what they
share counts once (PSS). The memory is that of a run of its own, because looking at it takes time of
the cores.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

# training_peer.cc, built against the libtorch of this Python; empty: no row in C++.
CPP_PROGRAM = os.environ.get("TESSERA_TRAINING_PEER", "")
WAYS = ("tessera",) + (("tessera-c++",) if CPP_PROGRAM else ()) + ("fsdp2", "ddp") + (
    ("deepspeed",) if importlib.util.find_spec("deepspeed") else ())
# Width, heads, blocks, context. The first is tests/demo/gpt.h's.
# With almost nothing to compute, the narrow one's steps are what a way does for its units.
MODELS = {"demo": (256, 4, 4, 64), "100M": (768, 12, 14, 64), "narrow": (8, 1, 32, 4)}
STEPS = {"demo": 40, "100M": 4, "narrow": 40}
LONGEST_RUN_SECONDS = 1800.0


def make_model(torch, name):
    from torch import nn
    width, heads, blocks, context = MODELS[name]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(blocks))
            self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, tokens):
            x = self.embedding(tokens) + self.position.weight[:tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.output(self.norm(x))

    torch.manual_seed(1)
    return Gpt(), Block, context


def prepare(way, model, block):
    """The module to call, what does its backward, and what takes the step after it."""
    import torch
    if way == "tessera":
        import tessera
        tessera.init()
        tessera.shard(model, units=block)
        optimizer = tessera.AdamW(model, lr=1e-3)
        return model, torch.Tensor.backward, optimizer.step
    if way == "deepspeed":
        import deepspeed
        deepspeed.init_distributed(dist_backend="gloo")
        config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                          config=config)
        return engine, engine.backward, engine.step
    import torch.distributed as dist
    dist.init_process_group("gloo")
    if way == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for each in model.blocks:
            fully_shard(each, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return model, torch.Tensor.backward, step


def run_rank(options):
    """A rank of a run: prints its seconds of compute and of a step, medians, as JSON."""
    import copy
    import torch
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    model, block, context = make_model(torch, options.model)
    torch.manual_seed(rank)

    def compute_loss(of):
        # Others each time: of those that it knows, gradients would become denormal, which are slow.
        windows = torch.randint(0, 256, (options.batch, context + 1))
        logits = of(windows[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    plain = copy.deepcopy(model)
    module, backward, take_step = prepare(options.way, model, block)

    def step():
        backward(compute_loss(module))
        take_step()

    for _ in range(2):
        step()
    # As many on each rank, and all ranks together: each step ends on all of them.
    steps = median_seconds(options.steps, step)
    if options.way == "tessera":
        model.tessera.detach()

    def compute():
        plain.zero_grad()
        compute_loss(plain).backward()

    # Last, and on all ranks at once, since they share the cores.
    alone = median_seconds(options.steps, compute)
    print(json.dumps({"step": steps[0], "compute": alone[0], "step_cpu": steps[1],
                      "compute_cpu": alone[1]}))


def median_seconds(steps, body):
    """Of body(), medians: by the clock, and of the cores by all threads of this process."""
    wall, cpu = [], []
    for _ in range(steps):
        began, cpu_began = time.perf_counter(), time.process_time()
        body()
        cpu.append(time.process_time() - cpu_began)
        wall.append(time.perf_counter() - began)
    return statistics.median(wall), statistics.median(cpu)


def memory_of(root: int) -> int:
    """Bytes of a process and all that it started; what they share counts once."""
    children: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    total, left = 0, [root]
    while left:
        process = left.pop()
        left += children.get(process, [])
        try:
            for line in pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue  # It has ended.
    return total


def run(options, way, model, world_size, batch, watches_memory=False):
    """One run: the medians over ranks of what run_rank() prints, and the peak of memory in bytes (0:
    not watched)."""
    with tempfile.TemporaryDirectory(prefix="tessera-peers-") as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "WORLD_SIZE": str(world_size)}
        cluster, steps = None, str(options.steps or STEPS[model])
        if way.startswith("tessera"):
            from tessera import _cluster
            cluster = _cluster.Cluster(pathlib.Path(folder), world_size)
            environment |= cluster.addresses()
        def command(rank):
            if way == "tessera-c++":
                return [CPP_PROGRAM, environment["TESSERA_COORDINATOR"],
                        environment["TESSERA_WORKER"], str(rank), str(world_size),
                        *map(str, MODELS[model]), str(batch), steps]
            return [sys.executable, __file__, "--rank-of", way, "--model", model, "--batch",
                    str(batch), "--steps", steps]

        ranks = [subprocess.Popen(
            command(rank),
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, text=True) for rank in range(world_size)]
        try:
            own, peak, deadline = memory_of_self(), 0, time.monotonic() + LONGEST_RUN_SECONDS
            while (any(process.poll() is None for process in ranks)
                   and not any(process.poll() for process in ranks)):
                if watches_memory:
                    peak = max(peak, memory_of(os.getpid()) - own)
                if time.monotonic() > deadline:
                    waiting = [r for r, process in enumerate(ranks) if process.poll() is None]
                    raise SystemExit(f"{way}, {world_size} ranks: ranks {waiting} have not ended for "
                                     f"{LONGEST_RUN_SECONDS:.0f} s")
                time.sleep(0.2)
            if any(process.returncode for process in ranks):
                raise SystemExit(f"{way}, {world_size} ranks: a rank failed")
            said = [process.communicate()[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
            if cluster is not None:
                cluster.stop()
    measured = [json.loads(line.splitlines()[-1]) for line in said]
    return {**{name: statistics.median(m[name] for m in measured) for name in measured[0]},
            "peak": peak}


def memory_of_self() -> int:
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(options, model, world_size, batch):
    """A row for each way, printed as well."""
    ways = options.ways.split(",")
    peaks = {way: run(options, way, model, world_size, batch, watches_memory=True)["peak"]
             for way in ways}
    runs = {way: [] for way in ways}
    for _ in range(options.rounds):
        for way in ways:
            runs[way].append(run(options, way, model, world_size, batch))
    tokens = world_size * batch * MODELS[model][3]
    of = {way: [tokens / one["step"] for one in each] for way, each in runs.items()}
    rows = []
    for way, each in runs.items():
        def median(value, each=each):
            return statistics.median(map(value, each))

        rows.append({
            "model": model, "ranks": world_size, "batch": batch, "way": way,
            "tokens_per_second": round(statistics.median(of[way])),
            "step_by_compute": round(median(lambda one: one["step"] / one["compute"]), 2),
            "overhead_us_per_unit": round(
                median(lambda one: one["step"] - one["compute"]) / (MODELS[model][2] + 1) * 1e6),
            "step_cpu_ms": round(median(lambda one: one["step_cpu"]) * 1e3, 1),
            "compute_cpu_ms": round(median(lambda one: one["compute_cpu"]) * 1e3, 1),
            "peak_mib": round(peaks[way] / 2**20),
            # Of one round each: the machine is not the same in another.
            "tokens_by_fsdp2": round(
                statistics.median(own / peer for own, peer in zip(of[way], of["fsdp2"])), 2)})
        print("{model:6} {ranks:5} {batch:5} {way:11} {tokens_per_second:9} {step_by_compute:12} "
              "{overhead_us_per_unit:8} {step_cpu_ms:7} {compute_cpu_ms:7} {peak_mib:7} "
              "{tokens_by_fsdp2:8}".format(**rows[-1]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also as JSON")
    parser.add_argument("--ways", default=",".join(WAYS), help="fsdp2 among them")
    parser.add_argument("--models", default="demo,100M,narrow")
    parser.add_argument("--world-sizes", default="2,4")
    parser.add_argument("--batches", default="1,8", help="windows of each rank")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help=f"of a run (default: {STEPS})")
    parser.add_argument("--rank-of", dest="way", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run_rank(options)
        return
    rows = []
    print(f"{'model':6} {'ranks':>5} {'batch':>5} {'way':11} {'tokens/s':>9} {'step/compute':>12} "
          f"{'us/unit':>8} {'cpu ms':>7} {'alone':>7} {'MiB':>7} {'by fsdp2':>8}")
    if "deepspeed" in options.ways.split(","):
        # It compiles once, whose memory is not its own. A compiler that was killed leaves a lock in
        # ~/.cache/torch_extensions, which is waited for.
        run(argparse.Namespace(steps=2), "deepspeed", "narrow", 2, 1)
    for model in options.models.split(","):
        for world_size in map(int, options.world_sizes.split(",")):
            for batch in map(int, options.batches.split(",")):
                rows += measure(options, model, world_size, batch)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"rows": rows}, indent=2) + "\n",
                                              encoding="utf-8")


if __name__ == "__main__":
    main()
