"""Optimizers: the job's own, whose state is in the workers' shards, and any of torch's, locally."""

from __future__ import annotations

import ctypes as C
import functools
import json

import torch

from . import _sharded, _tensors, _torch_private as private
from ._library import FILL, READ, Callbacks, Part, StepResult, lib
from ._restart import program
from .errors import StepUndone, TesseraError


# Stands for a max_norm of 0, which a job has no scale for: times this, fp32's gradients are 0, and
# fp64's too small to change a parameter.
_NO_NORM = 1e-100


class _StateOfJob(dict):
    """`optimizer.state`: empty, since the workers have it. It is true nevertheless: where it is
    not, get_optimizer_state_dict() of torch.distributed.checkpoint takes a step to fill it.

    state[parameter] has the keys of what state_dict() has, without values: flattened states are
    split by these.
    """

    def __init__(self, keys_of):
        super().__init__()
        self._keys_of = keys_of

    def __bool__(self) -> bool:
        return True

    def __missing__(self, parameter):
        return dict.fromkeys(self._keys_of(parameter))

    def clear(self):
        raise TesseraError("optimizer.state is the job's, and cannot be cleared here: "
                           "opt.load_state_dict({**opt.state_dict(), 'state': {}}) does that, on all "
                           "ranks", "UNIMPLEMENTED")


