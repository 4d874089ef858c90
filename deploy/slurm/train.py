"""A training program for train.sbatch: train.py CHECKPOINTS [STEPS]

Saves as it goes, and continues from the newest checkpoint in the folder.
"""

import pathlib
import sys

import tessera
import torch
from torch import nn

SAVE_EVERY = 50  # Steps. At most so many are lost when the job is requeued.


def make_model():
    torch.manual_seed(1)  # The same initial values on all ranks.
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])


def batch_of(step, rank):
    """Yours. It depends on the step, so that a job that was requeued sees what it would have seen."""
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(1000 * step + rank))


def main(checkpoints, steps):
    tessera.init()
    model = tessera.shard(make_model(), units=nn.Linear)
    opt = tessera.AdamW(model, lr=1e-3)
    if model.tessera.next_step == 1:  # Later: this process replaces one that was killed.
        newest = max(checkpoints.glob("step-" + "[0-9]" * 8), default=None)
        if newest is not None:
            print(f"continues from {newest}")
            tessera.load(model, newest)
    while model.tessera.next_step <= steps:
        step = model.tessera.next_step

        def closure():
            x = batch_of(step, model.tessera.rank)
            loss = (model(x) - x.flip(1)).square().mean()
            loss.backward()
            return loss
        loss = opt.step(closure)  # Run again if a process of the job died.
        model.tessera.report(loss=loss)
        if step % SAVE_EVERY == 0 and step < steps:
            tessera.save(model, checkpoints / f"step-{step:08}", in_background=True, keep_newest=3)
    tessera.save(model, checkpoints / f"step-{steps:08}", keep_newest=3)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1000)
