"""Loss scaling, for gradients of little range: torch.amp.GradScaler for the job's optimizers."""

from __future__ import annotations

import ctypes as C
import struct

from . import optim
from ._library import lib
from .errors import TesseraError

_STATE = struct.Struct("=qdq")  # How many updates, the scale, steps since it changed.


class GradScaler:
    """Scales the loss, and takes the scale out of the gradient within the step.

        opt = tessera.AdamW(model)
        scaler = tessera.GradScaler(opt)
        def closure():
            loss = loss_of(model(x))
            scaler.scale(loss).backward()
            return loss
        loss = scaler.step(opt, closure)
        scaler.update()

    Where some rank's gradient overflows, all ranks skip the step, and update() lowers the scale. All
    ranks have the same scale: one that was started again after it died takes over the others'. (One
    that left in an orderly way must not come back alone.) Before opt.clip_grad_norm_() call
    scaler.unscale_(opt). For checkpoints: tessera.register_state("scaler", scaler, model).
    """

    def __init__(self, optimizer: optim.JobOptimizer, init_scale: float = 65536.0,
                 growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000, enabled: bool = True):
        if enabled and not isinstance(optimizer, optim.JobOptimizer):
            raise TesseraError("GradScaler: takes the scale out of the gradient of tessera.SGD, Adam "
                               f"and AdamW, and {type(optimizer).__name__} is none of them",
                               "UNIMPLEMENTED")
        if not (init_scale > 0 and growth_factor >= 1 and 0 < backoff_factor <= 1
                and growth_interval >= 1):
            raise TesseraError("GradScaler: init_scale must be above 0, growth_factor at least 1, "
                               "backoff_factor above 0 and at most 1, growth_interval at least 1",
                               "INVALID_ARGUMENT")
        self._optimizer, self._enabled = optimizer, enabled
        self._growth, self._backoff, self._interval = growth_factor, backoff_factor, growth_interval
        self._updates, self._scale, self._since_change = 0, float(init_scale), 0
        self._agreed = 0  # In which epoch.
        self._skipped: bool | None = None  # Whether the last step was; None: no step since update().

    def scale(self, outputs):
        """The loss, or several, times the scale. Collective after a process of the job died."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(output) for output in outputs)
        self._agree()
        self._optimizer._is_scaled = True
        return outputs * self._scale

    def unscale_(self, optimizer) -> None:
        """Has opt.clip_grad_norm_ measure the gradient without the scale."""
        if self._enabled:
            self._check(optimizer)._unscale(self._scale)

    def step(self, optimizer, closure=None, **options):
        """opt.step(closure, **options), which divides by the scale and skips overflows.

        Errors: as optimizer.step.
        """
        if not self._enabled:
            return optimizer.step(closure, **options)
        opt = self._check(optimizer)
        before = opt.last

        def scaled():
            opt._forget_scale()  # Of a try that was undone.
            loss = closure()
            opt._unscale(self._scale)
            return loss

        try:
            if closure is None:
                opt._unscale(self._scale)
            result = opt.step(scaled if closure is not None else None, skip_non_finite=True,
                              **options)
        finally:
            opt._forget_scale()
        if opt.last is not before:
            self._skipped = bool(opt.last.skipped)
        return result

    def update(self, new_scale: float | None = None) -> None:
        """After each step: lowers the scale if the step was skipped, and raises it now and then."""
        if not self._enabled:
            return
        skipped, self._skipped = self._skipped, None
        self._updates += 1
        if new_scale is not None:
            self._scale, self._since_change = float(new_scale), 0
        elif skipped:
            self._scale, self._since_change = self._scale * self._backoff, 0
        elif skipped is False:
            self._since_change += 1
            if self._since_change == self._interval:
                self._scale, self._since_change = self._scale * self._growth, 0

    def get_scale(self) -> float:
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict:
        return {"scale": self._scale, "_growth_tracker": self._since_change,
                "growth_factor": self._growth, "backoff_factor": self._backoff,
                "growth_interval": self._interval} if self._enabled else {}

    def load_state_dict(self, state_dict: dict) -> None:
        """What state_dict() of this class, or of torch's, returned."""
        if not self._enabled or not state_dict:
            return
        self._scale = float(state_dict["scale"])
        self._since_change = int(state_dict["_growth_tracker"])
        self._growth = state_dict["growth_factor"]
        self._backoff = state_dict["backoff_factor"]
        self._interval = state_dict["growth_interval"]

    def _check(self, optimizer) -> optim.JobOptimizer:
        if optimizer is not self._optimizer:
            raise TesseraError("GradScaler: this is not the optimizer that it was made for",
                               "INVALID_ARGUMENT")
        return self._optimizer

    def _agree(self) -> None:
        """In each epoch once: the state of the rank with the most updates, on all ranks."""
        sharded = self._optimizer.sharded
        epoch = lib.epoch(sharded.session)
        if self._agreed == epoch:
            return
        own = _STATE.pack(self._updates, self._scale, self._since_change)
        gathered = C.create_string_buffer(len(own) * sharded.world_size)
        lib.all_gather(sharded.session, own, len(own), gathered)
        newest = max(_STATE.iter_unpack(gathered.raw), key=lambda state: state[0])
        self._updates, self._scale, self._since_change = newest
        self._agreed = epoch