class JobOptimizer(torch.optim.Optimizer):
    """An optimizer that the job's workers run on their shards. torch's LR schedulers work on it.

    Each step takes lr, betas, eps, weight_decay and momentum from param_groups as they are then.
    """

    kind = ""
    moments: tuple[str, ...] = ()
    like: type[torch.optim.Optimizer]  # torch's of this kind.
    # Fields of a param group. Where one is set, the job has no formula.
    flags: tuple[str, ...] = ("dampening", "nesterov", "maximize", "amsgrad")

    def __init__(self, model, param_groups, max_grad_norm: float, **numbers):
        self.sharded = _sharded.of(model)
        if self.sharded.optimizer is not None:
            raise TesseraError("the model has an optimizer already: a job has one",
                               "FAILED_PRECONDITION")
        if self.sharded.attached:
            raise TesseraError("make the optimizer before the first forward: the model is attached "
                               "with the default one", "FAILED_PRECONDITION")
        self.sharded.take_over_replaced()
        groups = self._param_groups(param_groups)
        # With all fields of torch's: states are exchanged, and schedulers look for fields.
        super().__init__(groups, self.like([torch.empty(0)], **numbers).defaults)
        for group in self.param_groups:
            self._check_formula(group)
        self.state = _StateOfJob(self._keys_of)
        self.sharded.attach(self._job_groups(), self.kind, max_grad_norm)
        self.sharded.optimizer = self
        if self.sharded.continues_job:
            private.note_steps_before(self)

    def _param_groups(self, given):
        sharded = {id(p) for unit in self.sharded.units for p in unit.parameters}
        # In torch's order: its optimizers' states are by numbers in it.
        everything = [p for p in self.sharded.root.parameters() if id(p) in sharded]
        if given is None:
            return [{"params": everything}]
        known = {id(p) for p in everything}
        groups = []
        for group in given:
            if not isinstance(group, dict):
                raise TesseraError("param_groups: a list of dicts, each with 'params'",
                                   "INVALID_ARGUMENT")
            # As torch, it takes named_parameters() too.
            group = {**group, "params": [p[1] if isinstance(p, tuple) else p
                                         for p in group["params"]]}
            for parameter in group["params"]:
                if id(parameter) not in known:
                    raise TesseraError("param_groups: a tensor that is not a parameter of the "
                                       "sharded model", "INVALID_ARGUMENT")
            groups.append(group)
        grouped = {id(p) for group in groups for p in group["params"]}
        for unit in self.sharded.units:
            for name, parameter in zip(unit.names, unit.parameters):
                if parameter.requires_grad and id(parameter) not in grouped:
                    raise TesseraError(f"param_groups: parameter '{name}' is in none; freeze it by "
                                       "requires_grad_(False) before shard()", "INVALID_ARGUMENT")
        return groups

    def _check_formula(self, group) -> None:
        for flag in self.flags:
            if group.get(flag):
                raise TesseraError(
                    f"tessera.{self.like.__name__} has no formula for {flag}={group[flag]}, which "
                    "is in param_groups, or in those of the state that is loaded", "UNIMPLEMENTED")

    def _numbers(self, group) -> tuple[float, ...]:
        beta1, beta2 = group.get("betas", (0.9, 0.999))
        return (float(group["lr"]), float(beta1), float(beta2), float(group.get("eps", 1e-8)),
                float(group["weight_decay"]), float(group.get("momentum", 0.0)))

    def _job_groups(self) -> list[dict]:
        names = {id(p): name for unit in self.sharded.units
                 for name, p in zip(unit.names, unit.parameters)}
        fields = ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "momentum")
        made = []
        for index, group in enumerate(self.param_groups):
            # The first one has all that are in no other.
            listed = [names[id(p)] for p in group["params"]] if index else []
            made.append({"parameter_names": listed, **dict(zip(fields, self._numbers(group)))})
        return made

    def step(self, closure=None, *, weight: float | None = None, skip_non_finite: bool = False):
        """Takes a step on all ranks, or on none.

        closure: forward and backward; it is run again, with the same random numbers, if a process
          of the job dies. Returns what it returned.
        weight: the gradient is the sum over the ranks divided by the sum of their weights (a
          rank's number of tokens, say) instead of their mean. On all ranks or on none.
        skip_non_finite: a NaN or Inf in a gradient skips the step instead of being an error.
        Errors: StepUndone, without a closure: do forward, backward and step again;
          TesseraError FAILED_PRECONDITION  NaN or Inf in some rank's gradient, which are dropped.
        """
        step = self._step_in_range if private.watches_step(self) else self._step
        return step(closure, weight=weight, skip_non_finite=skip_non_finite)

    step.hooked = True  # torch's wrapper, which `_step_in_range` has, takes as long as the step.

    def _step(self, closure, *, weight, skip_non_finite):
        def take():
            self._check_schedule()
            groups = [self._numbers(group) for group in self.param_groups]
            self.last = self.sharded.take_step(_sharded.Sharded.step_options(
                groups, divisor=self._divisor, weight=weight, skip_non_finite=skip_non_finite))

        if closure is None:
            take()
            return None

        losses = []  # The step may be decided although its result is lost.

        def body():
            losses.append(closure())
            take()

        self.sharded.run_step(body)
        return losses[-1] if losses else None

    _step_in_range = torch.optim.Optimizer.profile_hook_step(_step)

    def _check_schedule(self) -> None:
        """At the first step of a program that continues a job: whether its LR scheduler does, too."""
        if not self.sharded.continues_job:
            return
        self.sharded.check_step()
        self.sharded.warn_of_states()
        rates = self.sharded.last_learning_rates()
        mine = [float(group["lr"]) for group in self.param_groups]
        own = [] if rates == mine else private.schedulers_of(self)
        if own and all(isinstance(found, torch.optim.lr_scheduler.ReduceLROnPlateau) for found in own):
            # They change the rate that there is.
            for group, rate in zip(self.param_groups, rates):
                group["lr"] = rate
        elif own and not any(getattr(found, "last_epoch", 0) > 0 for found in own):
            raise TesseraError(
                f"the job continues at step {lib.next_step(self.sharded.session)}, and "
                f"{type(own[0]).__name__} at its beginning: learning rates {mine}, and the step "
                f"before had {rates}. Bring it to where it was, before the loop; if it is stepped "
                "after each step: for _ in range(model.tessera.next_step - 1): scheduler.step(). If a "
                "new schedule is to begin here: model.tessera.continues_job = False",
                "FAILED_PRECONDITION")
        self.sharded.continues_job = False

    last: StepResult | None = None
    # A GradScaler's: the gradient is scaled; by what the step divides it; what is not is an error.
    _is_scaled, _divisor = False, 1.0

    def _unscale(self, scale: float) -> None:
        self._is_scaled, self._divisor = True, scale

    def _forget_scale(self) -> None:
        self._is_scaled, self._divisor = False, 1.0

    @property
    def last_grad_norm(self) -> float:
        """Of the last step, over all ranks, before clipping by max_grad_norm. After clip_grad_norm_(),
        which returns the norm before, it is what that has left."""
        return self.last.gradient_norm if self.last else 0.0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.sharded.zero_grad(set_to_none)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Clips the step's gradient on all ranks, and returns its norm before. Collective."""
        if self._is_scaled and self._divisor == 1.0:
            raise TesseraError("clip_grad_norm_ of a scaled gradient: call scaler.unscale_(opt) "
                               "before it", "FAILED_PRECONDITION")
        max_norm = float(max_norm) or _NO_NORM
        norm = C.c_double()
        options = _sharded.Sharded.step_options(
            [self._numbers(g) for g in self.param_groups], divisor=self._divisor,
            skip_non_finite=self._is_scaled)
        lib.clip_grad_norm(self.sharded.session, max_norm, float(norm_type),
                           C.byref(options), C.byref(norm))
        return norm.value

    # --- State: as torch's own optimizer of this kind has it ---

    def state_dict(self) -> dict:
        """torch's form, whole tensors. Collective.

        Before the first update it has zeros: dcp.load() reads into what is there.
        """
        packed = super().state_dict()
        progress = json.loads(lib.text(lib.progress_json, self.sharded.session))
        place = {id(p): number for number, (group, p) in enumerate(
            (group, p) for group in self.param_groups for p in group["params"])
                 if self._has_moments(group)}
        counts = progress["update_counts"]
        is_new = not any(count for of_unit in counts for count in of_unit)
        state: dict[int, dict] = {}
        for unit in self.sharded.units:
            arrays = [{} for _ in self.moments]
            for array, found in enumerate(arrays):
                self.sharded._read(lib.read_moments, (unit.index, array), unit, found)
            for index, (name, parameter) in enumerate(zip(unit.names, unit.parameters)):
                count = counts[unit.index][index]
                is_there = count or is_new and parameter.requires_grad
                if not is_there or id(parameter) not in place:
                    continue
                entry = {key: arrays[i][name] for i, key in enumerate(self.moments)}
                if self._has_step:
                    entry["step"] = torch.tensor(float(count))
                state[place[id(parameter)]] = entry
        packed["state"] = dict(sorted(state.items()))
        return packed

    @property
    def _has_step(self) -> bool:
        return self.kind != "OPTIMIZER_KIND_SGD"

    def _has_moments(self, group) -> bool:
        return self.kind != "OPTIMIZER_KIND_SGD" or group["momentum"] != 0

    def _keys_of(self, parameter) -> tuple[str, ...]:
        for group in self.param_groups:
            if any(p is parameter for p in group["params"]) and self._has_moments(group):
                return (*self.moments, "step") if self._has_step else self.moments
        return ()

    def load_state_dict(self, state_dict: dict) -> None:
        """What state_dict() of this class, or of torch's of this kind, returned. Collective.

        The next step is the one after the state's last; SGD's state does not tell which that was,
        and counts as one step.
        Errors: UNIMPLEMENTED  of an optimizer with nesterov, amsgrad or the like; INVALID_ARGUMENT
          it is of other parameters, or has DTensors.
        """
        if len(state_dict["param_groups"]) != len(self.param_groups):
            raise TesseraError(f"{len(state_dict['param_groups'])} param groups for "
                               f"{len(self.param_groups)}", "INVALID_ARGUMENT")
        for mine, given in zip(self.param_groups, state_dict["param_groups"]):
            if len(mine["params"]) != len(given["params"]):
                raise TesseraError("a param group of another size", "INVALID_ARGUMENT")
            self._check_formula(given)
        program.continues, self.sharded.continues_job = True, False
        self.sharded.make_requested_save()  # Which has the present ones.
        for mine, given in zip(self.param_groups, state_dict["param_groups"]):
            # Adam or AdamW: that is the class's.
            mine.update({key: value for key, value in given.items()
                         if key not in ("params", "decoupled_weight_decay")})
        by_id = {}
        for mine, given in zip(self.param_groups, state_dict["param_groups"]):
            for parameter, number in zip(mine["params"], given["params"]):
                by_id[id(parameter)] = state_dict["state"].get(number, {})
        self._check_shapes(by_id)
        units = self.sharded.units
        counts = [[int(by_id.get(id(p), {}).get("step", 1 if by_id.get(id(p)) else 0))
                   for p in unit.parameters] for unit in units]
        callbacks = Callbacks()

        def fill(_, numbered, parameter, values, elements):
            del elements
            array, unit = divmod(numbered, len(units))
            of = units[unit].parameters[parameter]
            saved = by_id.get(id(of), {}).get(self.moments[array])
            if saved is None:
                return
            target = _tensors.at(values, of.shape, self.sharded._full_dtype(unit))
            target.copy_(saved)

        progress = json.dumps({
            "step": max([count for of_unit in counts for count in of_unit], default=0),
            "update_counts": counts})
        with torch.no_grad():
            callbacks.run(lambda: lib.write_optimizer_state(
                self.sharded.session, progress.encode(), FILL(callbacks.wrap(fill)), None))


    def _check_shapes(self, by_id: dict[int, dict]) -> None:
        for unit in self.sharded.units:
            for name, parameter in zip(unit.names, unit.parameters):
                for moment in self.moments:
                    saved = by_id.get(id(parameter), {}).get(moment)
                    if hasattr(saved, "full_tensor"):
                        raise TesseraError(
                            f"{moment} of parameter '{name}' is a DTensor: get the state with "
                            "StateDictOptions(full_state_dict=True), or go through a folder, by "
                            "dcp.save and dcp.load", "INVALID_ARGUMENT")
                    if saved is not None and saved.shape != parameter.shape:
                        raise TesseraError(
                            f"{moment} of parameter '{name}' has shape {tuple(saved.shape)} instead "
                            f"of {tuple(parameter.shape)}: the state is of other parameters, or in "
                            "another order", "INVALID_ARGUMENT")


