"""What a rank's own part of a checkpoint is, beside what the job has: and when it is taken."""

from __future__ import annotations

import io

import torch


def _states(sharded, is_iterated: bool) -> dict:
    return {name: state.state_dict() for name, state in sharded.states.items()
            if hasattr(state, "__iter__") == is_iterated}


def of_step(sharded, random_state: bool = True) -> dict:
    """What the step has used: random state, and the positions of loaders.

    Later a loop may have asked for the next batch already.
    """
    own = {"states": _states(sharded, is_iterated=True)}
    if random_state:
        own["torch_rng"] = torch.get_rng_state()
        if sharded.windows.gpu >= 0:
            own["cuda_rng"] = torch.cuda.get_rng_state(sharded.windows.gpu)
    return own


def add_of_loop(sharded, own: dict) -> None:
    """What the rest of the loop changes after the step: schedulers, and the numbers that they set."""
    own["states"].update(_states(sharded, is_iterated=False))
    if sharded.optimizer is not None:
        own["param_groups"] = [{k: v for k, v in group.items() if k != "params"}
                               for group in sharded.optimizer.param_groups]


def encode(own: dict) -> bytes:
    """For take()."""
    file = io.BytesIO()
    torch.save(own, file)
    return file.getvalue()


def take(sharded, encoded: bytes) -> None:
    """Sets what was saved of a rank."""
    own = torch.load(io.BytesIO(encoded), weights_only=True)
    for name, state in sharded.states.items():
        if name in own.get("states", {}):
            state.load_state_dict(own["states"][name])
    groups = own.get("param_groups", [])
    if sharded.optimizer is not None and len(groups) == len(sharded.optimizer.param_groups):
        for mine, saved in zip(sharded.optimizer.param_groups, groups):
            mine.update(saved)
    if "torch_rng" in own:
        torch.set_rng_state(own["torch_rng"])
    if "cuda_rng" in own and sharded.windows.gpu >= 0:
        torch.cuda.set_rng_state(own["cuda_rng"], sharded.windows.gpu)
