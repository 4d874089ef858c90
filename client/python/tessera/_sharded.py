"""`model.tessera`: what shard() makes of a module, and its attachment to a job."""

from __future__ import annotations

import atexit
import contextlib
import ctypes as C
import json
import os
import struct
import warnings
import weakref
import zlib

import torch

from . import _buffers, _cluster, _own_state, _plan, _random, _tensors, _torch_private as private
from ._library import (FILL, BODY, READ, Callbacks, HyperParameters, OpenOptions, StepOptions,
                       StepResult, lib)
from ._others import OtherModels
from ._restart import exit_for_restart, program
from ._windows import Windows
from .errors import ABORTED, OutsideWindowError, StepUndone, TesseraError

_attached: "set[Sharded]" = set()
_models: "weakref.WeakSet[Sharded]" = weakref.WeakSet()  # That have not left their jobs.
_CHECKSUM = struct.Struct("<?I")  # Whether a parameter has values, and their sum.
_names: set[tuple] = set()  # Coordinators and jobs that models of this process were attached to.


@atexit.register
def _detach_all() -> None:
    # The library sees the process's exit status, which is not known here. The worker of a cluster of
    # this process ends before that.
    close = lib.close if _cluster.is_own() else lib.close_at_exit
    for sharded in list(_attached):
        sharded.detach_by(close)


def _leave_to_parent() -> None:
    """In a forked child, where sessions refuse all use."""
    _cluster.leave_to_parent()
    _attached.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def _note_restart(session) -> None:
    if lib.restart_required(session):
        program.is_elsewhere = True


def _note_restarts() -> None:
    for sharded in list(_attached):
        if sharded.attached:
            _note_restart(sharded.session)


