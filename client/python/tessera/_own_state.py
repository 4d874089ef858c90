"""What a rank's own part of a checkpoint is, beside what the job has: and when it is taken."""

from __future__ import annotations

import io

import torch


def _is_position(state) -> bool:
    return hasattr(state, "__iter__")  # A loader's.


def _is_alike_on_all_ranks(state) -> bool:
    # Not loaders, random generators, and optimizers of a rank's shards. Averages are modules.
    schedulers = torch.optim.lr_scheduler
    return isinstance(state, (schedulers.LRScheduler, schedulers.ReduceLROnPlateau, torch.nn.Module))


def _states(sharded, positions: bool) -> dict:
    return {name: state.state_dict() for name, state in sharded.states.items()
            if _is_position(state) == positions}


def of_step(sharded, random_state: bool = True) -> dict:
    """What the step has used: random state, and the positions of loaders.

    Later a loop may have asked for the next batch already.
    """
    own = {"states": _states(sharded, positions=True)}
    if random_state:
        own["torch_rng"] = torch.get_rng_state()
        if sharded.windows.gpu >= 0:
            own["cuda_rng"] = torch.cuda.get_rng_state(sharded.windows.gpu)
    return own


def add_of_loop(sharded, own: dict) -> None:
    """What the rest of the loop changes after the step: schedulers, and the numbers that they set."""
    own["states"].update(_states(sharded, positions=False))
    if sharded.optimizer is not None:
        own["param_groups"] = [{k: v for k, v in group.items() if k != "params"}
                               for group in sharded.optimizer.param_groups]


def encode(own: dict) -> bytes:
    """For take()."""
    file = io.BytesIO()
    torch.save(own, file)
    return file.getvalue()


def take(sharded, encoded: bytes, is_own: bool) -> None:
    """Sets what was saved.

    is_own: the rank of this number saved it. Else rank 0 did, in a job of fewer ranks, and only states
    that are the same on all ranks are set.
    """
    own = torch.load(io.BytesIO(encoded), weights_only=True)
    sharded.unclaimed, sharded.unclaimed_is_own = dict(own.get("states", {})), is_own
    for name in list(sharded.states):
        claim(sharded, name)
    groups = own.get("param_groups", [])
    if sharded.optimizer is not None and len(groups) == len(sharded.optimizer.param_groups):
        for mine, saved in zip(sharded.optimizer.param_groups, groups):
            mine.update(saved)
    if not is_own:
        return
    if "torch_rng" in own:
        torch.set_rng_state(own["torch_rng"])
    if "cuda_rng" in own and sharded.windows.gpu >= 0:
        torch.cuda.set_rng_state(own["cuda_rng"], sharded.windows.gpu)


def claim(sharded, name: str) -> None:
    """Sets the registered state of this name, if one was loaded that nobody has taken."""
    saved, state = sharded.unclaimed.pop(name, None), sharded.states[name]
    if saved is not None and (sharded.unclaimed_is_own or _is_alike_on_all_ranks(state)):
        state.load_state_dict(saved)
