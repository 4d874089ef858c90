"""A step of a GPT-2 of 1.3e9 parameters on a GPU: plain, by fully_shard, and by Tessera.

    PYTHONPATH=DIR/python python3 tests/bench/peers/gpu_gpt2.py --json rows.json

DIR is what tools/bundle made. One rank, in bf16, with AdamW on fp32: transformers' GPT-2 with 24
layers of width 2048 and 4 sequences of 1024 tokens. Each way is a process of its own, so that the
memory is its own; all run twice, in turns.
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

WAYS = ("autocast", "fully_shard", "Tessera, executor a process",
        "Tessera, executor in the trainer")
GIB = 2.0**30


def make_model():
    import transformers
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=50304, n_positions=1024, n_embd=2048, n_layer=24, n_head=16, attn_pdrop=0.0,
        embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    with torch.device("cuda"):
        return transformers.GPT2LMHeadModel(config)


def autocast(model):
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), torch.autocast(
        "cuda", torch.bfloat16)


def fully_shard(model):
    from torch.distributed import fsdp
    dist.init_process_group("nccl", init_method=f"file://{tempfile.mkdtemp()}/rendezvous", rank=0,
                            world_size=1)
    policy = fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.transformer.h:
        fsdp.fully_shard(block, mp_policy=policy)
    fsdp.fully_shard(model, mp_policy=policy)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4,
                                    fused=True), contextlib.nullcontext()


def tessera(model, in_process):
    from transformers.models.gpt2 import modeling_gpt2

    import tessera as package
    sharded = package.shard(model, modeling_gpt2.GPT2Block, executor_in_process=in_process,
                            precision=package.Precision(torch.bfloat16))
    return sharded, package.AdamW(sharded, lr=1e-4, weight_decay=0.01), contextlib.nullcontext()


def measure(way, steps, warm_up_steps):
    """Of this process: the milliseconds of each step, and the GiB that are used in the end."""
    made = make_model()
    if way.startswith("Tessera"):
        model, optimizer, computes = tessera(made, way == WAYS[3])
    else:
        model, optimizer, computes = {"autocast": autocast, "fully_shard": fully_shard}[way](made)
    tokens = torch.randint(50304, (4, 1024), device="cuda",
                           generator=torch.Generator("cuda").manual_seed(3))
    milliseconds = []
    for step in range(warm_up_steps + steps):
        if step == warm_up_steps:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        with computes:
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        milliseconds.append((time.perf_counter() - start) * 1e3)
    free, total = torch.cuda.mem_get_info()
    return {"milliseconds": milliseconds[warm_up_steps:], "loss": loss.item(),
            "trainer_peak_gib": torch.cuda.max_memory_allocated() / GIB,
            "device_used_gib": (total - free) / GIB}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True, help="where the rows go")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up-steps", type=int, default=4)
    parser.add_argument("--way", choices=WAYS, help="this one alone, in this process")
    options = parser.parse_args()
    if options.way:
        pathlib.Path(options.json).write_text(
            json.dumps(measure(options.way, options.steps, options.warm_up_steps)),
            encoding="utf-8")
        return
    found = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "one.json"
        for way in WAYS * 2:
            subprocess.run([sys.executable, __file__, "--way", way, "--json", path, "--steps",
                            str(options.steps), "--warm-up-steps", str(options.warm_up_steps)],
                           check=True)
            found[way].append(json.loads(path.read_text(encoding="utf-8")))
            print(f"{way}: {statistics.median(found[way][-1]['milliseconds']):.1f} ms", flush=True)
    rows = []
    for way, runs in found.items():
        rows.append({"name": way, "step_milliseconds": [
            round(statistics.median(run["milliseconds"]), 1) for run in runs]})
        for key in ("loss", "trainer_peak_gib", "device_used_gib"):
            rows[-1][key] = round(max(run[key] for run in runs), 3)
    pathlib.Path(options.json).write_text(
        json.dumps({"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__,
                    "rows": rows}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    main()