class Sharded:
    """A module's parameters as a job's: shards live in the workers, windows open by hooks.

    The job is attached by the first of: an optimizer of this package, a forward, attach().
    One thread trains.
    """

    def __init__(self, root, units, chosen, config, precision, job, meta_init, ignored_modules,
                 executor_in_process):
        self.root, self.units, self.precision = root, units, precision
        self._chosen = chosen  # All modules that were to be units.
        self._config, self._job, self._meta_init = dict(config), job, meta_init
        self._ignored, self._executor_in_process = ignored_modules, executor_in_process
        self._buffers = _plan.persistent_buffers(root)
        self.session = None
        self.windows = Windows(
            units, root, self.attach, self._before_model_forward,
            precision.param if precision.cast_forward_inputs and
            precision.param is not torch.float32 else None,
            precision.reduce or precision.param)
        self.optimizer = None
        self.states: dict[str, object] = {}
        self.unclaimed: dict[str, dict] = {}  # Of a checkpoint: what was not registered when it came.
        self.unclaimed_is_own = True  # Whether this rank saved them; else rank 0 did.
        self.saves_in_background = False  # Since the last await_save().
        self._requested: dict | None = None  # What a requested checkpoint has of this rank so far.
        # At another step than the first, for the first time in this process, and nothing was loaded.
        # Set it to False where a new schedule of learning rates is to begin.
        self.continues_job = False
        self._undone = False
        self._runs_step = False
        self._has_dropped = False  # Gradients, by zero_grad(), in the closure that runs.
        self._others = OtherModels(self, _attached)
        self._is_detached = False
        _models.add(self)
        self._keeper = None
        self._context = None
        # A function, since torch sets an attribute on it.
        private.register_state_dict_hook(root, lambda *args: self._fill_state_dict(*args))
        self._load_state_dict = root.load_state_dict
        root.load_state_dict = self.load_state_dict
        root.zero_grad = self.zero_grad
        root.__deepcopy__, root.__reduce_ex__ = self._refuse_copy, self._refuse_pickle
        private.replace_apply(root, self._apply)
        for unit in units:
            if unit.module is not root:
                unit.module.zero_grad = self._zero_grad_of(unit)

    # --- Attaching ---

    @property
    def attached(self) -> bool:
        return self.session is not None

    def attach(self, groups=None, kind="OPTIMIZER_KIND_ADAMW", max_grad_norm=0.0) -> None:
        """Opens the job, gives it its first values if it has none. Does nothing if attached."""
        if self.attached:
            return
        exit_for_restart(_note_restarts)
        self.take_over_replaced()
        self._context = _cluster.context(self._gpu_of_model())
        self._check_name()
        config = dict(self._config)
        config["world_size"] = self._context.world_size
        config = {**self._context.collective_timeout(of_one_model=len(_models) == 1), **config}
        config.setdefault("optimizer", {"kind": kind, "groups": groups or [{}]})
        config.setdefault("max_gradient_norm", max_grad_norm)
        options = OpenOptions(
            rank=self._context.rank, wait_if_attached=1, job_id=self.job_id().encode(),
            model_json=_plan.model_json(self.units, self._buffers).encode(),
            config_json=json.dumps(config).encode(),
            executor_in_process=self._executor_in_process, **self._context.addresses())
        self.session = session = self._open(options)
        try:
            self._check_device(lib.gpu(session))
            self._keeper = _buffers.Keeper(session, self._buffers)
            lib.install_fault_handler()
            lib.defer_requested_saves(session)
            if not lib.initialized(session):
                self._initialize()
            else:
                # The job has the values. Modules may set buffers as well, which it need not have.
                with torch.no_grad():
                    for unit in self.units:
                        self._materialise(unit)
                self._keeper.resume()
            self._use_memory()
            self.windows.bind(session)
            self.continues_job = (lib.next_step(session) > 1 and
                                  (self._context.coordinator, self.job_id()) not in _names)
        except BaseException:
            self.session = None
            _note_restart(session)
            lib.close(session)
            raise
        _attached.add(self)
        _names.add((self._context.coordinator, self.job_id()))

    @staticmethod
    def _open(options: OpenOptions) -> C.c_void_p:
        session = C.c_void_p()
        try:
            lib.open(C.byref(options), C.byref(session))
        except TesseraError as error:
            if error.code != "DEADLINE_EXCEEDED" or not _attached:
                raise
            raise TesseraError(
                f"{error}; this program's models have {len(_attached)} jobs: call "
                "model.tessera.detach() for those that are done", error.code) from None
        return session

    def take_over_replaced(self) -> None:
        """Before the model is attached: what replaced parameters and buffers after shard()."""
        _plan.take_over_replaced(self.root, self.units, self._chosen, self._ignored)
        self._buffers = _plan.persistent_buffers(self.root)

    def _gpu_of_model(self) -> int | None:
        devices = {p.device for unit in self.units for p in unit.parameters}
        if len(devices - {torch.device("meta")}) > 1:
            raise TesseraError(f"parameters are on {', '.join(sorted(map(str, devices)))}: move the "
                               "model to one device", "INVALID_ARGUMENT")
        return next((d.index for d in devices if d.type == "cuda"), None)

    def _check_device(self, gpu: int) -> None:
        """Errors: FAILED_PRECONDITION  the model is on a GPU, and the rank is not on that one."""
        wanted = self._gpu_of_model()
        if wanted is None or wanted == gpu:
            return
        where = "in host memory" if gpu < 0 else f"on cuda:{gpu}"
        raise TesseraError(
            f"the model is on cuda:{wanted}, and rank {lib.rank(self.session)} of job "
            f"'{self.job_id()}' is {where}: start its worker with --gpu {wanted}, or move the "
            "model first", "FAILED_PRECONDITION")

    def _check_name(self) -> None:
        """Errors: ALREADY_EXISTS  another model of this process has the job; or it had the launcher's,
        whose values this one would take over."""
        job = (self._context.coordinator, self.job_id())
        others = [(other._context.coordinator, other.job_id()) for other in list(_attached)]
        if job in others or (self._job is None and job in _names):
            raise TesseraError(
                f"job '{self.job_id()}' is that of another model of this process: give this one a "
                f"job of its own, shard(model, job='NAME'), or go on with that job's values, "
                f"shard(model, job='{self.job_id()}'), after detach() of the other",
                "ALREADY_EXISTS")

    def job_id(self) -> str:
        return self._job or self._context.job

    def detach(self) -> None:
        """Leaves the job. Parameters are empty afterwards. Not within run_step() or a closure.

        The job is COMPLETED once all ranks have left, by this or by the end of their programs. A
        program that ends by an exception, or with an exit status other than 0, or after a step that
        failed, does not complete it: it waits for trainers.
        """
        if self.attached:
            self.check_whole("detach()")
        self.detach_by(lib.close)

    def detach_by(self, close) -> None:
        """close: of the library."""
        if not self.attached:
            return
        if self._runs_step:
            raise TesseraError("detach() within a step: let the closure end first",
                               "FAILED_PRECONDITION")
        if self.make_requested_save():
            # The workers may end with this process.
            self._await_save()
        if self._executor_in_process and self.saves_in_background:
            # It would end with this process's executor.
            self._await_save()
        self.windows.await_gpu()
        session, self.session = self.session, None
        _attached.discard(self)
        _note_restart(session)
        self._is_detached = True
        _models.discard(self)
        self.windows.close()
        with torch.no_grad():
            for unit in self.units:
                for parameter in unit.parameters:
                    parameter.data = torch.empty(0, dtype=parameter.dtype)
                    parameter.grad = None
        for module in {id(m): m for m in (self.root, *(u.module for u in self.units))}.values():
            module.register_forward_pre_hook(self._refuse_forward, prepend=True)
        close(session)
        self._context.leave()

    def _await_save(self) -> None:
        try:
            lib.await_save(self.session)
        except TesseraError as error:
            warnings.warn(f"a save in the background failed: {error}", stacklevel=3)

    def note_requested_save(self) -> None:
        """After a step. A checkpoint that another process requests is made where the loop is done
        with the step, so that it continues as one that the loop itself makes there."""
        self._requested = None
        if not lib.requested_save(self.session):
            return
        try:
            self._requested = _own_state.of_step(self)
        except Exception as error:  # pylint: disable=broad-except
            self._requested = {"refusal": error}

    def make_requested_save(self) -> bool:
        """Before what changes the state or begins a step. Whether one was made. Collective."""
        own, self._requested = self._requested, None
        if own is None or not lib.requested_save(self.session):
            return False
        encoded, refusal = b"", own.get("refusal")
        try:
            if refusal is None:
                _own_state.add_of_loop(self, own)
                encoded = _own_state.encode(own)
        except Exception as error:  # pylint: disable=broad-except
            # The save's error, which its requester hears of: not the loop's.
            refusal = error
        why = None if refusal is None else f"{type(refusal).__name__}: {refusal}".encode()
        lib.make_requested_save(self.session, encoded, len(encoded), why)
        self.saves_in_background = True
        return True

    def _checksums(self) -> bytes:
        if self._context.world_size == 1:
            return b""
        return b"".join(
            _CHECKSUM.pack(False, 0) if p.is_meta
            else _CHECKSUM.pack(True, zlib.crc32(_tensors.to_bytes(p)))
            for unit in self.units for p in unit.parameters)

    def _check_alike(self, own: bytes) -> None:
        """Each rank's slice of the values counts: they must be slices of the same ones.

        own: this rank's checksums. Errors: FAILED_PRECONDITION, on all ranks, naming a parameter
        that differs. Those that are on the meta device on all ranks are made later, and are not
        compared.
        """
        if not own:
            return
        names = [name for unit in self.units for name in unit.names]
        gathered = C.create_string_buffer(len(own) * self._context.world_size)
        lib.all_gather(self.session, own, len(own), gathered)
        first, *others = (list(_CHECKSUM.iter_unpack(gathered.raw[at:at + len(own)]))
                          for at in range(0, len(gathered.raw), len(own)))
        for rank, theirs in enumerate(others, start=1):
            for name, mine, of_rank in zip(names, first, theirs):
                if mine == of_rank:
                    continue
                if mine[0] != of_rank[0]:
                    there, here = (rank, 0) if mine[0] else (0, rank)
                    raise TesseraError(
                        f"parameter '{name}' is on the meta device on rank {there} and has values "
                        f"on rank {here}: make the model alike on all ranks", "FAILED_PRECONDITION")
                raise TesseraError(
                    f"the initial values of parameter '{name}' on rank {rank} are not those of "
                    "rank 0: call torch.manual_seed() with the same number on all ranks before the "
                    "model is made", "FAILED_PRECONDITION")

    def _initialize(self) -> None:
        own = self._checksums()  # Once: what is on the meta device gets values on the way.

        def initialize():
            self._check_alike(own)
            self._give_values()

        self.between_steps(initialize, has_result=False)

    def _give_values(self) -> None:
        callbacks, materialised = Callbacks(), set()

        def fill(_, unit, parameter, values, elements):
            del elements
            of = self.units[unit]
            source = of.parameters[parameter]
            if source.is_meta:
                if unit not in materialised:
                    self._materialise(of)
                    materialised.add(unit)
                source = of.parameters[parameter]
            target = _tensors.at(values, source.shape, self._full_dtype(unit))
            target.copy_(source.detach())

        with torch.no_grad():
            callbacks.run(lambda: lib.initialize(self.session, FILL(callbacks.wrap(fill)), None))

    def _materialise(self, unit) -> None:
        """Gives a unit's parameters on the meta device values, by each module's own method."""
        mine = {id(p) for p in unit.parameters if p.is_meta}
        for name, module in unit.module.named_modules() if mine else ():
            own = [p for p in module._parameters.values() if p is not None and id(p) in mine]
            if not any(p.is_meta for p in own):
                continue
            for parameter in own:
                if parameter.is_meta:
                    # In place: optimizers and ties hold the object.
                    torch.utils.swap_tensors(parameter, torch.nn.Parameter(
                        torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu"),
                        requires_grad=parameter.requires_grad))
            if self._meta_init is not None:
                self._meta_init(module)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
            else:
                raise TesseraError(
                    f"module '{name}' ({type(module).__name__}) of unit '{unit.name}' is on the "
                    "meta device and has no reset_parameters(): give shard() meta_init=, a "
                    "function of a module that sets its parameters", "INVALID_ARGUMENT")

    def _full_dtype(self, unit: int) -> torch.dtype:
        return _tensors.DTYPES[lib.full_dtype(self.session, unit)]

    def _use_memory(self) -> None:
        gpu = lib.gpu(self.session)
        if gpu >= 0:
            self._move_buffers(torch.device("cuda", gpu))
        for unit in self.units:
            dtype = _tensors.DTYPES[lib.compute_dtype(self.session, unit.index)]
            for index, parameter in enumerate(unit.parameters):
                address = lib.parameter(self.session, unit.index, index)
                parameter.data = _tensors.at(address, parameter.shape, dtype, gpu)
                parameter.grad = None

    def _move_buffers(self, device: torch.device) -> None:
        ignored = {id(m) for module in self._ignored for m in module.modules()}
        for module in self.root.modules():
            if id(module) in ignored:
                continue
            for name, buffer in module._buffers.items():
                if buffer is not None and not buffer.is_meta:
                    module._buffers[name] = buffer.to(device)

    # --- Steps ---

    @property
    def next_step(self) -> int:
        """The step to continue with: 1 + the last one that was taken."""
        self._require_attached()
        program.continues = True
        return lib.next_step(self.session)

    def report(self, **values: float) -> None:
        """Shows numbers as this rank's, as report(loss=loss, tokens=n): in `tessera status`, and in
        what the coordinator answers. They replace those reported before, and nobody waits.

        values: at most 32, each what float() takes. Names are of [A-Za-z0-9._/-]{1,64}.
        Errors: INVALID_ARGUMENT  a name or their number.
        """
        self._require_attached()
        names = (C.c_char_p * len(values))(*[name.encode() for name in values])
        numbers = (C.c_double * len(values))(*[
            float(value.detach() if isinstance(value, torch.Tensor) else value)
            for value in values.values()])
        lib.report(self.session, names, numbers, len(values))

    @property
    def rank(self) -> int:
        self._require_attached()
        return lib.rank(self.session)

    @property
    def world_size(self) -> int:
        self._require_attached()
        return lib.world_size(self.session)

    def _require_attached(self) -> None:
        if not self.attached:
            raise TesseraError("the model is not attached to a job: make an optimizer, or call "
                               "model.tessera.attach()", "FAILED_PRECONDITION")

    def check_whole(self, what: str) -> None:
        """Errors: FAILED_PRECONDITION  inside of summon_full_params(), whose values it would not have."""
        self._require_attached()
        if self.windows.summoned:
            raise TesseraError(f"{what} inside of summon_full_params(): leave that first",
                               "FAILED_PRECONDITION")

    def _before_model_forward(self) -> None:
        if self._undone:
            self.recover()
        self.make_requested_save()

    def recover(self) -> None:
        """Waits for the next epoch after StepUndone. A forward does it by itself."""
        self._require_attached()
        self.is_recovered()
        lib.recover(self.session)

    def between_steps(self, call, has_result: bool = True):
        """Makes a collective call, again while the death of a process ends it. Returns its result.

        Within a step StepUndone is raised instead: the step's gradients are gone. It is raised too
        if what the call writes was decided and only its result is lost; without a result that is
        success.
        """
        self._require_attached()
        repeats = not (self._runs_step or lib.within_step(self.session))

        def decided():
            return lib.num_writes(self.session), lib.initialized(self.session)

        while True:
            before, epoch = decided(), lib.epoch(self.session)
            try:
                return call()
            except StepUndone:
                if not repeats:
                    raise
                self.recover()
                if lib.epoch(self.session) == epoch:
                    raise
                if decided() != before:
                    if has_result:
                        raise
                    return None

    def is_recovered(self) -> None:
        """Takes note of a new epoch."""
        self._undone = False
        self.drop_step()

    def drop_step(self) -> None:
        """What this process has of a step."""
        self.windows.begin_step()
        self.windows.forget_gradients()

    def note_buffers(self) -> None:
        """As they are before a step of this model, or of another one that may run this one forward."""
        if self._buffers:
            self._keeper.begin_step()

    def restore_buffers(self) -> None:
        if self._buffers:
            self._keeper.restore()

    @staticmethod
    def step_options(groups, scale=1.0, divisor=1.0, weight=None, skip_non_finite=False):
        numbers = (HyperParameters * len(groups))(*[HyperParameters(*g) for g in groups])
        return StepOptions(
            learning_rate_scale=scale, gradient_divisor=divisor, groups=numbers,
            num_groups=len(groups), weight=0.0 if weight is None else weight,
            has_weight=weight is not None, skip_non_finite=skip_non_finite)

    def take_step(self, options) -> StepResult:
        """The step alone. Errors: StepUndone; FAILED_PRECONDITION  NaN or Inf in a gradient."""
        self.check_step()
        self.windows.begin_step()
        self.windows.check_given()
        self.windows.await_gpu()
        result = StepResult()
        try:
            with private.profiler_range("step", "all units"):
                lib.step(self.session, C.byref(options), C.byref(result))
            program.took_step = True
            self.note_requested_save()
        except StepUndone:
            self._undone = True
            raise
        finally:
            self.windows.forget_gradients()
        return result

    def warn_of_states(self) -> None:
        """Where the job continues, and what is registered begins with this program."""
        names = [name for name, state in self.states.items()
                 if not isinstance(state, torch.optim.lr_scheduler.LRScheduler)]
        if names:
            warnings.warn(
                f"the job continues at step {lib.next_step(self.session)}, and what is registered "
                f"as '{', '.join(sorted(names))}' on rank {self.rank} is this program's from its "
                "beginning: outside of checkpoints nobody keeps it. Bring it to the step, or load a "
                "checkpoint", RuntimeWarning, stacklevel=4)

    def last_learning_rates(self) -> list[float]:
        """Of the step before this one, by param group. Errors: StepUndone."""
        try:
            return json.loads(lib.text(lib.progress_json, self.session))["learning_rates"]
        except StepUndone:
            self._undone = True
            self.windows.forget_gradients()
            raise

    def check_step(self) -> None:
        """Before it is taken. Errors: FAILED_PRECONDITION."""
        self.check_whole("a step")
        program.check_start(lib.next_step(self.session))
        self.windows.check_model()

    def run_step(self, body):
        """Runs body() (forward, backward, step), again while the death of a process undoes it.

        Random state of torch, CUDA, numpy and `random` is put back before each repetition.
        Returns what body() returned last; None if the step was decided without this process.
        Errors: StepUndone  where there were gradients before body(), which it does not bring again.
        """
        self.check_whole("a step")
        if any(model._runs_step for model in _attached):
            raise TesseraError("a step within a step: call step() without a closure inside of one",
                               "FAILED_PRECONDITION")
        if self._undone:
            self.recover()
        self.make_requested_save()
        callbacks, random_state, results = Callbacks(), _random.capture(), []
        tries, lost, step = 0, None, lib.next_step(self.session)
        is_first_batch = not lib.within_step(self.session) and self.windows.lost is None

        def once(_):
            nonlocal tries, lost
            if tries:
                _random.restore(random_state)
                callbacks.error = None
                self._others.undo()
            if tries or is_first_batch:
                self.drop_step()
            else:
                self.windows.begin_step()
            tries += 1
            try:
                self._others.meet(is_first=tries == 1)
                results.append(body())
            except StepUndone as undone:
                # Of another model's job, this one's step is undone with it, on all ranks.
                lib.fail(self.session, ABORTED, str(undone).encode())
                if is_first_batch or self._has_dropped:
                    raise
                lost = undone  # With the batches before. To the library the body made no step.

        self._runs_step, self._has_dropped = True, False
        try:
            with torch.enable_grad(), self._others.of_a_step():
                callbacks.run(lambda: lib.run_step(self.session, BODY(callbacks.wrap(once)), None))
        finally:
            self._runs_step = False
            self.drop_step()
        if lost is not None:
            self.recover()
            if lib.next_step(self.session) == step:
                raise StepUndone(f"{lost}; the gradients of the batches before this closure went with "
                                 "it: do them again", "ABORTED") from lost
        return results[-1] if results else None

    # --- Gradients ---

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops what the job has of gradients since the last step."""
        del set_to_none
        self._has_dropped = True
        if not self.attached or self._undone:
            return
        self.windows.begin_step()
        try:
            if lib.within_step(self.session):
                lib.drop_gradients(self.session)
        except StepUndone:
            self._undone = True  # They are dropped. A forward waits for the next epoch.
        self.windows.forget_gradients()

    def _zero_grad_of(self, unit):
        def zero_grad(set_to_none: bool = True) -> None:
            del set_to_none
            if self.attached and not self._undone and self.windows.given[unit.index]:
                lib.drop_unit_gradients(self.session, unit.index)
                self.windows.forget_gradients([unit])
        return zero_grad

    def gradients(self) -> dict[str, torch.Tensor]:
        """The step's gradients so far, reduced over the ranks, whole, in host memory. Collective."""
        self._require_attached()
        found = {}
        for unit in self.units:
            self._read(lib.read_gradients, (unit.index,), unit, found)
        return found

    @property
    def keeps_local_gradients(self) -> bool:
        """Whether each unit has a slot for gradients that are not reduced yet: for no_sync()."""
        return self._config.get("gradient_slots") == 0

    @contextlib.contextmanager
    def no_sync(self):
        """Backwards in here only add gradients up; they are reduced by a later one, or the step."""
        self._require_attached()
        before = [lib.units_set_sync(self.windows.driver, u.index, 0) for u in self.units]
        try:
            yield
        finally:
            for unit, sync in zip(self.units, before):
                lib.units_set_sync(self.windows.driver, unit.index, sync)

    def _units_of(self, module) -> list:
        """All, or the unit of `module`."""
        if module is None:
            return self.units
        found = [unit for unit in self.units if unit.module is module]
        if not found:
            raise TesseraError(f"{type(module).__name__} is not the module of a unit: name it, or "
                               "its class, in shard(units=)", "INVALID_ARGUMENT")
        return found

    def set_requires_gradient_sync(self, sync: bool, module=None) -> None:
        """Whether backwards reduce gradients: of the unit of `module`, or of all."""
        self._require_attached()
        for unit in self._units_of(module):
            lib.units_set_sync(self.windows.driver, unit.index, int(sync))

    def set_reshard_after_forward(self, reshard: bool, module=None) -> None:
        """Whether parameters are given up between forward and backward: of that unit, or of all."""
        self._require_attached()
        for unit in self._units_of(module):
            lib.units_set_reshard_after_forward(self.windows.driver, unit.index, int(reshard))

    def set_modules_to_forward_prefetch(self, module, ahead) -> None:
        """The units of the modules `ahead` are gathered while that of `module` runs forward."""
        self._set_prefetch(lib.units_set_forward_prefetch, module, ahead)

    def set_modules_to_backward_prefetch(self, module, ahead) -> None:
        """The same, of its backward."""
        self._set_prefetch(lib.units_set_backward_prefetch, module, ahead)

    def _set_prefetch(self, function, module, ahead) -> None:
        self._require_attached()
        numbers = [self._units_of(each)[0].index for each in ahead]
        function(self.windows.driver, self._units_of(module)[0].index,
                 (C.c_int * len(numbers))(*numbers), len(numbers))

    # --- Whole values ---

    def _read(self, function, arguments, unit, found) -> None:
        callbacks = Callbacks()

        def read(_, of, parameter, values, elements):
            del of, elements
            like = unit.parameters[parameter]
            source = _tensors.at(values, like.shape, self._full_dtype(unit.index))
            found[unit.names[parameter]] = source.clone()

        callbacks.run(lambda: function(self.session, *arguments, READ(callbacks.wrap(read)), None))

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Copies of all parameters in host memory, whole, in full precision, by name. Collective."""
        found: dict[str, torch.Tensor] = {}

        def read():
            for unit in self.units:
                self._read(lib.read_parameters, (unit.index,), unit, found)
                for alias, index in unit.aliases:
                    found[alias] = found[unit.names[index]]

        self.between_steps(read)
        return found

    def write_parameters(self, values: dict[str, torch.Tensor]) -> None:
        """Sets all parameters of the units that these are in. Collective; on all ranks or none."""
        self._require_attached()
        self.make_requested_save()
        units = [unit for unit in self.units if any(name in values for name in unit.names)]
        numbers = (C.c_int * len(units))(*[unit.index for unit in units])

        def fill(_, unit, parameter, memory, elements):
            del elements
            of = self.units[unit]
            source = values[of.names[parameter]]
            target = _tensors.at(memory, of.parameters[parameter].shape, self._full_dtype(unit))
            target.copy_(source.detach())

        def write():
            callbacks = Callbacks()
            callbacks.run(lambda: lib.write_parameters(
                self.session, numbers, len(units), FILL(callbacks.wrap(fill)), None))

        self.windows.await_gpu()
        with torch.no_grad():
            self.between_steps(write, has_result=False)

    @contextlib.contextmanager
    def summon_full_params(self, writeback: bool = True):
        """Parameters are whole, in full precision, and writable in here. Collective.

        With `writeback` what was changed is the job's afterwards: of each parameter, the elements
        that this rank's shard has. In here each rank may run other forwards than its peers, or none,
        under torch.no_grad(): an evaluation on rank 0 alone, generate().
        Errors: FAILED_PRECONDITION  a forward with gradients; it is called in here.
        """
        self.check_whole("summon_full_params()")
        whole = self.full_parameters()
        views = [[p.data for p in unit.parameters] for unit in self.units]
        self.windows.summoned = True
        try:
            with torch.no_grad():
                for unit in self.units:
                    for name, parameter in zip(unit.names, unit.parameters):
                        parameter.data = whole.pop(name).to(parameter.device)
            yield
            if writeback:
                self.write_parameters({name: parameter.data for unit in self.units
                                       for name, parameter in zip(unit.names, unit.parameters)})
        finally:
            self.windows.summoned = False
            with torch.no_grad():
                for unit, of_unit in zip(self.units, views):
                    for parameter, view in zip(unit.parameters, of_unit):
                        parameter.data = view

    def _fill_state_dict(self, module, state_dict, prefix, local_metadata) -> None:
        del module, local_metadata
        if self._is_detached:
            raise TesseraError("the model has left its job, and its parameters are empty: call "
                               "state_dict() before detach()", "FAILED_PRECONDITION")
        if not self.attached or self.windows.summoned:
            return
        # Of one that was sharded before a wrapper put it into a larger module, too.
        for name, value in self.full_parameters().items():
            if prefix + name in state_dict:
                state_dict[prefix + name] = value

    def load_state_dict(self, state_dict, strict: bool = True, assign: bool = False):
        """As torch's, of whole tensors. Collective: all ranks load the same."""
        if not self.attached or (self.windows.summoned and not assign):
            return self._load_state_dict(state_dict, strict=strict, assign=assign)
        if assign:
            raise TesseraError("load_state_dict(assign=True): parameters are the job's memory, and "
                               "cannot be other tensors; leave assign out", "INVALID_ARGUMENT")
        with self.summon_full_params():
            return self._load_state_dict(state_dict, strict=strict)


    def _refuse_forward(self, module, args):
        del args
        if any(p.numel() for unit in self.units for p in unit.parameters):
            return  # Somebody gave them values again.
        raise TesseraError(
            f"a forward of {type(module).__name__} after detach(): its parameters are empty. Take "
            "model.state_dict() before detach(), and load it into another model",
            "FAILED_PRECONDITION")

    def _refuse_pickle(self, protocol):
        del protocol
        raise TesseraError(
            f"pickle, torch.save or copy.copy of a sharded {type(self.root).__name__}: its parameters "
            "are the job's. Save model.state_dict(), which is collective, or "
            "tessera.save_model(model, folder)",
            "FAILED_PRECONDITION")

    def _refuse_copy(self, memo):
        del memo
        raise TesseraError(
            f"copy.deepcopy of a sharded {type(self.root).__name__}: its parameters are the job's. "
            "Copy the model before shard(), or make another one and give it the values: "
            "other.load_state_dict(model.state_dict()), on all ranks", "FAILED_PRECONDITION")

    def _apply(self, convert, *args, **kwargs) -> torch.nn.Module:
        """For model.to(), half(), cuda(). Errors: FAILED_PRECONDITION  another dtype or device."""
        if not self.attached or self.windows.summoned:
            return private.apply(self.root, convert, *args, **kwargs)
        like = self.units[0].parameters[0]
        converted = convert(torch.empty(0, dtype=like.dtype, device=like.device))
        if (converted.dtype, converted.device) != (like.dtype, like.device):
            raise TesseraError(
                f"the model is attached, and its parameters stay {like.dtype} on {like.device}: "
                f"move or cast it before the optimizer is made, not to {converted.dtype} on "
                f"{converted.device}", "FAILED_PRECONDITION")
        return self.root


