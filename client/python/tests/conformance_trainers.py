"""What trains the cases of conformance_cases: a plain module, PyTorch's FSDP2, tessera."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import pathlib

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict,
    set_model_state_dict, set_optimizer_state_dict, set_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import tessera

from conformance_cases import Block, Case

GROUP_SIZE = 2  # Of hybrid strategies.
JOBS = itertools.count(1)  # Their names' numbers, the same on all ranks.
_WHOLE = StateDictOptions(full_state_dict=True)


def _schedule(optimizer, case: Case):
    if case.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, case.steps)
    if case.schedule == "one cycle":
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=case.steps + 1)
    return None


def _groups(model, case: Case):
    """Biases have numbers of their own."""
    if not case.groups:
        return None
    parameters = list(model.named_parameters())
    return [{"params": [p for n, p in parameters if not n.endswith("bias")]},
            {"params": [p for n, p in parameters if n.endswith("bias")],
             "lr": 0.03, "weight_decay": 0.0}]


def _copies(tensors: dict) -> dict:
    return {name: value.detach().clone() for name, value in tensors.items()
            if isinstance(value, torch.Tensor)}


class Trainer:
    """One of the three. It trains on the data of `ranks`."""

    def __init__(self, case: Case, ranks):
        self.case, self.norms = case, []
        self.losses = {rank: [] for rank in ranks}  # Of each step's parts.
        torch.manual_seed(1)
        self.model, self.optimizer = self.make(case.model())
        self.scheduler = _schedule(self.optimizer, case)
        self.scaler = self.make_scaler() if case.scale else None

    def make(self, model):
        """The model that trains, and its optimizer."""
        raise NotImplementedError

    def make_optimizer(self, model):
        kind, options = self.case.optimizer
        return getattr(torch.optim, kind)(_groups(model, self.case) or model.parameters(), **options)

    def make_scaler(self):
        return torch.amp.GradScaler("cpu", init_scale=self.case.scale, growth_interval=2)

    # --- Training ---

    def train(self, steps) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            for rank, losses in self.losses.items():
                losses.append(self.losses_of(step, rank))
            if self.case.clip:
                if self.scaler:
                    self.scaler.unscale_(self.optimizer)
                self.norms.append(self.clip(*self.case.clip))
            self.step()
            if self.scheduler:
                self.scheduler.step()

    def losses_of(self, step: int, rank: int) -> list[float]:
        """Of the parts of a rank's batch; their backwards have added to the gradients."""
        case, losses = self.case, []
        parts = [whole.chunk(case.ranks)[rank].chunk(case.micro_batches)
                 for whole in case.data(step)]
        for index, (inputs, targets) in enumerate(zip(*parts)):
            is_last = index + 1 == case.micro_batches
            torch.manual_seed(step * 100 + rank * 10 + index)
            with self.sync(is_last or case.sync != "last"):
                loss = case.loss(self.forward(inputs, step, rank), targets) / case.micro_batches
                if step == case.overflow and rank == 0:
                    loss = loss * float("inf")
                losses.append(loss)
                if case.sync != "joint":
                    self.backward(loss)
        if case.sync == "joint":
            self.backward(sum(losses))
        return [loss.item() for loss in losses]

    def forward(self, inputs, step, rank):
        return self.model(inputs, step, rank)

    def backward(self, loss) -> None:
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def sync(self, sync: bool):
        """Whether a backward reduces gradients."""
        del sync
        return contextlib.nullcontext()

    def clip(self, max_norm, norm_type) -> float:
        raise NotImplementedError

    def step(self) -> None:
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def evaluate(self, rank: int) -> list[float]:
        """The losses of a rank's batch without a backward, in evaluation and in training mode."""
        found = []
        inputs, targets = (whole.chunk(self.case.ranks)[rank] for whole in self.case.data(0))
        for is_training in (False, True):
            self.model.train(is_training)
            torch.manual_seed(0)
            with torch.no_grad():
                found.append(self.case.loss(self.forward(inputs, 1, rank), targets).item())
        return found

    # --- State: whole tensors; the optimizer's in torch.optim's form, by number ---

    def model_state(self) -> dict:
        raise NotImplementedError

    def optimizer_state(self) -> dict:
        raise NotImplementedError

    def named_optimizer_state(self) -> dict:
        names = {id(p): name.replace("_checkpoint_wrapped_module.", "")
                 for name, p in self.model.named_parameters()}
        order = [names[id(p)] for group in self.optimizer.param_groups for p in group["params"]]
        return {order[number]: _copies(entry)
                for number, entry in self.optimizer_state()["state"].items()}

    def load(self, model_state: dict, optimizer_state: dict) -> None:
        self.model.load_state_dict(model_state)
        self.optimizer.load_state_dict(optimizer_state)

    def save_model(self, folder: str) -> None:
        """The model alone, by torch.distributed.checkpoint."""
        raise NotImplementedError

    def load_model(self, folder: str) -> None:
        raise NotImplementedError

    def save_dcp(self, folder: str) -> None:
        """Model and optimizer."""
        model, optim = get_state_dict(self.model, self.optimizer, options=self._options())
        dcp.save({"model": model, "optim": optim}, checkpoint_id=folder)

    def load_dcp(self, folder: str) -> None:
        model, optim = get_state_dict(self.model, self.optimizer, options=self._options())
        state = {"model": model, "optim": optim}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optim"], options=self._options())

    def _options(self):
        return StateDictOptions(flatten_optimizer_state_dict=self.case.through == "flat dcp")

    def held(self) -> dict:
        return {"parameters": _copies(self.model_state()), "optimizer": self.named_optimizer_state()}

    def result(self) -> dict:
        """What the case is compared by."""
        return {"losses": self.losses, "norms": self.norms,
                "evaluated": {rank: self.evaluate(rank) for rank in self.losses},
                "rates": [group["lr"] for group in self.optimizer.param_groups],
                "scale": self.scaler.get_scale() if self.scaler else 0.0, **self.held()}

    def close(self) -> None:
        """Leaves nothing behind."""


