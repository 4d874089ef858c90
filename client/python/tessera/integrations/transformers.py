"""`transformers.Trainer` on a sharded model.

    from tessera.integrations.transformers import Trainer

    Trainer(model=model, args=TrainingArguments("out", ...), train_dataset=data).train()

    tessera run -n 4 train.py

The units are the classes in the model's `_no_split_modules`. For other units, a strategy or a
precision, call tessera.shard(model, ...) before. All ranks make the same calls: train(), evaluate(),
predict() and save_model() are collective.

Trainer makes a process group of its own, which a restarted rank cannot join: the death of a rank
ends the run. Continue it by train(resume_from_checkpoint=True).
"""

from __future__ import annotations

import os

import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

from .. import checkpoint, optim
from .._sharded import shard, sharded_of
from ..errors import StepUndone, TesseraError
from .accelerate import Accelerator, inner_optimizer

_FOLDER = "tessera"  # In a checkpoint: what tessera.save() writes.
_WEIGHTS, _SCHEDULER = "model.safetensors", "scheduler.pt"
_OPTIMIZERS = {torch.optim.AdamW: optim.AdamW, torch.optim.Adam: optim.Adam,
               torch.optim.SGD: optim.SGD}
_IGNORED = ("fused", "foreach")  # How torch's computes, not what.
_REFUSED = {
    "fp16": "it needs a GradScaler; use bf16=True",
    "fsdp": "tessera shards the model itself; leave it out",
    "deepspeed": "tessera shards the model itself; leave it out",
    "parallelism_config": "tessera shards over all ranks; leave it out",
    "torch_compile": "compile each block by block.compile() before the Trainer is made",
    "auto_find_batch_size": "all ranks must run the same batches; set per_device_train_batch_size",
    "fp16_full_eval": "it casts the parameters, which are the job's; use bf16=True",
    "bf16_full_eval": "it casts the parameters, which are the job's; use bf16=True",
}


def _check(args: transformers.TrainingArguments) -> None:
    for name, instead in _REFUSED.items():
        if getattr(args, name, None):
            raise TesseraError(f"TrainingArguments({name}=...) is not supported: {instead}",
                               "UNIMPLEMENTED")
    if not args.accelerator_config.even_batches:
        raise TesseraError("accelerator_config: even_batches=False: a forward is collective, and all "
                           "ranks need the same number of batches", "UNIMPLEMENTED")
    if args.n_gpu > 1:
        raise TesseraError(f"this process has {args.n_gpu} GPUs: start a rank for each by "
                           "`tessera run` or torchrun", "UNIMPLEMENTED")


def blocks_of(model: transformers.PreTrainedModel) -> list[torch.nn.Module]:
    """The modules that are a unit each: those of the classes in `_no_split_modules`."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


class Trainer(transformers.Trainer):
    """transformers.Trainer, which takes the same arguments. The model is sharded in place.

    optim="adamw_torch", "adamw_torch_fused" and "sgd" run in the workers. Another elementwise one:
    optimizers=(tessera.LocalOptimizer(model, make), None), of a sharded model.
    A checkpoint has what tessera.save() writes, and the weights as safetensors. It may be of another
    world size, or of transformers' own Trainer.

    Errors: TesseraError UNIMPLEMENTED or INVALID_ARGUMENT, naming the argument.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if sharded_of(self.model) is None:
            steps = self.args.gradient_accumulation_steps
            shard(self.model, blocks_of(self.model) or None,
                  config={"gradient_slots": 0} if steps > 1 else None)

    def create_accelerator_and_postprocess(self) -> None:
        """transformers calls this first, with the arguments in self.args."""
        _check(self.args)
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = Accelerator
        self.accelerator.check_supported()

    def call_model_init(self, trial=None) -> torch.nn.Module:
        """Errors: UNIMPLEMENTED."""
        raise TesseraError("Trainer(model_init=...) is not supported: a job has one model; give it "
                           "as model=", "UNIMPLEMENTED")

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        """Of tessera, by the arguments. Errors: UNIMPLEMENTED  tessera does not have this one."""
        if self.optimizer is None:
            theirs, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(
                self.args, self.model)
            options = {k: v for k, v in options.items() if k not in _IGNORED}
            ours = _OPTIMIZERS.get(theirs, theirs)
            known = {"lr", "weight_decay", "momentum", "betas", "eps"}
            if ours not in _OPTIMIZERS.values() or set(options) - known:
                raise TesseraError(
                    f"optim='{getattr(self.args.optim, 'value', '')}' ({getattr(theirs, '__name__', theirs)} with "
                    f"{', '.join(options)}) is not supported: use adamw_torch or sgd, or give "
                    "Trainer(optimizers=(tessera.LocalOptimizer(model, make), None))",
                    "UNIMPLEMENTED")

            class Made(ours):  # Called as torch's are: with groups, and without the model.
                def __init__(made, groups, **numbers):
                    super().__init__(self.model, param_groups=groups, **numbers)

            self.optimizer_cls_and_kwargs = (Made, options)
        return super().create_optimizer(model)

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """As transformers'. Errors: TesseraError ABORTED  a process of the job died."""
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        except StepUndone as error:
            last = get_last_checkpoint(self.args.output_dir)
            raise TesseraError(
                f"{error}, and Trainer cannot repeat the step: start all ranks again"
                + (", with train(resume_from_checkpoint=True)" if last else ""),
                "ABORTED") from error

    def _get_grad_norm(self, model, grad_norm=None):
        if grad_norm is None and isinstance(inner_optimizer(self.optimizer), optim.LocalOptimizer):
            return None  # It clips by itself, and does not tell.
        return super()._get_grad_norm(model, grad_norm)

    def evaluation_loop(self, *args, **kwargs):
        """Of evaluate() and predict(). Before train() it makes the optimizer: a forward attaches."""
        if not self.model.tessera.attached:
            self.create_optimizer()
        return super().evaluation_loop(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """For from_pretrained(): weights as safetensors, config, tokenizer. Collective.

        Errors: FAILED_PRECONDITION  another rank has ended: it did not make this call.
        """
        folder = output_dir or self.args.output_dir
        try:
            self.accelerator.wait_for_everyone()
        except RuntimeError as error:
            raise TesseraError("save_model() is collective, and another rank has ended: call it on "
                               "all ranks, not under is_world_process_zero()",
                               "FAILED_PRECONDITION") from error
        if not isinstance(self.model, transformers.PreTrainedModel):
            self._save(folder, state_dict=self.model.state_dict())
        else:
            if self.args.should_save:
                # Its state_dict is replaced by what all ranks write below.
                self._save(folder, state_dict={})
            checkpoint.save_model(self.model, os.path.join(folder, _WEIGHTS))
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        checkpoint.save(self.model, os.path.join(output_dir, _FOLDER), random_state=False)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, _SCHEDULER))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        if not os.path.isdir(os.path.join(resume_from_checkpoint, _FOLDER)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        folder = os.path.join(checkpoint_folder or "", _FOLDER)
        if checkpoint_folder is None or not os.path.isdir(folder):
            super()._load_optimizer_and_scheduler(checkpoint_folder)
            return
        checkpoint.load(self.model, folder)
        self.lr_scheduler.load_state_dict(torch.load(
            os.path.join(checkpoint_folder, _SCHEDULER), weights_only=True))

    def _load_best_model(self) -> None:
        checkpoint.load_model(self.model, os.path.join(self.state.best_model_checkpoint, _WEIGHTS))