def take_outside_window() -> str:
    return lib.text(lib.take_outside_window)


def shard(model: torch.nn.Module, units=None, *, strategy: str = "FULL_SHARD",
          precision: _plan.Precision = _plan.Precision(), job: str | None = None,
          ignored_modules=(), cpu_offload: bool = False, shard_group_size: int = 0,
          meta_init=None, executor_in_process: bool = False,
          config: dict | None = None) -> torch.nn.Module:
    """Makes `model` a job's, in place, and returns it. See model.tessera for what it can do then.

    units: what is gathered and reduced together: a class or classes of modules, modules, or a
      predicate. What is in none of them is in the root's unit.
    strategy: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2.
    job: the job's name, of [a-z0-9-], 1 to 63 characters; None: the launcher's, which one model of a
      process can have.
    meta_init: sets the parameters of a module that is on the meta device; None: the module's
      reset_parameters().
    executor_in_process: the rank's executor is a thread of this process instead of a process of the
      worker. For a GPU without MPS, where kernels of two processes take turns.
    config: further fields of proto/types.proto's JobConfig (docs/reference/config.md).
    Errors: TesseraError INVALID_ARGUMENT, naming the parameter, buffer or argument.
    """
    if not isinstance(model, torch.nn.Module):
        raise TesseraError(f"shard() takes a torch.nn.Module, not {type(model).__name__}",
                           "INVALID_ARGUMENT")
    if sharded_of(model) is not None:
        raise TesseraError("the model is sharded already", "FAILED_PRECONDITION")
    if strategy not in _plan.STRATEGIES:
        raise TesseraError(f"strategy '{strategy}': one of {', '.join(_plan.STRATEGIES)}",
                           "INVALID_ARGUMENT")
    ignored_modules = list(ignored_modules)
    made, chosen = _plan.make_units(model, units, ignored_modules)
    job_config = {
        "strategy": "STRATEGY_" + strategy,
        "compute_dtype": _dtype_name("precision.param", precision.param),
        "reduce_dtype": _dtype_name("precision.reduce", precision.reduce or precision.param),
        "cpu_offload": cpu_offload, "shard_group_size": shard_group_size, **(config or {})}
    sharded = Sharded(model, made, chosen, job_config, precision, job, meta_init, ignored_modules,
                      executor_in_process)
    object.__setattr__(model, "tessera", sharded)
    return model


def _dtype_name(what: str, dtype: torch.dtype) -> str:
    if dtype in (torch.float32, torch.bfloat16, torch.float16):
        return _plan.DTYPES[dtype]
    raise TesseraError(f"{what}: {dtype} is not float32, bfloat16 or float16", "INVALID_ARGUMENT")


def sharded_of(model) -> Sharded | None:
    """model.tessera; None if shard() was not called."""
    found = getattr(model, "tessera", None)
    return found if isinstance(found, Sharded) else None


def of(model) -> Sharded:
    """model.tessera. Errors: FAILED_PRECONDITION  shard() was not called."""
    if not isinstance(model, (Sharded, torch.nn.Module)):
        raise TesseraError(
            f"takes the sharded model, and was given a {type(model).__name__}: an optimizer's groups of "
            "parameters are its param_groups=", "INVALID_ARGUMENT")
    sharded = model if isinstance(model, Sharded) else sharded_of(model)
    if sharded is None:
        raise TesseraError("the model is not sharded: call tessera.shard(model) first",
                           "FAILED_PRECONDITION")
    return sharded