class Plain(Trainer):
    """The module itself, on the data of all ranks. In low precision a copy computes, and its
    gradients are rounded to what gradients travel in, and added in fp32."""

    def make(self, model):
        self._copy = None
        if self.case.param is not torch.float32:
            self._copy = copy.deepcopy(model).to(self.case.param)
        return model, self.make_optimizer(model)

    def forward(self, inputs, step, rank):
        if self._copy is None:
            return super().forward(inputs, step, rank)
        self._copy.load_state_dict(self.model.state_dict())
        self._copy.train(self.model.training)
        return self._copy(inputs.to(self.case.param), step, rank)

    def backward(self, loss):
        if self.case.param is self.case.reduce is torch.float32:
            super().backward(loss / self.case.ranks)
            return
        scaled = self.scaler.scale(loss) if self.scaler else loss
        gradients = torch.autograd.grad(scaled, list((self._copy or self.model).parameters()))
        for parameter, gradient in zip(self.model.parameters(), gradients):
            part = gradient.to(self.case.reduce).float() / self.case.ranks
            parameter.grad = part if parameter.grad is None else parameter.grad + part

    def step(self):
        if self.case.reduce is not torch.float32 and self.case.rounds_mean:
            for parameter in self.model.parameters():
                parameter.grad = parameter.grad.to(self.case.reduce).float()
        super().step()

    def clip(self, max_norm, norm_type):
        return nn.utils.clip_grad_norm_(self.model.parameters(), max_norm, norm_type).item()

    def model_state(self):
        return self.model.state_dict()

    def optimizer_state(self):
        return self.optimizer.state_dict()


@functools.cache  # All cases of a process have its groups in common.
def _mesh(ranks: int, shard_size: int):
    if shard_size == ranks:
        return init_device_mesh("cpu", (ranks,))
    return init_device_mesh("cpu", (ranks // shard_size, shard_size),
                            mesh_dim_names=("replicate", "shard"))


class Fsdp2(Trainer):
    """fully_shard of each Block and of the root. NO_SHARD: in groups of one rank."""

    def make(self, model):
        strategy = self.case.strategy
        shard_size = (1 if strategy == "NO_SHARD" else
                      GROUP_SIZE if strategy.startswith("HYBRID") else self.case.ranks)
        options = {"mesh": _mesh(self.case.ranks, shard_size),
                   "mp_policy": MixedPrecisionPolicy(self.case.param, self.case.reduce),
                   "reshard_after_forward": strategy in ("FULL_SHARD", "HYBRID_SHARD")}
        for module in list(model.modules()):
            if isinstance(module, Block):
                fully_shard(module, **options)
        fully_shard(model, **options)
        model.set_force_sum_reduction_for_comms(True)  # Gloo has no mean: sum, then divide.
        return model, self.make_optimizer(model)

    @contextlib.contextmanager
    def sync(self, sync):
        self.model.set_requires_gradient_sync(sync)
        yield

    def clip(self, max_norm, norm_type):
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), max_norm, norm_type)
        return norm.full_tensor().item()

    def model_state(self):
        return get_model_state_dict(self.model, options=_WHOLE)

    def named_optimizer_state(self):
        state = get_optimizer_state_dict(self.model, self.optimizer, options=_WHOLE)["state"]
        return {name: _copies(entry) for name, entry in state.items()}

    def _beside(self):
        """A plain module and its optimizer: torch.optim has by number what is by name here."""
        model = self.case.model()
        return model, self.make_optimizer(model)

    def optimizer_state(self):
        model, optimizer = self._beside()
        set_optimizer_state_dict(
            model, optimizer, get_optimizer_state_dict(self.model, self.optimizer, options=_WHOLE))
        return optimizer.state_dict()

    def load(self, model_state, optimizer_state):
        set_model_state_dict(self.model, model_state, options=_WHOLE)
        model, optimizer = self._beside()
        optimizer.load_state_dict(optimizer_state)
        set_optimizer_state_dict(self.model, self.optimizer,
                                 get_optimizer_state_dict(model, optimizer), options=_WHOLE)

    def save_model(self, folder):
        dcp.save(self.model.state_dict(), checkpoint_id=folder)  # Each rank's rows.

    def load_model(self, folder):
        state = self.model.state_dict()
        dcp.load(state, checkpoint_id=folder)
        self.model.load_state_dict(state)


