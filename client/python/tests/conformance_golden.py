"""The trainings of tests/reference/torch/golden under tessera. Models, samples and numbers are from
the code that asked PyTorch's FSDP for the losses and parameters in those files."""

from __future__ import annotations

import json
import pathlib
import sys

import torch
from torch import nn

import tessera

from conformance_trainers import GROUP_SIZE, JOBS

_REFERENCE = pathlib.Path(__file__).parents[3] / "tests" / "reference" / "torch"


def runs(name: str) -> list[dict]:
    """Of a golden file; each with its number of steps."""
    golden = json.loads((_REFERENCE / "golden" / f"{name}.json").read_text())
    defaults = {"param_dtype": "fp32", "reduce_dtype": "fp32", "micro_batches": 1, "sync": "each",
                "max_norm": 0.0, "reshard_group_size": 0, "norms": []}
    return [{**defaults, **run, "steps": golden["steps"]} for run in golden["runs"]]


def generator():
    """tests/reference/torch/training_variants.py."""
    if str(_REFERENCE) not in sys.path:
        sys.path.append(str(_REFERENCE))
    import training_variants
    return training_variants


def _make(run: dict, strategy: str):
    of = generator()
    precision = tessera.Precision(of.DTYPES[run["param_dtype"]], of.DTYPES[run["reduce_dtype"]])
    model = of.make_layers()
    tessera.shard(
        model, [model[0], model[2]], job=f"golden-{run['world_size']}-{next(JOBS)}",
        strategy=strategy, precision=precision,
        shard_group_size=GROUP_SIZE if strategy.startswith("HYBRID") else 0,
        config={"gradient_slots": 0, "reshard_group_size": run["reshard_group_size"],
                "keep_low_precision_gradients": run["reduce_dtype"] != "fp32"})
    kind = {"sgd": tessera.SGD, "adamw": tessera.AdamW}[run["optimizer"]]
    return model, kind(model, **run["options"], max_grad_norm=run["max_norm"])


def train(run: dict, strategy: str, rank: int) -> dict:
    """What `run` has, of this rank."""
    model, optimizer = _make(run, strategy)
    losses, norms, parts = [], [], run["micro_batches"]
    for step in range(1, run["steps"] + 1):
        batches = [whole.chunk(run["world_size"])[rank].chunk(parts)
                   for whole in generator().samples_of(step)]
        losses.append(0.0)
        for index, (inputs, targets) in enumerate(zip(*batches)):
            model.tessera.set_requires_gradient_sync(run["sync"] == "each" or index + 1 == parts)
            loss = nn.functional.mse_loss(model(inputs).float(), targets) / parts
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
        if run["norms"]:
            norms.append(optimizer.last_grad_norm)
    parameters = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
    model.tessera.detach()
    return {"losses": losses, "norms": norms, "parameters": parameters}


def train_as_there(run: dict, rank: int) -> dict:
    """The same by PyTorch's FSDP, which the run names."""
    return generator().train(run, rank)


def tolerances(run: dict) -> tuple[float, float]:
    """Of losses and of parameters, absolute: those of the C++ suite, which derives them."""
    rounding = max({"fp32": 0.0, "bf16": 2.0 ** -9, "fp16": 2.0 ** -12}[run[key]]
                   for key in ("param_dtype", "reduce_dtype"))
    of_parameters = 2e-6 if run["optimizer"] == "sgd" and "topic" in run else 2e-5
    return 2e-6 + rounding / 12, of_parameters + rounding / 12
