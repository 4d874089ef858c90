"""Hooks on a module tree that open, close and reduce its units, by the driver in libtessera."""

from __future__ import annotations

import ctypes as C
import functools
import itertools
import operator
import sys
import weakref

import torch

from . import _tensors, _torch_private as private
from ._library import Gradient, UnitWork, lib, raise_error
from .errors import StepUndone, TesseraError

_LARGE_GRADIENT_BYTES = 64 * 1024  # A hook takes about as long as to read these from memory.


class GivenGradient(torch.Tensor):
    """Stands in `parameter.grad` for a gradient that the job has taken: it has no values."""

    _DESCRIPTIONS = frozenset(
        [getattr(torch.Tensor, name).__get__ for name in (
            "shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "is_sparse",
            "is_cuda", "is_meta", "ndim", "grad_fn")] +
        [torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.__hash__])

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", str(function))
        # What it is may be asked; what is in it may not. `.data` would give it away.
        if function in cls._DESCRIPTIONS:
            return super().__torch_function__(function, types, args, kwargs or {})
        raise TesseraError(
            f"{name} on a gradient: the job has taken it, and reduces and applies it in the step. "
            "Use tessera.AdamW or another optimizer of this package as `opt`, opt.clip_grad_norm_() to "
            "clip, opt.zero_grad() to drop, model.tessera.gradients() to read", "FAILED_PRECONDITION")

    @classmethod
    def of(cls, parameter):
        with torch.no_grad():
            one = torch.empty((), dtype=parameter.dtype, device=parameter.device)
            return torch.Tensor._make_subclass(cls, one.expand(parameter.shape))


_NO_GRADIENT = (Gradient * 1)(Gradient(None, -1, 0, 0))


class _Trainable:
    """A parameter that the job trains."""

    __slots__ = ("unit", "index", "name", "parameter", "numel", "marker")

    def __init__(self, unit, index: int, parameter):
        self.unit, self.index, self.name, self.parameter = unit.index, index, unit.names[index], parameter
        self.numel, self.marker = parameter.numel(), GivenGradient.of(parameter)


class _Forward:
    """One forward of a unit's module, for as long as its graph lives."""

    __slots__ = ("windows", "unit", "handle", "number", "in_backward", "inputs", "left", "__weakref__")

    def __init__(self, windows, unit, handle):
        self.windows, self.unit, self.handle = windows, unit, handle
        self.number = windows.number_forward()
        self.in_backward = private.backward_id() != -1
        self.inputs = 0  # That the backward comes to last, ...
        self.left = 0    # ... of which so many are to come.

    def __del__(self):
        self.windows.forget_forward(self)
        lib.forward_delete(self.handle)


