"""One rank of ranks_test: trainer.py OUT STEPS STOP_AT. Rank 0 saves the last state_dict.

STOP_AT above 0: stands still in that step's backward. Below 0: raises in that step.
"""

import os
import signal
import sys
import threading

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x):
        # Random numbers, so that a repetition that has others is seen.
        return x + self.down(nn.functional.dropout(torch.relu(self.norm(self.up(x))), 0.1))


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), Block(), Block(), nn.Linear(8, 1))


def loss_of(model, rank, step):
    torch.manual_seed(1000 * step + rank)
    x = torch.randn(5, 4)
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def train_plain(world_size, steps):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        for rank in range(world_size):
            (loss_of(model, rank, step) / world_size).backward()
        optimizer.step()
    return model.state_dict()


def main():
    import tessera
    out, steps, stop_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    tessera.init()
    model = tessera.shard(make_model(), Block)
    optimizer = tessera.AdamW(model, lr=1e-2)
    scaler = tessera.GradScaler(optimizer, init_scale=2.0 ** 10, growth_interval=2,
                                enabled="TEST_SCALER" in os.environ)
    tries = {}
    if os.environ.get("TEST_FORKS"):
        model.tessera.attach()
        child = os.fork()
        if child == 0:
            # As a data loader: it lives on. It does not keep the pipe that the test reads.
            os.close(1), os.close(2)
            signal.pause()
        print("child", child)
    while model.tessera.next_step <= steps:
        def closure():
            step = model.tessera.next_step
            tries[step] = tries.get(step, 0) + 1
            if tries[step] > 1:
                print("redone", step)
            if step == -stop_at:
                raise ValueError("bad batch")
            loss = loss_of(model, model.tessera.rank, step)
            if step == stop_at:
                loss.register_hook(lambda g: (print("stopped"), threading.Event().wait()))
            scaler.scale(loss).backward()
            return loss
        scaler.step(optimizer, closure)
        scaler.update()
    print("scale", scaler.get_scale())
    state = model.state_dict()
    if model.tessera.rank == 0:
        torch.save(state, out)


if __name__ == "__main__":
    main()