class SGD(JobOptimizer):
    kind, moments = "OPTIMIZER_KIND_SGD", ("momentum_buffer",)
    like = torch.optim.SGD

    def __init__(self, model, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0,
                 *, param_groups=None, max_grad_norm: float = 0.0):
        super().__init__(model, param_groups, max_grad_norm, lr=lr, momentum=momentum,
                         weight_decay=weight_decay)


class Adam(JobOptimizer):
    kind, moments = "OPTIMIZER_KIND_ADAM", ("exp_avg", "exp_avg_sq")
    like = torch.optim.Adam
    flags = (*JobOptimizer.flags, "decoupled_weight_decay")

    def __init__(self, model, lr: float = 1e-3, betas=(0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, *, param_groups=None, max_grad_norm: float = 0.0):
        super().__init__(model, param_groups, max_grad_norm, lr=lr, betas=betas, eps=eps,
                         weight_decay=weight_decay)


class AdamW(JobOptimizer):
    kind, moments = "OPTIMIZER_KIND_ADAMW", ("exp_avg", "exp_avg_sq")
    like = torch.optim.AdamW

    def __init__(self, model, lr: float = 1e-3, betas=(0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, *, param_groups=None, max_grad_norm: float = 0.0):
        super().__init__(model, param_groups, max_grad_norm, lr=lr, betas=betas, eps=eps,
                         weight_decay=weight_decay)


# Of torch and others, in lower case: of these a rank's slices would be trained to other values.
_NOT_ELEMENTWISE = frozenset(
    ["adafactor", "lamb", "lars", "lbfgs", "muon", "shampoo", "soap", "distributedshampoo"])


class LocalOptimizer(torch.optim.Optimizer):
    """Any elementwise optimizer of torch on this rank's own slices of the parameters.

        opt = tessera.LocalOptimizer(model, lambda shards: torch.optim.RMSprop(shards, lr=1e-3))

    `make` gets flat tensors, one for each parameter of which this rank has a part. What the
    optimizer remembers is this process's: it is not in the job's checkpoints.
    Errors: UNIMPLEMENTED  one that is known not to be elementwise (Adafactor, LBFGS, Muon, ...).
    """

    def __init__(self, model, make, *, max_grad_norm: float = 0.0):
        self.sharded = _sharded.of(model)
        self.sharded.attach(max_grad_norm=max_grad_norm)
        shards = C.c_void_p()
        lib.shards_open(self.sharded.session, C.byref(shards))
        self._shards = shards
        self._parts = []
        for index in range(lib.shards_size(shards)):
            part = Part()
            lib.shards_part(shards, index, C.byref(part))
            if part.numel == 0:
                continue
            dtype = self.sharded._full_dtype(part.unit)
            local = torch.nn.Parameter(_tensors.at(part.values, (part.numel,), dtype))
            gradient = _tensors.at(part.gradient, (part.numel,), dtype)
            self._parts.append((index, local, gradient))
        self.inner = make([local for _, local, _ in self._parts])
        self._check_elementwise()
        self.sharded.optimizer = self

    def _check_elementwise(self) -> None:
        known = _NOT_ELEMENTWISE.intersection(c.__name__.lower() for c in type(self.inner).__mro__)
        if known:
            raise TesseraError(
                f"LocalOptimizer with {type(self.inner).__name__}: what it does to an element depends on "
                "the rest of the parameter, and a rank has a slice of it: use an elementwise optimizer,"
                " as torch.optim.RMSprop or tessera.AdamW", "UNIMPLEMENTED")

    @property
    def param_groups(self):
        return self.inner.param_groups

    @property
    def defaults(self):
        return self.inner.defaults

    @property
    def state(self):
        return self.inner.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.sharded.zero_grad(set_to_none)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state_dict) -> None:
        self.inner.load_state_dict(state_dict)

    def _take(self) -> None:
        windows = self.sharded.windows
        self.sharded.check_step()
        windows.begin_step()
        windows.check_given()
        windows.await_gpu()
        options, result = _sharded.Sharded.step_options([]), StepResult()
        try:
            lib.shards_begin(self._shards, C.byref(options), C.byref(result))
            for index, local, gradient in self._parts:
                has = lib.shards_has_gradient(self._shards, index)
                local.grad = gradient if has else None
            self.inner.step()
            lib.shards_commit(self._shards)
            program.took_step = True
            self.sharded.note_requested_save()
        except StepUndone:
            self.sharded._undone = True
            raise
        finally:
            windows.forget_gradients()

    def step(self, closure=None):
        if closure is None:
            self._take()
            return None
        before = _copy_state(self.inner.state_dict())
        losses = []

        def body():
            if losses:
                self.inner.load_state_dict(_copy_state(before))
            losses.append(None)
            losses[-1] = closure()
            self._take()

        self.sharded.run_step(body)
        return losses[-1] if losses else None


def _copy_state(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copy_state(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy_state(item) for item in value]
    return value


def repeatable(model):
    """Decorates a function that does one step (forward, backward, opt.step()).

    Where a process of the job dies it is run again, with the same random numbers.
    """
    def decorate(function):
        @functools.wraps(function)
        def step(*args, **kwargs):
            sharded = _sharded.of(model)
            sharded.attach()
            return sharded.run_step(lambda: function(*args, **kwargs))
        return step
    return decorate
