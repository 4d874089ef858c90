"""Models, data and the table of cases of conformance_test.

A case is trained by a plain module with torch.optim on all data, by PyTorch's FSDP2 and by tessera.
"""

from __future__ import annotations

import dataclasses
from typing import Callable

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing)
from torch.utils.checkpoint import checkpoint

ROWS = 12  # Of a step's batch, over all ranks: the same whatever the number of ranks is.
FEATURES, WIDTH, INNER, OUTPUTS, TOKENS = 5, 7, 13, 3, 11  # Nothing divides by 2, 3 or 4 ranks.


class Block(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.up, self.norm, self.down = (
            nn.Linear(WIDTH, INNER), nn.LayerNorm(INNER), nn.Linear(INNER, WIDTH))
        self.dropout = dropout

    def forward(self, x):
        inner = nn.functional.dropout(torch.tanh(self.norm(self.up(x))), self.dropout,
                                      self.training)
        return x + self.down(inner)


class Net(nn.Module):
    """Blocks are units; embed and head are the root's. One buffer."""

    def __init__(self, dropout=0.0, recompute=""):
        """recompute: how activation checkpointing is done; "": not at all."""
        super().__init__()
        self.embed = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.head = nn.Linear(WIDTH, OUTPUTS)
        self.register_buffer("seen", torch.tensor([3, 4]))
        self.recompute = recompute
        if recompute == "wrapped":
            apply_activation_checkpointing(self, check_fn=lambda m: isinstance(m, Block))

    def forward(self, x, step, rank):
        x = self.embed(x)
        for index, block in enumerate(self.blocks):
            if self.uses(index, step):
                x = checkpoint(block, x, use_reentrant=self.recompute == "reentrant") if (
                    "reentrant" in self.recompute) else block(x)
        return self.head(x)

    def uses(self, index, step):
        del index, step
        return True


class WithUnused(Net):
    """A unit, and a parameter of the root, that no forward uses."""

    def __init__(self):
        super().__init__()
        self.idle, self.spare = Block(), nn.Parameter(torch.ones(3))


class Alternating(Net):
    """The second block has a gradient in the odd steps alone."""

    def uses(self, index, step):
        return index != 1 or step % 2 == 1


class OnOneRank(Net):
    """A parameter has a gradient on rank 0 alone."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(OUTPUTS))

    def forward(self, x, step, rank):
        x = super().forward(x, step, rank)
        return x + self.shift if rank == 0 else x


class Frozen(Net):
    """Of the root one parameter, of a unit one, and a whole unit do not train."""

    def __init__(self):
        super().__init__()
        frozen = [self.embed.weight, self.blocks[0].up.bias, *self.blocks[1].parameters()]
        for parameter in frozen:
            parameter.requires_grad_(False)


class Tied(nn.Module):
    """Embedding and output layer have one weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, step, rank):
        del step, rank
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class TiedUnits(Net):
    """Two units have one weight."""

    def __init__(self):
        super().__init__()
        self.blocks[2].up.weight = self.blocks[0].up.weight