class Windows:
    """Drives the units of one attached model. One thread trains; backwards may run on others."""

    used: "weakref.WeakSet[Windows] | None" = None  # Of all: takes down which of them have a forward.

    def __init__(self, units, root, attach, before_model_forward, input_dtype, reduce_dtype):
        """attach: called by the first forward; it calls bind()."""
        self._units, self._root, self._input_dtype = units, root, input_dtype
        self._reduce_dtype = reduce_dtype
        self._attach, self._before_model_forward = attach, before_model_forward
        self._session, self.driver = None, C.c_void_p()
        self.gpu = -1  # Where parameters and gradients are; -1: in host memory.
        self._reading: dict[int, list] = {}  # Of a GPU: gradients that it may be reading, by unit.
        self._newest_unit = -1  # That gave one of these.
        self._is_profiled = False  # The forward or backward under way: asking each time takes longer.
        self._node_unit = -1  # Of which a node began last, in this backward.
        self._stack: list = []
        # Forwards that a backward may come to, by unit and number. They take themselves out.
        self._graphs: list[dict[int, weakref.ref]] = [{} for _ in units]
        self._num_forwards = 0
        self._first_of_step = 0  # The number of its first forward.
        self._backward = -1  # The id of the one under way.
        self._creates_graph = False  # It has create_graph=True: its own nodes read parameters, too.
        self._step_has_graph = False  # A backward of this step had it.
        self._trainable: list[list[_Trainable]] = [[] for _ in units]
        # By unit: an array that tells the driver of gradients, and its elements.
        self._told: list[tuple] = []
        self.given: list[set[_Trainable]] = [set() for _ in units]  # Whose gradients the job has.
        self.lost: str | None = None  # Why gradients that a step is to use are gone.
        self.summoned = False  # Parameters are whole, and no window's.
        self._shows_given = False  # Whether parameter.grad has the markers of these.
        self._frozen: list[tuple[str, torch.nn.Parameter]] = []  # When the job was attached.
        self._known: set[int] = set()  # Parameters of the tree then.
        self._in_memory: list[torch.nn.Parameter] = []  # Parameters of the job's memory, ...
        self._addresses: list[int] = []  # ... and where they stay.
        # Of the tree when it was looked at last: where its modules have parameters and modules, and
        # these.
        self._holders: list[dict] = []
        self._held: list = []
        self._hooks: list = []
        if units[0].module is not root:
            self._hook_module(root, -1)
        for unit in units:
            self._hook_module(unit.module, unit.index)

    def bind(self, session) -> None:
        modules = (C.c_int * len(self._units))(*[1] * len(self._units))
        root_unit = 0 if self._units[0].module is self._root else -1
        driver = C.c_void_p()
        lib.units_new(session, modules, root_unit, C.byref(driver))
        self._session, self.driver, self.gpu = session, driver, lib.gpu(session)
        for unit in self._units:
            for index, parameter in enumerate(unit.parameters):
                if not parameter.requires_grad:
                    self._frozen.append((unit.names[index], parameter))
                    continue
                trainable = _Trainable(unit, index, parameter)
                self._trainable[unit.index].append(trainable)
                is_root = unit.index == root_unit
                if is_root:
                    self._hooks.append(parameter.register_hook(self._before_gradient))
                # The root's backward lasts as long as the model's, so its gradients are given one by
                # one. So are large ones: the job reads them while they are in a core's cache, and the
                # next gradient can have their memory. All others are given at the end of their unit.
                if is_root or (self.gpu < 0 and parameter.nbytes >= _LARGE_GRADIENT_BYTES):
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(
                        functools.partial(self._on_gradient, trainable)))
        self._told = [self._array_for(unit.index) for unit in self._units]
        if self.gpu < 0:
            self._in_memory = [p for unit in self._units for p in unit.parameters]
            self._addresses = self._find_addresses()
        self._known = {id(p) for p in self._root.parameters()}
        self._note_tree()

    def number_forward(self) -> int:
        self._num_forwards += 1
        return self._num_forwards - 1

    def forget_forward(self, forward: _Forward) -> None:
        self._graphs[forward.unit].pop(forward.number, None)

    def _living(self, unit: int) -> list[_Forward]:
        """Forwards of the unit that a backward may come to. Others may go meanwhile."""
        found = [reference() for reference in list(self._graphs[unit].values())]
        return [forward for forward in found if forward is not None]

    def _hook_module(self, module, unit: int) -> None:
        self._hooks.append(module.register_forward_pre_hook(
            self._pre_forward(unit), prepend=True, with_kwargs=True))
        self._hooks.append(module.register_forward_hook(
            self._post_forward(unit), with_kwargs=True, always_call=True))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        lib.units_delete(self.driver)
        self.driver = C.c_void_p()
        self._reading.clear()

    def _in_range(self, what: str, unit: int, function, *arguments) -> None:
        """Calls function(*arguments), of lib.unchecked, in a range of a profiler that runs."""
        if self._is_profiled:
            with private.profiler_range(what, self._units[unit].name if unit >= 0 else "root"):
                code = function(*arguments)
        else:
            code = function(*arguments)
        if code:
            raise_error(code)

    def _tell_stream(self) -> None:
        """On a GPU."""
        stream = torch.cuda.current_stream(self.gpu)
        lib.units_set_stream(self.driver, stream.cuda_stream)

    def await_gpu(self) -> None:
        """Before parameters are overwritten: what reads them is through."""
        if self.gpu >= 0:
            torch.cuda.current_stream(self.gpu).synchronize()

    # --- Forward ---

    def _pre_forward(self, unit: int):
        @private.without_compiling
        def pre_forward(module, args, kwargs):
            if self.summoned:
                self._check_summoned()
                return None
            if not self.driver:
                self._attach()
            if module is self._root:
                self._begin_model(module)
            if Windows.used is not None:
                Windows.used.add(self)
            handle = C.c_void_p()
            if self.gpu >= 0:
                self._tell_stream()  # The memory that is opened may be another unit's until then.
            self._is_profiled = private.is_profiling()
            self._in_range("pre_forward", unit, lib.unchecked.units_begin_forward, self.driver, unit,
                           C.byref(handle))
            forward = _Forward(self, unit, handle)
            self._stack.append((forward, module, sys.exc_info()[1]))
            if torch.is_grad_enabled() and unit >= 0:
                self._hook_inputs(forward, args, kwargs)
            if self._input_dtype is not None and module is self._root:
                return (_tensors.cast_floating(args, self._input_dtype),
                        _tensors.cast_floating(kwargs, self._input_dtype))
            return None
        return pre_forward

    def _check_summoned(self) -> None:
        if torch.is_grad_enabled():
            raise TesseraError("a forward with gradients inside of summon_full_params(): train outside "
                               "of it, or evaluate under torch.no_grad()", "FAILED_PRECONDITION")

    def _begin_model(self, module) -> None:
        if self._backward != -1 and private.backward_id() == -1:
            self.end_failed_backward()
        if self._backward == -1 and self._stack and not any(m is module for _, m, _ in self._stack):
            self._abandon_all()
        if self._backward == -1:
            self._before_model_forward()

    def _hook_inputs(self, forward: _Forward, args, kwargs) -> None:
        seen = set()
        for tensor in _tensors.each(args) + (_tensors.each(kwargs) if kwargs else []):
            if not tensor.requires_grad or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            forward.inputs += 1
            hook, node = functools.partial(self._end_node, forward), tensor.grad_fn
            if node is None:
                tensor.register_hook(hook)
            else:
                node.register_prehook(hook)

    def _end_node(self, forward: _Forward, gradient) -> None:
        """A gradient of an input: the forward's nodes before it are done."""
        if not self.driver or self._backward == -1:
            return
        if self._creates_graph:
            for tensor in _tensors.each(gradient):
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(self._before_gradient)
        forward.left -= 1
        if forward.left > 0:
            return
        self._give_unit(forward.unit)
        if forward.left == 0:  # Less: it began in the backward, and was not announced.
            if self.gpu >= 0:
                self._tell_stream()
            self._in_range("post_backward", forward.unit, lib.unchecked.units_end_node, self.driver,
                           forward.handle)

    def _post_forward(self, unit: int):
        @private.without_compiling
        def post_forward(module, args, kwargs, output):
            del args, kwargs
            if self.summoned:
                return  # It may run inside of a forward that has windows.
            if not self._stack or self._stack[-1][1] is not module:
                return  # What comes before the forward failed.
            forward, _, before = self._stack.pop()
            raised = sys.exc_info()[1]
            if output is None and raised is not None and raised is not before:
                lib.units_abandon_forward(self.driver, forward.handle)
                return
            if torch.is_grad_enabled() and unit >= 0:
                self._hook_outputs(forward, output)
            ended = C.c_int()
            if self.gpu >= 0:
                self._tell_stream()
            self._in_range("post_forward", unit, lib.unchecked.units_end_forward, self.driver, forward.handle,
                           0, C.byref(ended))
            if ended.value and not module.training and not torch.is_grad_enabled():
                lib.end_forward(self._session)
        return post_forward

    def _hook_outputs(self, forward: _Forward, output) -> None:
        self._graphs[forward.unit][forward.number] = weakref.ref(forward)
        hook = functools.partial(self._begin_node, forward)
        for tensor in _tensors.each(output):
            node = tensor.grad_fn
            if node is None:
                continue
            node.register_prehook(hook)
            # A view that is changed in place gets another history, without the hook.
            base = private.view_base(tensor)
            if base is not None and base.grad_fn is not None:
                base.grad_fn.register_prehook(hook)

    def _begin_node(self, forward: _Forward, gradient) -> None:
        """A gradient of an output: the forward's nodes come next."""
        del gradient
        if not self.driver:
            return
        if not forward.in_backward and self._backward not in (-1, private.backward_id()):
            # Those that begin inside of another one run what was computed in it.
            self.end_failed_backward()
        if self._backward == -1:
            self._begin_backward()
        if forward.unit != self._node_unit:
            # Its last node may have ended before its last gradients were there.
            self._give_unit(self._node_unit)
            self._node_unit = forward.unit
        if self.gpu >= 0:
            self._tell_stream()
        self._in_range("pre_backward", forward.unit, lib.unchecked.units_begin_node, self.driver,
                       forward.handle)

    def _abandon_all(self) -> None:
        while self._stack:
            forward, _, _ = self._stack.pop()
            lib.units_abandon_forward(self.driver, forward.handle)

    # --- Backward ---

    def _begin_backward(self) -> None:
        """Where the first hook of a backward runs. Others begin inside of it (checkpoints), and are
        parts of it."""
        if self.summoned:
            raise TesseraError("a backward inside of summon_full_params(): train outside of it",
                               "FAILED_PRECONDITION")
        self._hide_given()
        self._is_profiled = private.is_profiling()
        self._backward, self._node_unit = private.backward_id(), -1
        self._creates_graph = torch.is_grad_enabled()
        keeps = self._creates_graph or self._step_has_graph
        work, forwards = [], []
        for unit in self._units:
            nodes = 0
            for forward in self._living(unit.index):
                forward.left = forward.inputs
                nodes += forward.inputs > 0  # Else its end is not seen.
            gradients = sum([p.requires_grad for p in unit.parameters])
            if keeps:
                nodes += 1  # That never ends, so that the unit stays open to the end.
            if self._step_has_graph:
                forwards += self._newest_forward(unit.index)
            work.append((unit.index, nodes, gradients))
        array = (UnitWork * len(work))(*work)
        lib.units_begin_backward(self.driver, array, len(work))
        private.queue_end_of_backward(self._end_backward)
        self._step_has_graph = keeps
        # No hook says which unit's parameters a node of such a graph reads.
        for forward in reversed(forwards):
            if self.gpu >= 0:
                self._tell_stream()
            lib.units_begin_node(self.driver, forward.handle)

    def _newest_forward(self, unit: int) -> list[_Forward]:
        """Of this step, as on the other ranks. None: the list is empty."""
        of_step = [f for f in self._living(unit) if f.number >= self._first_of_step]
        return [max(of_step, key=lambda forward: forward.number)] if of_step else []

    def _end_backward(self) -> None:
        if not self.driver:
            self._backward = -1
            return
        for unit in reversed(self._units):
            self._give_unit(unit.index)
        self._backward = -1
        if self.gpu >= 0:
            self._tell_stream()
        try:
            # With a graph of its own, units stay open: until a backward without one ends, or the next
            # forward or step begins.
            lib.units_end_backward(self.driver, self._creates_graph)
        finally:
            self._reading.clear()
            self._show_given()

    def end_failed_backward(self) -> None:
        """An exception ended it, so that nobody was told of its end."""
        if self._backward == -1:
            return
        self._backward = -1
        for of_unit in self._trainable:
            for trainable in of_unit:
                trainable.parameter.grad = None  # Of those that were not given yet.
        try:
            lib.units_end_backward(self.driver, 1)
        finally:
            self._reading.clear()
            self._show_given()

    def _before_gradient(self, gradient) -> None:
        """Where the backward may have come to no unit's output yet: before autograd adds to a marker,
        or reads parameters in a graph that another backward made."""
        del gradient
        if self._backward == -1 and self.driver:
            self._begin_backward()

    def _on_gradient(self, trainable: _Trainable, parameter) -> None:
        # Backwards inside of this one (checkpoints) may each have a part of it, of which the sum counts.
        if self._backward != private.backward_id() or not self.driver:
            return
        unit, gradient = trainable.unit, parameter.grad
        if gradient is None:
            lib.units_gradients(self.driver, unit, _NO_GRADIENT, 1)
        elif self.gpu >= 0:
            self._give(unit, (trainable,))
        else:  # As _give(), for one: as many hooks are here as everywhere else together.
            told, entries = self._told[unit]
            gradient = self._tell(entries[0], trainable, gradient)
            self.given[unit].add(trainable)
            self._in_range("reduce", unit, lib.unchecked.units_gradients, self.driver, unit, told, 1)

    def _give_unit(self, unit: int) -> None:
        if unit >= 0:
            self._give(unit, self._trainable[unit])

    def _give(self, unit: int, trainables) -> None:
        """Gives the job the gradients of these of the unit that there are since the last time."""
        # On a GPU, where autograd has several threads, another one may be here, too.
        told, entries = self._told[unit] if self.gpu < 0 else self._array_for(unit)
        there, values = [], []
        for trainable in trainables:
            gradient = trainable.parameter.grad
            if gradient is not None:
                values.append(self._tell(entries[len(there)], trainable, gradient))
                there.append(trainable)
        if not there:
            return
        if self.gpu >= 0:
            self._tell_stream()
            self._reading.setdefault(unit, []).extend(values)
        self.given[unit].update(there)
        self._in_range("reduce", unit, lib.unchecked.units_gradients, self.driver, unit, told, len(there))
        if self.gpu >= 0:
            self._forget_read(unit)

    def _array_for(self, unit: int) -> tuple:
        array = (Gradient * len(self._trainable[unit]))()
        return array, list(array)

    def _tell(self, entry: Gradient, trainable: _Trainable, gradient):
        """Takes the gradient out of its parameter. Returns what has its values in the job's form."""
        trainable.parameter.grad = None
        if gradient.requires_grad:
            raise TesseraError(
                f"the gradient of parameter '{trainable.name}' needs a "
                "gradient itself (create_graph=True), and the job cannot keep that: take it by "
                "torch.autograd.grad", "UNIMPLEMENTED")
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        if self.gpu >= 0 and gradient.dtype not in (self._reduce_dtype, *_tensors.FULL):
            gradient = gradient.float()  # The GPU's kernels know one half type of a unit.
        gradient = gradient.contiguous()
        entry.values, entry.elements = gradient.data_ptr(), trainable.numel
        entry.parameter, entry.dtype = trainable.index, _tensors.CODES[gradient.dtype]
        return gradient

    def _forget_read(self, unit: int) -> None:
        """Lets go of gradients that the GPU has read: looked at where a backward is at a new unit."""
        if unit == self._newest_unit:
            return
        self._newest_unit = unit
        for read in [u for u in self._reading if not lib.units_reads(self.driver, u)]:
            del self._reading[read]

    # --- Steps ---

    def check_given(self) -> None:
        """Before a step is taken. Errors: FAILED_PRECONDITION  a gradient was set or reset by hand;
        StepUndone"""
        self._step_has_graph, self._first_of_step = False, self._num_forwards
        lost, self.lost = self.lost, None
        if lost is not None:
            raise StepUndone(lost, "ABORTED")
        self._check_markers()
        for trainables, given in zip(self._trainable, self.given):
            for trainable in trainables:
                if trainable not in given and trainable.parameter.grad is not None:
                    raise TesseraError(
                        f"the gradient of parameter '{trainable.name}' is not the job's: it was "
                        "set by hand after backward, or came by a backward through tensors that its"
                        " module does not return in a list, tuple, dict or dataclass",
                        "FAILED_PRECONDITION")

    def _check_markers(self) -> None:
        if not self._shows_given:
            return
        for given in self.given:
            for trainable in given:
                if trainable.parameter.grad is not trainable.marker:
                    raise TesseraError(
                        f"the gradient of parameter '{trainable.name}' was changed by hand after"
                        " backward, and the job has the old one: drop all by opt.zero_grad(), or "
                        "those of a unit by its module's zero_grad()", "FAILED_PRECONDITION")

    def _show_given(self) -> None:
        """Has markers stand for the gradients that the job has."""
        for given in self.given:
            for trainable in given:
                trainable.parameter.grad = trainable.marker
        self._shows_given = True

    def _hide_given(self) -> None:
        """Makes room for those of a backward, which autograd adds to what is there."""
        if not self._shows_given:
            return
        self._check_markers()
        for given in self.given:
            for trainable in given:
                trainable.parameter.grad = None
        self._shows_given = False

    def check_model(self) -> None:
        """Errors: FAILED_PRECONDITION  a parameter that the job would silently not train."""
        addresses = self._find_addresses()
        if addresses != self._addresses:
            names = [name for unit in self._units for name in unit.names]
            moved = next(name for name, now, before in zip(names, addresses, self._addresses)
                         if now != before)
            raise TesseraError(
                f"parameter '{moved}' was given other memory, by assigning to its "
                ".data or by set_(), and the job does not have what is in it: set values within "
                "model.tessera.summon_full_params(), or give a module whose values your code sets "
                "to shard(ignored_modules=[...])", "FAILED_PRECONDITION")
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise TesseraError(
                    f"parameter '{name}' was frozen when the model was attached, and the job would "
                    "not train it: call requires_grad_(True) before the optimizer is made",
                    "FAILED_PRECONDITION")
        held = self._find_held()
        if len(held) == len(self._held) and all(map(operator.is_, held, self._held)):
            return  # As it was when it was looked at last.
        for parameter in self._root.parameters():
            if id(parameter) not in self._known:
                name = next(n for n, p in self._root.named_parameters() if p is parameter)
                raise TesseraError(
                    f"parameter '{name}' was registered after the model was attached, and the job "
                    "would not train it: register it before shard()", "FAILED_PRECONDITION")
        self._note_tree()

    def _find_addresses(self) -> list[int]:
        return list(map(torch.Tensor.data_ptr, self._in_memory))

    def _find_held(self) -> list:
        return list(itertools.chain.from_iterable(map(operator.methodcaller("values"), self._holders)))

    def _note_tree(self) -> None:
        self._holders = [holder for module in self._root.modules()
                         for holder in private.holders(module)]
        self._held = self._find_held()

    def forget_gradients(self, units=None) -> None:
        """They are the job's no longer: a step took them, or they were dropped."""
        self.lost = None
        for unit in self._units if units is None else units:
            for trainable in self._trainable[unit.index]:
                trainable.parameter.grad = None
            self.given[unit.index].clear()

    def begin_step(self) -> None:
        if not self.driver:
            return  # Detached.
        self.end_failed_backward()
        self._abandon_all()
        lib.units_begin_step(self.driver)
