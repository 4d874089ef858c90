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
import subprocess
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


def import_fully_shard():
    """From where PyTorch has it since 2.6, or had it since 2.4."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        from torch.distributed._composable.fsdp import fully_shard
    return fully_shard


def make_model(torch, device, options):
    """Units as those of gpu_step_bench: equal, of width * width parameters in bf16."""
    layers = [
        torch.nn.Sequential(
            torch.nn.Linear(options.width, options.width, bias=False), torch.nn.ReLU()
        )
        for _ in range(options.layers)
    ]
    return torch.nn.Sequential(*layers).to(device=device, dtype=torch.bfloat16)


def shard(model, **arguments):
    fully_shard = import_fully_shard()
    for layer in model:
        fully_shard(layer, **arguments)
    fully_shard(model, **arguments)
    return model


def make_step(torch, model, batch):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_step_of_masters(torch, model, batch):
    """AdamW on fp32, published as bf16, which is what gpu_step_bench does."""
    parameters = list(model.parameters())
    masters = [torch.nn.Parameter(parameter.detach().float()) for parameter in parameters]
    optimizer = torch.optim.AdamW(masters, fused=True)

    def step():
        model(batch).sum().backward()
        for master, parameter in zip(masters, parameters):
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, parameters):
                parameter.copy_(master)

    return step


def make_sharded_step_of_masters(torch, model, batch):
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy
    except ImportError:
        from torch.distributed._composable.fsdp import MixedPrecisionPolicy
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return make_step(torch, shard(model.float(), mp_policy=policy), batch)


def measure_steps(torch, device, clock, options, ranks):
    """Rows of one rank; where there are several, each is one of a process of its own."""
    model = make_model(torch, device, options)
    batch = torch.ones(options.batch, options.width, device=device, dtype=torch.bfloat16)
    steps = [
        make_step(torch, copy.deepcopy(model), batch),
        make_step(torch, shard(copy.deepcopy(model)), batch),
        make_step_of_masters(torch, copy.deepcopy(model), batch),
        make_sharded_step_of_masters(torch, copy.deepcopy(model), batch),
    ]
    samples = measure(
        [lambda step=step: clock.host_seconds(step, options.repeats) for step in steps],
        options.rounds,
        options.warm_up_rounds,
    )
    many = "one rank" if ranks == 1 else f"{ranks} ranks"
    rows = []
    for what, plain, sharded in (
        (PLAIN, samples[0], samples[1]),
        (PLAIN + ", AdamW on fp32", samples[2], samples[3]),
    ):
        name = what if ranks == 1 else f"{what}, on each of {many}"
        rows.append(row(name, "us", [seconds * 1e6 for seconds in plain]))
        rows.append(
            row(
                f"{what}, by fully_shard, {many}",
                "us",
                [seconds * 1e6 for seconds in sharded],
                name,
                [own / other for own, other in zip(plain, sharded)],
            )
        )
    return rows


def join_and_measure(torch, device, clock, options, rendezvous, rank, ranks):
    import torch.distributed as dist

    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method="file://" + rendezvous,
        rank=rank,
        world_size=ranks,
    )
    try:
        return measure_steps(torch, device, clock, options, ranks)
    finally:
        dist.destroy_process_group()


def bench_steps(torch, device, clock, options):
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        return join_and_measure(torch, device, clock, options, rendezvous, 0, 1)


def bench_steps_of_ranks(torch, device, clock, options):
    """With as many ranks as NCCL takes: one a GPU."""
    ranks = options.ranks
    if ranks == 0:
        ranks = torch.cuda.device_count() if device.type == "cuda" else 1
    if ranks < 2:
        why = "NCCL takes one rank a GPU, and there is one"
        return [{"name": f"{PLAIN}, by fully_shard, several ranks", "absent": why}]
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, os.path.abspath(__file__), "--device", options.device]
        arguments += ["--json", os.path.join(folder, "rows"), "--ranks", str(ranks)]
        arguments += ["--rendezvous", os.path.join(folder, "rendezvous")]
        for name in ("rounds", "warm_up_rounds", "repeats", "layers", "width", "batch"):
            arguments += ["--" + name.replace("_", "-"), str(getattr(options, name))]
        others = [subprocess.Popen(arguments + ["--rank", str(i)]) for i in range(ranks)]
        # One that fails leaves the others waiting for it.
        while any(other.poll() is None for other in others):
            if any(other.poll() for other in others):
                break
            time.sleep(0.1)
        failed = [i for i, other in enumerate(others) if other.poll()]
        for other in others:
            other.kill()
            other.wait()
        if failed:
            raise RuntimeError(f"ranks {failed} of {ranks} failed; the log says why")
        with open(os.path.join(folder, "rows"), encoding="utf-8") as file:
            return json.load(file)["rows"]


def be_rank(torch, options):
    """A process of bench_steps_of_ranks; the first one writes the rows."""
    device = torch.device(options.device)
    if options.device == "cuda":
        device = torch.device("cuda", options.rank)
        torch.cuda.set_device(device)
    clock = Clock(torch, device)
    rows = join_and_measure(
        torch, device, clock, options, options.rendezvous, options.rank, options.ranks
    )
    if options.rank == 0:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows}, file)
    return 0


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
    parser.add_argument("--ranks", type=int, default=0, help="0: as many as there are GPUs")
    parser.add_argument("--rank", type=int, default=-1, help="of a process that is one of them")
    parser.add_argument("--rendezvous", default="", help="where these meet")
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
        import_fully_shard()
    except ImportError as error:
        print(f"PyTorch {torch.__version__} is too old: {error}")
        return NO_PEER
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} cannot use the GPU")
        return NO_PEER
    if options.rank >= 0:
        return be_rank(torch, options)
    device = torch.device(options.device)
    clock = Clock(torch, device)
    print(f"PyTorch {torch.__version__}")
    rows = []
    failed = False
    for bench in (bench_adamw, bench_steps, bench_steps_of_ranks):
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