class Small(Net):
    """Fewer elements than ranks: of no dimension, of one element, and of none."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(1))
        self.nothing = nn.Parameter(torch.zeros(0, 4))

    def forward(self, x, step, rank):
        return super().forward(x, step, rank) * self.scale + self.shift + self.nothing.sum()


def batch(step: int):
    """Inputs and targets of a step, of all ranks."""
    made = torch.Generator().manual_seed(1000 + step)
    return (torch.randn(ROWS, FEATURES, generator=made),
            torch.randn(ROWS, OUTPUTS, generator=made))


def tokens(step: int):
    made = torch.randint(TOKENS, (2, ROWS), generator=torch.Generator().manual_seed(2000 + step))
    return made[0], made[1]


def squares(output, targets):
    return nn.functional.mse_loss(output.float(), targets)


def surprise(output, targets):
    return nn.functional.cross_entropy(output.float(), targets)


# Multiplications by powers of two round nothing, so it does not matter whether a multiplication and
# an addition are rounded once, as in torch, or twice.
EXACT = ("SGD", {"lr": 2.0 ** -4, "momentum": 0.5, "weight_decay": 2.0 ** -6})
SGD = ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01})
ADAM = ("Adam", {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1})
ADAMW = ("AdamW", {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1})
BOTH = ("plain", "fsdp2")


@dataclasses.dataclass(frozen=True)
class Case:
    topic: str
    name: str
    ranks: int = 2
    model: Callable[[], nn.Module] = Net
    data: Callable = batch
    loss: Callable = squares
    strategy: str = "FULL_SHARD"
    param: torch.dtype = torch.float32
    reduce: torch.dtype = torch.float32
    rounds_mean: bool = True  # To `reduce`, for the optimizer, as FSDP2 does.
    optimizer: tuple[str, dict] = EXACT
    groups: bool = False
    schedule: str = ""
    micro_batches: int = 1
    sync: str = "each"  # "last": the others' gradients are not reduced; "joint": one backward.
    clip: tuple[float, float] | None = None  # The largest norm, and which norm.
    scale: float = 0.0  # Of the loss; 0: without a scaler.
    overflow: int = 0  # In which step rank 0's loss is infinite; 0: in none.
    steps: int = 4
    legs: tuple[str, ...] = ("tessera",)  # Who trains the first half of the steps, and who goes on.
    through: str = "state_dict"  # How one gives another what it has: that, or "checkpoint",
    #                            "load_model" (the model by DCP), "dcp" or "flat dcp" (all by DCP).
    saves: str = ""  # The folder of a checkpoint that is made at the end.
    loads: str = ""  # The folder of one that other ranks have made, after half of the steps.
    fsdp2: bool = True  # Whether FSDP2 can do that.
    exact_to: tuple[str, ...] = ()  # Whose numbers come out to the bit.
    rounding: float = 0.0  # By what a number of the order of 1 is off in low precision.

    @property
    def tolerance(self) -> float:
        """Absolute, where sums or updates round elsewhere: a few roundings of numbers of the order
        of 1 in fp32. Adam divides small gradients by small roots, so that a rounding shows in the
        fifth digit of a step of 0.01. Low precision: as training_variants_test.cc derives it."""
        return (2e-6 if self.optimizer[0] == "SGD" else 2e-5) + self.rounding / 12


def _strategies():
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        yield Case("strategies", strategy, strategy=strategy, exact_to=BOTH)
    # A group adds its ranks' gradients first.
    for strategy in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2"):
        yield Case("strategies", strategy, ranks=4, strategy=strategy, exact_to=("fsdp2",))


def _sizes():
    # Of two numbers there is one sum; three are divided by 3, and four added in any order.
    for ranks, exact_to in ((1, BOTH), (2, BOTH), (3, ()), (4, ())):
        if ranks != 2:  # Most other cases have two.
            yield Case("sizes", "SGD", ranks=ranks, exact_to=exact_to)
            yield Case("sizes", "AdamW", ranks=ranks, optimizer=ADAMW)
        yield Case("sizes", "fewer elements than ranks", ranks=ranks, model=Small, fsdp2=False,
                   exact_to=("plain",) if exact_to else ())


def _precisions():
    fp32, bf16, fp16 = torch.float32, torch.bfloat16, torch.float16
    for param, reduce in ((bf16, fp32), (bf16, bf16), (fp32, bf16), (fp16, fp32)):
        yield Case("precision", f"{param}, reduced in {reduce}", param=param, reduce=reduce,
                   exact_to=BOTH)
    # FSDP2 halves before it adds, so that the smallest numbers of fp16 lose a bit.
    for param in (fp16, fp32):
        yield Case("precision", f"{param}, reduced in {fp16}", param=param, reduce=fp16,
                   exact_to=("plain",), rounding=2.0 ** -12)
    # The sum in fp32 is not rounded, which FSDP2 has no option for.
    for param, reduce in ((bf16, bf16), (fp32, bf16), (fp16, fp16)):
        yield Case("precision", f"{param}, reduced in {reduce}, the mean in fp32", param=param,
                   reduce=reduce, rounds_mean=False, fsdp2=False, exact_to=("plain",))
    yield Case("precision", "scaled loss", scale=1024.0, exact_to=BOTH)
    yield Case("precision", "scaled loss in fp16", param=fp16, scale=1024.0, exact_to=BOTH)
    yield Case("precision", "scaled loss that overflows", scale=1024.0, overflow=2, exact_to=BOTH)
    yield Case("precision", "scaled and clipped", scale=1024.0, clip=(0.05, 2.0))


def _accumulations():
    # The plain module adds the parts of one rank after those of another.
    for sync in ("each", "last", "joint"):
        for strategy, ranks, parts in (("FULL_SHARD", 2, 2), ("SHARD_GRAD_OP", 2, 2),
                                       ("HYBRID_SHARD", 4, 3)):
            yield Case("accumulation", f"{strategy}, {sync}", ranks=ranks, strategy=strategy,
                       micro_batches=parts, sync=sync, exact_to=("fsdp2",))


def _clippings():
    for norm in (2.0, float("inf"), 1.0, 3.0):
        yield Case("clipping", f"norm {norm}", clip=(0.05, norm))
    yield Case("clipping", "a norm that is small enough", clip=(100.0, 2.0), exact_to=BOTH)
    yield Case("clipping", "HYBRID_SHARD", ranks=4, strategy="HYBRID_SHARD", clip=(0.05, 2.0))


def _parameters():
    for optimizer, exact_to in ((EXACT, BOTH), (ADAMW, ())):
        def case(name, model, optimizer=optimizer, exact_to=exact_to, **others):
            return Case("parameters", f"{name}, {optimizer[0]}", model=model, optimizer=optimizer,
                        exact_to=exact_to, **others)
        yield case("frozen", Frozen)
        yield case("unused", WithUnused)
        yield case("with a gradient in every second step", Alternating)
        yield case("with a gradient on one rank", OnOneRank, fsdp2=False)
        yield case("tied", Tied, data=tokens, loss=surprise)
        yield case("tied in two units", TiedUnits, fsdp2=False)


def _recomputations():
    yield Case("recomputation", "none, with dropout", model=lambda: Net(0.2), exact_to=BOTH)
    for how in ("reentrant", "not reentrant", "wrapped"):
        yield Case("recomputation", how, model=lambda how=how: Net(0.2, how), exact_to=BOTH)


def _optimizers():
    for optimizer in (SGD, ADAM, ADAMW):
        for groups, schedule in ((False, ""), (True, ""), (True, "cosine"), (True, "one cycle")):
            name = f"{optimizer[0]}{', groups' * groups}, {schedule or 'no'} schedule"
            yield Case("optimizers", name, optimizer=optimizer, groups=groups, schedule=schedule)


def _states():
    for optimizer, exact_to in ((EXACT, BOTH), (ADAMW, ())):
        def case(name, optimizer=optimizer, exact_to=exact_to, **others):
            return Case("states", f"{name}, {optimizer[0]}", optimizer=optimizer, exact_to=exact_to,
                        **others)
        for legs in (("plain", "tessera"), ("tessera", "plain"), ("fsdp2", "tessera"),
                     ("tessera", "fsdp2"), ("tessera", "tessera")):
            yield case(" to ".join(legs), legs=legs)
        yield case("fsdp2's model in DCP's files", legs=("fsdp2", "tessera"), through="load_model")
        yield case("tessera's model in DCP's files", legs=("tessera", "fsdp2"),
                   through="load_model")
        yield case("tessera to tessera in its files", legs=("tessera", "tessera"),
                   through="checkpoint")
        folder = f"of-two-{optimizer[0]}"
        yield case("saved by 2 ranks", steps=2, saves=folder)
        for ranks in (3, 4):
            yield case(f"loaded by {ranks} ranks", ranks=ranks, loads=folder, exact_to=())
    # States of several groups, and schedules that go on where they were.
    for legs in (("plain", "tessera"), ("tessera", "plain"), ("fsdp2", "tessera"),
                 ("tessera", "fsdp2")):
        yield Case("states", f"{' to '.join(legs)}, groups, one cycle", optimizer=ADAMW,
                   groups=True, schedule="one cycle", legs=legs)
    for model in (Frozen, WithUnused, Alternating):
        for legs in (("plain", "tessera"), ("tessera", "plain")):
            yield Case("states", f"{' to '.join(legs)}, {model.__name__}", model=model,
                       optimizer=ADAMW, legs=legs)


def _dcp():
    """Model and optimizer in the files of torch.distributed.checkpoint."""
    for legs in (("fsdp2", "tessera"), ("tessera", "fsdp2")):
        name = " to ".join(legs)

        def case(what, name=name, legs=legs, **others):
            return Case("dcp", f"{name}, {what}", **{"legs": legs, "through": "dcp", **others})
        yield case("SGD without rounding", exact_to=BOTH)
        yield case("SGD", optimizer=SGD)
        yield case("SGD without momentum", optimizer=("SGD", {"lr": 0.05}))
        yield case("Adam", optimizer=ADAM)
        yield case("frozen", optimizer=ADAMW, model=Frozen)
        yield case("tied", optimizer=ADAMW, model=Tied, data=tokens, loss=surprise)
        for through in ("dcp", "flat dcp"):
            yield case(f"groups, one cycle, {through}", optimizer=ADAMW, groups=True,
                       schedule="one cycle", through=through)
            yield case(f"SGD, groups, {through}", optimizer=SGD, groups=True, through=through)
        for optimizer in (SGD, ADAMW):
            for through in ("dcp", "flat dcp"):
                folder = f"{through}-{legs[0]}-{optimizer[0]}"
                yield case(f"saved by 2 ranks, {optimizer[0]}, {through}", steps=2, saves=folder,
                           optimizer=optimizer, legs=legs[:1], through=through)
                for ranks in (3, 4):
                    yield case(f"loaded by {ranks} ranks, {optimizer[0]}, {through}", ranks=ranks,
                               loads=folder, optimizer=optimizer, legs=legs[1:], through=through)


def cases() -> list[Case]:
    return [*_strategies(), *_sizes(), *_precisions(), *_accumulations(), *_clippings(),
            *_parameters(), *_recomputations(), *_optimizers(), *_states(), *_dcp()]
