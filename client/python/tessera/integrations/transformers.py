"""`transformers.Trainer` on a sharded model.

    from tessera.integrations.transformers import Trainer

    Trainer(model=model, args=TrainingArguments("out", ...), train_dataset=data).train()

    tessera run -n 4 train.py

The units are the classes in the model's `_no_split_modules`. For other units, a strategy or a
precision, call tessera.shard(model, ...) first. train(), evaluate(), predict() and save_model() are
collective: all ranks call them.

Trainer makes a process group of its own, which a restarted rank cannot join: the death of a rank
ends the run. Continue it by train(resume_from_checkpoint=True).
"""

from __future__ import annotations

import os

import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

from .. import checkpoint as files
from .. import optim
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
        raise TesseraError("accelerator_config: even_batches=False is not supported: a forward is "
                           "collective, and all ranks need as many batches", "UNIMPLEMENTED")
    if args.n_gpu > 1:
        raise TesseraError(f"this process has {args.n_gpu} GPUs: start a rank for each by "
                           "`tessera run` or torchrun", "UNIMPLEMENTED")


def _of_groups(kind: type, model: torch.nn.Module) -> type:
    """A class that is called as torch's optimizers are: with groups, without the model."""
    class OfGroups(kind):
        def __init__(self, groups, **numbers):
            super().__init__(model, param_groups=groups, **numbers)

    return OfGroups


def blocks_of(model: transformers.PreTrainedModel) -> list[torch.nn.Module]:
    """The modules of the classes in `_no_split_modules`: each is a unit."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


class Trainer(transformers.Trainer):
    """transformers.Trainer with the same arguments. It shards the model in place.

    optim="adamw_torch", "adamw_torch_fused" and "sgd" run in the workers. For another elementwise
    optimizer give optimizers=(tessera.LocalOptimizer(model, make), None), of a sharded model.
    A checkpoint holds what tessera.save() writes, and the weights as safetensors. Training resumes
    from one of any world size, and from one of transformers' own Trainer.

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
        """tessera's, by the arguments. Errors: UNIMPLEMENTED  tessera has no such optimizer."""
        if self.optimizer is None:
            theirs, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(
                self.args, self.model)
            options = {k: v for k, v in options.items() if k not in _IGNORED}
            ours = _OPTIMIZERS.get(theirs, theirs)
            known = {"lr", "weight_decay", "momentum", "betas", "eps"}
            if ours not in _OPTIMIZERS.values() or set(options) - known:
                name = getattr(theirs, "__name__", theirs)
                raise TesseraError(
                    f"optim='{self.args.optim.value}' ({name} with {', '.join(options)}) is not "
                    "supported: use adamw_torch or sgd, or give Trainer(optimizers=("
                    "tessera.LocalOptimizer(model, make), None))", "UNIMPLEMENTED")
            self.optimizer_cls_and_kwargs = (_of_groups(ours, self.model), options)
        return super().create_optimizer(model)

    def train(self, *args, **kwargs):
        """As transformers' train(). Errors: TesseraError ABORTED  a process of the job died."""
        try:
            return super().train(*args, **kwargs)
        except StepUndone as error:
            folder = self.args.output_dir
            last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
            raise TesseraError(
                f"{error}, and Trainer cannot repeat the step: start all ranks again"
                + (", with train(resume_from_checkpoint=True)" if last else ""),
                "ABORTED") from error

    def _get_grad_norm(self, model, grad_norm=None):
        if grad_norm is None and isinstance(inner_optimizer(self.optimizer), optim.LocalOptimizer):
            return None  # It clips by itself, and does not return the norm.
        return super()._get_grad_norm(model, grad_norm)

    def evaluation_loop(self, *args, **kwargs):
        """For evaluate() and predict(). Makes the optimizer first, since a forward attaches."""
        if not self.model.tessera.attached:
            self.create_optimizer()
        return super().evaluation_loop(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves weights, config and tokenizer for from_pretrained(). Collective.

        Errors: FAILED_PRECONDITION  another rank has ended, and does not make this call.
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
                # All ranks write the weights below, in place of these.
                self._save(folder, state_dict={})
            files.save_model(self.model, os.path.join(folder, _WEIGHTS))
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        files.save(self.model, os.path.join(output_dir, _FOLDER), random_state=False)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, _SCHEDULER))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        if not os.path.isdir(os.path.join(resume_from_checkpoint, _FOLDER)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        folder = os.path.join(checkpoint or "", _FOLDER)
        if checkpoint is None or not os.path.isdir(folder):
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        files.load(self.model, folder)
        self.lr_scheduler.load_state_dict(torch.load(
            os.path.join(checkpoint, _SCHEDULER), weights_only=True))

    def _load_best_model(self) -> None:
        files.load_model(self.model, os.path.join(self.state.best_model_checkpoint, _WEIGHTS))


class Seq2SeqTrainer(Trainer, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer with the same arguments, as Trainer above.

    With predict_with_generate each rank has whole parameters while it evaluates: what ranks generate
    is not of the same length, so that their forwards cannot be collective.
    """

    def evaluation_loop(self, *args, **kwargs):
        if not self.args.predict_with_generate or self.args.prediction_loss_only:
            return super().evaluation_loop(*args, **kwargs)
        if not self.model.tessera.attached:
            self.create_optimizer()
        with self.model.tessera.summon_full_params(writeback=False):
            return super().evaluation_loop(*args, **kwargs)
