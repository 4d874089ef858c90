"""A step of linear layers on a GPU: plain, by PyTorch's fully_shard, and by Tessera.

    PYTHONPATH=DIR/python python3 tests/bench/peers/gpu_step.py --json rows.json

DIR is what tools/bundle made. One rank: model, batch and measurement are those of
tests/gpu/torch_peers.py, parameters in bf16 and AdamW in fp32. Tessera's rank has its executor in a
process of the worker, and in this one.
"""
import argparse
import copy
import json
import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "gpu"))
import torch_peers as peers  # noqa: E402 pylint: disable=wrong-import-position

import tessera  # noqa: E402 pylint: disable=wrong-import-position
from tessera import _cluster  # noqa: E402 pylint: disable=wrong-import-position

PLAIN = "step of linear layers, AdamW on fp32"


def tessera_step(model, batch, job, in_process):
    units = [layer for layer in model]
    tessera.shard(model.float(), units, job=job, executor_in_process=in_process,
                  precision=tessera.Precision(torch.bfloat16, reduce=torch.bfloat16))
    optimizer = tessera.AdamW(model, lr=1e-3, weight_decay=0.01)

    def step():
        model(batch).sum().backward()
        optimizer.step()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True, help="where the rows go")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm-up-rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=8192)
    options = parser.parse_args()
    device = torch.device("cuda", 0)
    clock = peers.Clock(torch, device)
    model = peers.make_model(torch, device, options)
    batch = torch.ones(options.batch, options.width, device=device, dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/rendezvous", rank=0,
                                world_size=1)
        cluster = _cluster.Cluster(pathlib.Path(folder), 2, 0)
        try:
            found = cluster.addresses()
            tessera.init(coordinator=found["TESSERA_COORDINATOR"], worker=found["TESSERA_WORKER"])
            ways = {
                PLAIN: peers.make_step_of_masters(torch, copy.deepcopy(model), batch),
                PLAIN + ", by fully_shard": peers.make_sharded_step_of_masters(
                    torch, copy.deepcopy(model), batch),
                PLAIN + ", by Tessera, executor a process": tessera_step(
                    copy.deepcopy(model), batch, "process", False),
                PLAIN + ", by Tessera, executor in the trainer": tessera_step(
                    copy.deepcopy(model), batch, "trainer", True),
            }
            samples = peers.measure(
                [lambda step=step: clock.host_seconds(step, options.repeats)
                 for step in ways.values()], options.rounds, options.warm_up_rounds)
            rows = []
            for name, seconds in zip(ways, samples):
                microseconds = [each * 1e6 for each in seconds]
                if name == PLAIN:
                    rows.append(peers.row(name, "us", microseconds))
                else:
                    ratios = [plain / own for plain, own in zip(samples[0], seconds)]
                    rows.append(peers.row(name, "us", microseconds, PLAIN, ratios))
                print(f"{name}: {rows[-1]['median']:.0f} us", flush=True)
            pathlib.Path(options.json).write_text(
                json.dumps({"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__,
                            "rows": rows}, indent=2), encoding="utf-8")
        finally:
            sharded = [m for m in tessera._sharded._attached]
            for each in sharded:
                each.detach()
            cluster.stop()
            dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    main()
