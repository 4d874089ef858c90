#!/bin/sh
# The shell reads these lines, and goes on as Python where there is one; to that they are a text.
''':'
command -v python3 >/dev/null 2>&1 || { echo "no Python: there is no python3 in $PATH"; exit 77; }
exec python3 "$0" "$@"
'''
__doc__ = """What PyTorch reaches on this machine's GPU, as rows beside those of gpu_bench and gpu_step_bench.

Part of what DIR/gpu-check runs. Exit status: 0 all was measured, 1 it was not, 77 this machine has
no Python, no PyTorch, one that is too old or none that can use the GPU: it says why, and no row is
written.
"""
import argparse
import copy
import json
import os
import statistics
import sys
import tempfile
import time

NO_PEER = 77
COPY = "torch: copy within the device"
PLAIN = "torch: step of linear layers"


def quartiles(values):
    if len(values) == 1:
        return values * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def row(name, unit, values, to=None, ratios=None):
    low, median, high = quartiles(values)
    result = {"name": name, "unit": unit, "median": median, "quartiles": [low, high]}
    if to is not None:
        low, median, high = quartiles(ratios)
        result["ratio"] = {"to": to, "median": median, "quartiles": [low, high]}
    return result


class Clock:
    """Seconds of enqueued work, by the device's own events where it has any."""

    def __init__(self, torch, device):
        self.torch = torch
        self.on_gpu = device.type == "cuda"

    def seconds(self, work, repeats):
        if not self.on_gpu:
            begin = time.perf_counter()
            for _ in range(repeats):
                work()
            return (time.perf_counter() - begin) / repeats
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / repeats

    def host_seconds(self, work, repeats):
        if self.on_gpu:
            self.torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            work()
        if self.on_gpu:
            self.torch.cuda.synchronize()
        return (time.perf_counter() - begin) / repeats


def measure(ways, rounds, warm_up_rounds):
    """Interleaved: seconds by round, of each way."""
    samples = [[] for _ in ways]
    for index in range(warm_up_rounds + rounds):
        for way, of_way in zip(ways, samples):
            seconds = way()
            if index >= warm_up_rounds:
                of_way.append(seconds)
    return samples


def bench_adamw(torch, device, clock, options):
    count = options.elements
    source = torch.zeros(count, device=device)
    target = torch.empty_like(source)
    parameter = torch.nn.Parameter(torch.zeros(count, device=device))
    parameter.grad = torch.zeros(count, device=device)
    adamw = torch.optim.AdamW([parameter], fused=True)
    copies, steps = measure(
        [
            lambda: clock.seconds(lambda: target.copy_(source), options.repeats),
            lambda: clock.seconds(adamw.step, options.repeats),
        ],
        options.rounds,
        options.warm_up_rounds,
    )
    # A copy reads and writes 4 bytes; AdamW reads 16 and writes 12, and publishes nothing.
    copy_rates = [8 * count / seconds for seconds in copies]
    adamw_rates = [28 * count / seconds for seconds in steps]
    return [
        row(COPY, "GB/s", [rate * 1e-9 for rate in copy_rates]),
        row(
            "torch.optim.AdamW(fused=True) on fp32",
            "GB/s",
            [rate * 1e-9 for rate in adamw_rates],
            COPY,
            [own / other for own, other in zip(adamw_rates, copy_rates)],
        ),
    ]


def make_step(torch, model, batch):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def bench_steps(torch, device, clock, options):
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    layers = [
        torch.nn.Sequential(torch.nn.Linear(options.width, options.width), torch.nn.ReLU())
        for _ in range(options.layers)
    ]
    plain = torch.nn.Sequential(*layers).to(device=device, dtype=torch.bfloat16)
    sharded = copy.deepcopy(plain)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method="file://" + os.path.join(folder, "rendezvous"),
            rank=0,
            world_size=1,
        )
        try:
            for layer in sharded:
                fully_shard(layer)
            fully_shard(sharded)
            batch = torch.ones(options.batch, options.width, device=device, dtype=torch.bfloat16)
            steps = [make_step(torch, model, batch) for model in (plain, sharded)]
            plain_seconds, sharded_seconds = measure(
                [lambda step=step: clock.host_seconds(step, options.repeats) for step in steps],
                options.rounds,
                options.warm_up_rounds,
            )
        finally:
            dist.destroy_process_group()
    return [
        row(PLAIN, "us", [seconds * 1e6 for seconds in plain_seconds]),
        row(
            "torch: the same by fully_shard, one rank",
            "us",
            [seconds * 1e6 for seconds in sharded_seconds],
            PLAIN,
            [plain / own for plain, own in zip(plain_seconds, sharded_seconds)],
        ),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True, help="where the rows go")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm-up-rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--elements", type=int, default=1 << 27, help="of AdamW's arrays")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=8192)
    options = parser.parse_args()
    if sys.version_info < (3, 8):
        print(f"no Python: {sys.version.split()[0]} is too old")
        return NO_PEER
    try:
        import torch
        import torch.distributed.fsdp
    except ImportError as error:
        print(f"no PyTorch: {error}")
        return NO_PEER
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError as error:
        print(f"PyTorch {torch.__version__} is too old: {error}")
        return NO_PEER
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} cannot use the GPU")
        return NO_PEER
    device = torch.device(options.device)
    clock = Clock(torch, device)
    print(f"PyTorch {torch.__version__}")
    rows = []
    failed = False
    for bench in (bench_adamw, bench_steps):
        try:
            rows += bench(torch, device, clock, options)
        except Exception as error:  # Whatever it is: the other rows are written.
            failed = True
            text = f"{type(error).__name__}: {error}"
            rows.append({"name": f"torch: {bench.__name__}", "error": text})
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump({"rows": rows}, file, indent=2)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
