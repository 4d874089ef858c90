"""Trains until --steps, saves every --save-every steps, and goes on from the checkpoint if there is one."""

import argparse
import os
import pathlib

import tessera
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    # HYBRID_SHARD: each pod has all shards, so that one may be lost. FULL_SHARD: a part of them, and
    # all pods begin again at the checkpoint if one is lost.
    parser.add_argument("--strategy", default="HYBRID_SHARD")
    given = parser.parse_args()

    tessera.init()
    torch.manual_seed(1)                               # The same initial values on all ranks.
    config = ({"shard_group_size": int(os.environ["LOCAL_WORLD_SIZE"])}
              if given.strategy == "HYBRID_SHARD" else None)
    model = tessera.shard(nn.Sequential(*[Block(64) for _ in range(4)]), units=Block,
                          strategy=given.strategy, config=config)
    optimizer = tessera.AdamW(model, lr=1e-3, max_grad_norm=1.0)
    model.tessera.attach()
    rank = model.tessera.rank
    device = next(model.parameters()).device           # The rank's GPU, if its worker has one.
    if model.tessera.next_step == 1 and given.checkpoint.exists():
        loaded = tessera.load(model, given.checkpoint)
        print("continues after step", loaded["step"])

    while True:
        done = model.tessera.next_step - 1
        # Before the step, so that a rank that was started again takes part too.
        if done > 0 and (done % given.save_every == 0 or done == given.steps):
            tessera.save(model, given.checkpoint)      # Whole, or the one before stays.
        if done >= given.steps:
            break

        def closure():
            torch.manual_seed(model.tessera.next_step * 1000 + rank)
            x = torch.randn(8, 64).to(device)          # Your batch.
            loss = (model(x) - x.flip(1)).square().mean()
            loss.backward()
            return loss
        optimizer.step(closure)                        # Run again if a process of the job died.
        print("step", model.tessera.next_step - 1)


if __name__ == "__main__":
    main()