class Tessera(Trainer):
    """tessera.shard, each Block a unit."""

    def make(self, model):
        case = self.case
        config = {"keep_low_precision_gradients":
                  case.reduce is not torch.float32 and case.rounds_mean}
        if case.sync == "last":
            config["gradient_slots"] = 0
        tessera.shard(
            model, Block, job=f"conformance-{case.ranks}-{next(JOBS)}", strategy=case.strategy,
            precision=tessera.Precision(case.param, case.reduce), config=config,
            shard_group_size=GROUP_SIZE if case.strategy.startswith("HYBRID") else 0)
        kind, options = case.optimizer
        return model, getattr(tessera, kind)(model, param_groups=_groups(model, case), **options)

    def make_scaler(self):
        return tessera.GradScaler(self.optimizer, init_scale=self.case.scale, growth_interval=2)

    def sync(self, sync):
        return contextlib.nullcontext() if sync else self.model.tessera.no_sync()

    def clip(self, max_norm, norm_type):
        return self.optimizer.clip_grad_norm_(max_norm, norm_type)

    def model_state(self):
        return self.model.state_dict()

    def optimizer_state(self):
        return self.optimizer.state_dict()

    def save_model(self, folder):
        dcp.save(self.model.state_dict(), checkpoint_id=folder)  # Whole tensors.

    def load_model(self, folder):
        tessera.load_model(self.model, folder)

    def close(self):
        self.model.tessera.detach()


_TRAINERS = {"plain": Plain, "fsdp2": Fsdp2, "tessera": Tessera}


def train(case: Case, rank: int, folder: pathlib.Path) -> dict:
    """By trainer, its results here: the plain module trains on rank 0. `folder` is every rank's."""
    steps, found = range(1, case.steps + 1), {}
    if rank == 0:
        found["plain"] = _run(Plain, case, range(case.ranks), [steps], folder)
    if case.fsdp2:
        found["fsdp2"] = _run(Fsdp2, case, [rank], [steps], folder)
    half = case.steps // 2
    if case.loads:
        steps = steps[half:]
    halves = [steps] if len(case.legs) == 1 else [steps[:half], steps[half:]]
    found["tessera"] = _run_legs(case, rank, halves, folder)
    return found


def _save(case: Case, trainer: Trainer, path: str) -> None:
    if "dcp" in case.through:
        trainer.save_dcp(path)
    else:
        tessera.save(trainer.model, path)


def _load(case: Case, trainer: Trainer, path: str) -> None:
    if "dcp" in case.through:
        trainer.load_dcp(path)
    else:
        tessera.load(trainer.model, path)


def _run(kind, case: Case, ranks, halves, folder, before=None, is_ours=False) -> dict:
    """before: the trainer that has trained until now. is_ours: it is what the case is about."""
    trainer = kind(case, ranks)
    try:
        if case.loads and is_ours:
            _load(case, trainer, str(folder / case.loads))
        moved = _move(case, before, trainer, folder) if before is not None else None
        for steps in halves:
            trainer.train(steps)
        if case.saves and is_ours:
            _save(case, trainer, str(folder / case.saves))
        return trainer.result() | ({"moved": moved} if moved else {})
    finally:
        trainer.close()


def _run_legs(case: Case, rank: int, halves, folder) -> dict:
    first = _TRAINERS[case.legs[0]]
    if len(case.legs) == 1:
        return _run(first, case, [rank], halves, folder, is_ours=True)
    # A plain module that is one of the legs trains on all data on each rank.
    everyone = range(case.ranks)
    before = first(case, everyone if first is Plain else [rank])
    try:
        before.train(halves[0])
        last = _TRAINERS[case.legs[1]]
        return _run(last, case, everyone if last is Plain else [rank], halves[1:], folder, before)
    finally:
        before.close()


def _move(case: Case, giver: Trainer, taker: Trainer, folder: pathlib.Path) -> list[dict]:
    """The taker goes on from what the giver has. Returns what both have then."""
    path = str(folder / f"{case.through} {case.name}")
    if case.through == "checkpoint" or "dcp" in case.through:
        _save(case, giver, path)
        _load(case, taker, path)
    else:
        taker.load(giver.model_state(), giver.optimizer_state())
        if case.through == "load_model":
            giver.save_model(path)
            with torch.no_grad():
                taker.load({name: torch.zeros_like(value) for name, value in
                            giver.model_state().items()}, giver.optimizer_state())
            taker.load_model(path)
    if taker.scheduler:
        taker.scheduler.load_state_dict(giver.scheduler.state_dict())
    return [giver.held(), taker.held()]
