"""A strategy for `lightning.Trainer` that shards the LightningModule.

    from tessera.integrations.lightning import TesseraStrategy

    class Lit(lightning.LightningModule):
        ...
        def configure_optimizers(self):
            return tessera.AdamW(self, lr=3e-4)

    trainer = lightning.Trainer(strategy=TesseraStrategy(units=Block), accelerator="cpu", devices=4)
    trainer.fit(Lit(), loader)

    tessera run -n 4 train.py

fit(), validate(), test(), predict() and save_checkpoint() are collective: call them on all ranks.
Lightning makes a process group of its own, which a restarted rank cannot join: the death of a rank
ends the run. Continue it by fit(ckpt_path=...).
"""

from __future__ import annotations

import contextlib
import os
import weakref

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn

from .. import _cluster
from .. import checkpoint as files
from .._library import lib
from .._sharded import shard, sharded_of
from ..errors import StepUndone, TesseraError
from ..optim import JobOptimizer, LocalOptimizer

_FOLDER, _META = "tessera", "meta.pt"  # In the folder of a checkpoint.
_STEP = "tessera_step"
_PRECISIONS = ("32-true", "64-true", "bf16-mixed")
# A job has one optimizer: a later fit() keeps it and its schedulers.
_made: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


class TesseraStrategy(DDPStrategy):
    """One process for each rank, as with DDP. The strategy shards the LightningModule.

    units, shard_options: arguments of tessera.shard(). It is called after configure_model() and
      before configure_optimizers(), unless the module is sharded already.
    configure_optimizers() returns one optimizer of tessera, made with `self`.
    gradient_clip_val clips by norm. A checkpoint is a folder. Training resumes from one of any
    world size, and from a file that another strategy saved.

    Errors: TesseraError UNIMPLEMENTED or INVALID_ARGUMENT, naming what is not supported.
    """

    strategy_name = "tessera"

    def __init__(self, units=None, *, accelerator=None, parallel_devices=None,
                 cluster_environment=None, checkpoint_io=None, precision_plugin=None,
                 process_group_backend: str | None = None, **shard_options):
        super().__init__(accelerator, parallel_devices, cluster_environment, checkpoint_io,
                         precision_plugin, process_group_backend=process_group_backend)
        self._shard_options = {"units": units, **shard_options}

    @property
    def _sharded(self):
        return sharded_of(self.lightning_module)

    # --- Setting up ---

    def _configure_launcher(self) -> None:
        if not self.cluster_environment.creates_processes_externally and self.num_processes > 1:
            raise TesseraError(
                f"Trainer(devices={self.num_processes}) in a program that was started once: start "
                f"its ranks by `tessera run -n {self.num_processes}` or torchrun",
                "FAILED_PRECONDITION")
        super()._configure_launcher()

    def setup_environment(self) -> None:
        """Calls tessera.init(), unless the program has called it."""
        super().setup_environment()
        if not _cluster.is_initialized():
            _cluster.init(rank=self.global_rank, world_size=self.world_size)

    def setup(self, trainer) -> None:
        """Shards the module. Making its optimizer attaches it."""
        precision = self.precision_plugin
        if precision.precision not in _PRECISIONS:
            raise TesseraError(
                f"precision='{precision.precision}': one of {', '.join(_PRECISIONS)}; to compute "
                "in bf16 alone, TesseraStrategy(precision=tessera.Precision(torch.bfloat16))",
                "UNIMPLEMENTED")
        precision.clip_grad_by_norm = self._clip_by_norm
        precision.clip_grad_by_value = self._clip_by_value
        self.accelerator.setup(trainer)
        module = self.lightning_module
        if self._sharded is None:
            precision.convert_module(module)
            self.model_to_device()
            if trainer.accumulate_grad_batches > 1:
                config = {"gradient_slots": 0, **(self._shard_options.get("config") or {})}
                self._shard_options["config"] = config
            shard(module, **self._shard_options)
        if trainer.state.fn == TrainerFn.FITTING or not self._sharded.attached:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def setup_optimizers(self, trainer) -> None:
        """Calls configure_optimizers() the first time, and keeps what it returned."""
        made = _made.get(self._sharded)
        if made is None:
            super().setup_optimizers(trainer)
            self._check_optimizers(trainer)
            if self._sharded.optimizer is not None:
                _made[self._sharded] = (self.optimizers, self.lr_scheduler_configs)
        else:
            self.optimizers, self.lr_scheduler_configs = made

    def _check_optimizers(self, trainer) -> None:
        for optimizer in self.optimizers:
            if not isinstance(optimizer, (JobOptimizer, LocalOptimizer)):
                if trainer.state.fn != TrainerFn.FITTING and not self._sharded.attached:
                    continue  # Lightning's stand-in, where configure_optimizers() is not there.
                kind = type(optimizer)
                raise TesseraError(
                    f"configure_optimizers() returned a {kind.__module__}.{kind.__name__}: return "
                    "tessera.AdamW(self, ...), Adam or SGD, or tessera.LocalOptimizer(self, make) "
                    "around another one of torch", "INVALID_ARGUMENT")
            if optimizer.sharded.world_size != self.world_size:
                raise TesseraError(
                    f"the job has {optimizer.sharded.world_size} ranks and Trainer has "
                    f"{self.world_size}: give Trainer(devices=N) the N of `tessera run -n N`",
                    "FAILED_PRECONDITION")
            if isinstance(optimizer, LocalOptimizer):
                optimizer.sharded.states.setdefault("optimizer", optimizer)

    def teardown(self) -> None:
        """The module stays attached, and where it is."""
        self.cluster_environment.teardown()
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()

    # --- Steps: each runs as the module's forward, so that the root's unit is open in it ---

    def _as_forward(self, context, method: str, args, kwargs):
        module = self.lightning_module
        with context():
            return self._forward_redirection(module, module, method, *args, **kwargs)

    def training_step(self, *args, **kwargs):
        return self._as_forward(self.precision_plugin.train_step_context, "training_step", args,
                                kwargs)

    def validation_step(self, *args, **kwargs):
        return self._as_forward(self.precision_plugin.val_step_context, "validation_step", args,
                                kwargs)

    def test_step(self, *args, **kwargs):
        return self._as_forward(self.precision_plugin.test_step_context, "test_step", args, kwargs)

    def predict_step(self, *args, **kwargs):
        return self._as_forward(self.precision_plugin.predict_step_context, "predict_step", args,
                                kwargs)

    def optimizer_step(self, optimizer, closure, model=None, **kwargs):
        """Repeats the closure if an executor died, unless it is the last of several batches."""
        try:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        except StepUndone as error:
            raise TesseraError("a process of the job died, and with it the gradients of the batches "
                               "before this one: start again by fit(ckpt_path=...)",
                               "ABORTED") from error

    @contextlib.contextmanager
    def block_backward_sync(self):
        """Around the backward of each batch of a step but the last."""
        if not self._sharded.keeps_local_gradients:
            yield
            return
        with self._sharded.no_sync():
            yield

    def _clip_by_norm(self, optimizer, clip_val: float) -> None:
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        if isinstance(optimizer, LocalOptimizer):
            raise TesseraError("gradient_clip_val with a LocalOptimizer: give max_grad_norm to "
                               "LocalOptimizer() instead", "UNIMPLEMENTED")
        optimizer.clip_grad_norm_(clip_val)

    def _clip_by_value(self, optimizer, clip_val: float) -> None:
        raise TesseraError("gradient_clip_algorithm='value': tessera clips by the norm alone",
                           "UNIMPLEMENTED")

    # --- Checkpoints ---

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        return True

    def lightning_module_state_dict(self) -> dict:
        return {}  # save_checkpoint() writes it, without gathering it.

    def optimizer_state(self, optimizer) -> dict:
        return {}

    def save_checkpoint(self, checkpoint: dict, filepath, storage_options=None) -> None:
        """Saves Lightning's state and, by tessera.save(), the job's in a folder. Collective."""
        if storage_options is not None:
            raise TesseraError("storage_options: a checkpoint is a folder of a local file system",
                               "UNIMPLEMENTED")
        folder = os.fspath(self.broadcast(filepath))
        if self.is_global_zero:
            if os.path.isfile(folder):
                os.remove(folder)  # Of another strategy: a checkpoint takes its place.
            os.makedirs(folder, exist_ok=True)
        self.barrier()
        meta = os.path.join(folder, _META)
        if self.is_global_zero:
            # With the step, so that it is not taken for that of another save, which ended half way.
            step = lib.next_step(self._sharded.session) - 1
            torch.save({**checkpoint, _STEP: step}, meta + ".partial")
        files.save(self.lightning_module, os.path.join(folder, _FOLDER))
        if self.is_global_zero:
            os.replace(meta + ".partial", meta)

    def load_checkpoint(self, checkpoint_path, weights_only: bool | None = None) -> dict:
        """Loads what save_checkpoint() wrote, or another strategy's file. Collective."""
        folder = os.path.join(checkpoint_path, _FOLDER)
        if not os.path.isdir(folder):
            return super().load_checkpoint(checkpoint_path, weights_only)
        fits = self.lightning_module.trainer.state.fn == TrainerFn.FITTING
        self._sharded.attach()
        loaded = files.load(self.lightning_module, folder, model_only=not fits)
        # A save that was killed before it gave the file its name.
        for name in (_META, _META + ".partial"):
            path = os.path.join(checkpoint_path, name)
            if os.path.exists(path):
                meta = torch.load(path, map_location="cpu", weights_only=bool(weights_only))
                if meta.pop(_STEP, loaded["step"]) == loaded["step"]:
                    return meta
        raise TesseraError(f"{checkpoint_path}: {_META} is not of step {loaded['step']}, which "
                           "the parameters are of: a save of it was killed", "DATA_LOSS")

    def load_model_state_dict(self, checkpoint, strict: bool = True) -> None:
        if checkpoint["state_dict"]:
            super().load_model_state_dict(checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint) -> None:
        if checkpoint["state_dict"]:
            super().load_optimizer_state_dict(checkpoint)
