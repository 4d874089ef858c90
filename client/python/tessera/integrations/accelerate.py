"""An `accelerate.Accelerator` for models of tessera.shard().

    from tessera.integrations.accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = tessera.shard(model, units=Block)
    optimizer = tessera.AdamW(model, lr=3e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state("checkpoint")

accelerate makes a process group of its own, which a restarted rank cannot join: the death of a rank
ends the run. Continue it from a checkpoint.
"""

from __future__ import annotations

import contextlib
import os

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType

from .. import checkpoint
from .._sharded import sharded_of
from ..errors import TesseraError
from ..optim import JobOptimizer, LocalOptimizer

_DISTRIBUTED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
_FOLDER = "tessera"  # In a folder of save_state(): what tessera.save() writes.


def inner_optimizer(optimizer):
    """The optimizer that accelerate has wrapped."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


class Accelerator(accelerate.Accelerator):
    """accelerate's Accelerator for sharded models and tessera's optimizers.

    Data loaders, schedulers, gather() and trackers work as before. save_state() and load_state()
    are collective. load_state() accepts checkpoints of another world size.

    Errors: TesseraError INVALID_ARGUMENT or UNIMPLEMENTED, naming what cannot be prepared.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.check_supported()

    def check_supported(self) -> None:
        """Errors: UNIMPLEMENTED  accelerate's configuration has what tessera does not support."""
        if self.distributed_type not in _DISTRIBUTED:
            raise TesseraError(
                f"accelerate is configured for {self.distributed_type}: tessera shards the model "
                "itself; turn it off (`accelerate config`, or the ACCELERATE_USE_... variables)",
                "UNIMPLEMENTED")
        if self.mixed_precision not in ("no", "bf16"):
            raise TesseraError(
                f"mixed_precision='{self.mixed_precision}': tessera supports 'no' and 'bf16'; fp16 "
                "needs a GradScaler", "UNIMPLEMENTED")
        if self.state.dynamo_plugin.backend.value != "NO":
            raise TesseraError("torch.compile of the whole model: compile each block by "
                               "block.compile() before tessera.shard()", "UNIMPLEMENTED")

    def prepare_model(self, model: torch.nn.Module, device_placement: bool | None = None,
                      evaluation_mode: bool = False) -> torch.nn.Module:
        """Sets the model's autocast, and returns the same model: neither moved nor wrapped.

        Errors: INVALID_ARGUMENT  the model is to be trained and is not sharded.
        """
        if sharded_of(model) is not None:
            device_placement, evaluation_mode = False, True
        elif not evaluation_mode and any(p.requires_grad for p in model.parameters()):
            raise TesseraError("the model is to be trained and is not sharded: call "
                               "tessera.shard(model) before prepare()", "INVALID_ARGUMENT")
        return super().prepare_model(model, device_placement, evaluation_mode)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer,
                          device_placement: bool | None = None) -> AcceleratedOptimizer:
        """Wraps an optimizer of tessera.

        Errors: INVALID_ARGUMENT  another optimizer; FAILED_PRECONDITION  accelerate has another
          number of processes than the job has ranks.
        """
        inner = inner_optimizer(optimizer)
        if not isinstance(inner, (JobOptimizer, LocalOptimizer)):
            raise TesseraError(
                f"the optimizer is {type(inner).__module__}.{type(inner).__name__}: use "
                "tessera.AdamW(model), Adam or SGD, or tessera.LocalOptimizer(model, make) around "
                "another one of torch", "INVALID_ARGUMENT")
        if inner.sharded.world_size != self.num_processes:
            raise TesseraError(
                f"the job has {inner.sharded.world_size} ranks and accelerate has "
                f"{self.num_processes} processes: start them by `tessera run -n N` or torchrun, and "
                "on CPUs give TrainingArguments(use_cpu=True) or Accelerator(cpu=True)",
                "FAILED_PRECONDITION")
        if isinstance(inner, LocalOptimizer):
            inner.sharded.states.setdefault("optimizer", inner)  # It is in checkpoints, too.
        return super().prepare_optimizer(optimizer, device_placement=False)

    @contextlib.contextmanager
    def no_sync(self, model):
        """Backwards in here add gradients up. They are reduced later if gradient_slots is 0."""
        sharded = sharded_of(model)
        if sharded is None or not sharded.attached or not sharded.keeps_local_gradients:
            yield
            return
        with sharded.no_sync():
            yield

    def clip_grad_norm_(self, parameters, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Clips the gradient of the model that has `parameters`; returns its norm before.

        Collective. Errors: INVALID_ARGUMENT  they are not all parameters of a prepared optimizer's
        model; UNIMPLEMENTED  a LocalOptimizer, which clips by its own max_grad_norm.
        """
        given = {id(p) for p in parameters}
        for prepared in self._optimizers:
            optimizer = inner_optimizer(prepared)
            if given != {id(p) for p in optimizer.sharded.root.parameters()}:
                continue
            if isinstance(optimizer, LocalOptimizer):
                raise TesseraError("clip_grad_norm_ with a LocalOptimizer: give max_grad_norm to "
                                   "LocalOptimizer() instead (and Trainer: max_grad_norm=0)",
                                   "UNIMPLEMENTED")
            return torch.tensor(optimizer.clip_grad_norm_(max_norm, norm_type))
        raise TesseraError("clip_grad_norm_ takes all parameters of a model whose optimizer is "
                           "prepared: model.parameters()", "INVALID_ARGUMENT")

    def clip_grad_value_(self, parameters, clip_value) -> None:
        """Errors: UNIMPLEMENTED."""
        raise TesseraError("clip_grad_value_: tessera clips by the norm alone, clip_grad_norm_()",
                           "UNIMPLEMENTED")

    @contextlib.contextmanager
    def _without_sharded(self):
        models, optimizers = self._models, self._optimizers
        self._models = [m for m in models if sharded_of(m) is None]
        self._optimizers = []
        try:
            yield [m for m in models if sharded_of(m) is not None]
        finally:
            self._models, self._optimizers = models, optimizers

    def save_state(self, output_dir: str | None = None, safe_serialization: bool = True,
                   **kwargs) -> str:
        """Saves as accelerate does, but models and optimizers by tessera.save(). Collective."""
        with self._without_sharded() as models:
            folder = super().save_state(output_dir, safe_serialization, **kwargs)
            for number, model in enumerate(models):
                checkpoint.save(model, os.path.join(folder, f"{_FOLDER}_{number}"))
        return folder

    def load_state(self, input_dir: str | None = None, load_kwargs: dict | None = None,
                   **kwargs) -> None:
        """Loads what save_state() wrote, in any world size. Collective."""
        folders = []
        # The folder may be one that accelerate has named.
        handle = self.register_load_state_pre_hook(lambda _, folder: folders.append(folder))
        try:
            with self._without_sharded() as models:
                super().load_state(input_dir, load_kwargs, **kwargs)
        finally:
            handle.remove()
        for number, model in enumerate(models):
            checkpoint.load(model, os.path.join(folders[0], f"{_FOLDER}_{number}"))
