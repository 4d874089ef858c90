"""libtessera.so by ctypes: its structs, its functions, and errors as exceptions."""

from __future__ import annotations

import ctypes as C
import os
import pathlib
import types

from . import errors

ABI_VERSION = 3

FILL = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int, C.c_int, C.c_void_p, C.c_int64)
READ = FILL
BODY = C.CFUNCTYPE(C.c_int, C.c_void_p)
HOOK = C.CFUNCTYPE(None, C.c_void_p)
GET_TENSORS = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int, C.c_void_p)
TAKE_TENSORS = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p)


class _Struct(C.Structure):
    """One that begins with its own size."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.struct_size = C.sizeof(self)


class OpenOptions(_Struct):
    _fields_ = [("struct_size", C.c_size_t)] + [
        (name, C.c_char_p) for name in (
            "coordinator_address", "worker_address", "tls_certificate_path", "tls_key_path",
            "tls_ca_path", "job_id", "model_json", "config_json")
    ] + [
        (name, C.c_int32) for name in (
            "rank", "insecure_connect", "wait_if_attached", "unguarded_windows")
    ] + [
        (name, C.c_double) for name in (
            "attach_timeout_seconds", "operation_timeout_seconds", "recover_timeout_seconds")
    ] + [("executor_in_process", C.c_int32), ("reserved", C.c_int32)]


class Gradient(C.Structure):
    _fields_ = [("values", C.c_void_p), ("elements", C.c_int64), ("parameter", C.c_int32),
                ("dtype", C.c_int32)]


class HyperParameters(C.Structure):
    _fields_ = [(name, C.c_double) for name in (
        "learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "momentum")]


class StepOptions(_Struct):
    _fields_ = [("struct_size", C.c_size_t), ("learning_rate_scale", C.c_double),
                ("gradient_divisor", C.c_double), ("groups", C.POINTER(HyperParameters)),
                ("num_groups", C.c_size_t), ("weight", C.c_double), ("has_weight", C.c_int32),
                ("skip_non_finite", C.c_int32)]


class StepResult(_Struct):
    _fields_ = [("struct_size", C.c_size_t), ("step", C.c_int64), ("gradient_norm", C.c_double),
                ("skipped", C.c_int32), ("reserved", C.c_int32)]


class Part(_Struct):
    _fields_ = [("struct_size", C.c_size_t), ("unit", C.c_int32), ("parameter", C.c_int32),
                ("begin_elements", C.c_int64), ("numel", C.c_int64), ("values", C.c_void_p),
                ("gradient", C.c_void_p)]


class Tensor(_Struct):
    _fields_ = [("struct_size", C.c_size_t), ("name", C.c_char_p), ("dtype", C.c_char_p),
                ("shape", C.POINTER(C.c_int64)), ("num_dimensions", C.c_size_t),
                ("values", C.c_void_p), ("size_bytes", C.c_size_t)]


class TrainerTensors(_Struct):
    _fields_ = [("struct_size", C.c_size_t), ("get", GET_TENSORS), ("take", TAKE_TENSORS),
                ("context", C.c_void_p)]


class BufferHooks(_Struct):
    _fields_ = [("struct_size", C.c_size_t), ("stage", BODY), ("take", HOOK),
                ("begin_step", HOOK), ("restore", BODY), ("context", C.c_void_p)]


class CheckpointOptions(_Struct):
    _fields_ = [("struct_size", C.c_size_t), ("trainer_state", C.c_char_p),
                ("trainer_state_bytes", C.c_size_t), ("max_file_bytes", C.c_int64),
                ("keep_newest", C.c_int32), ("in_background", C.c_int32),
                ("keep_existing", C.c_int32), ("in_parts", C.c_int32)]


class LiveOptions(_Struct):
    _fields_ = [("struct_size", C.c_size_t)] + [
        (name, C.c_char_p) for name in (
            "coordinator_address", "tls_certificate_path", "tls_key_path", "tls_ca_path", "job_id")
    ] + [("include", C.POINTER(C.c_char_p)), ("exclude", C.POINTER(C.c_char_p)),
         ("num_include", C.c_size_t), ("num_exclude", C.c_size_t), ("dtype", C.c_char_p)] + [
        (name, C.c_int32) for name in ("insecure_connect", "moments", "no_buffers", "reserved")]


class UnitWork(C.Structure):
    _fields_ = [("unit", C.c_int32), ("nodes", C.c_int32), ("gradients", C.c_int32)]


_P, _I, _L, _D, _S = C.c_void_p, C.c_int, C.c_int64, C.c_double, C.c_char_p
_OUT = C.POINTER(C.c_void_p)

# Each function's arguments. Those that return a code raise it (see `call`).
_CODES = {
    "layout_json": [_S, _S, _OUT],
    "open": [C.POINTER(OpenOptions), _OUT],
    "session_layout_json": [_P, _OUT],
    "initialize": [_P, FILL, _P],
    "all_gather": [_P, _S, C.c_size_t, _P],
    "read_parameters": [_P, _I, READ, _P],
    "write_parameters": [_P, C.POINTER(C.c_int), C.c_size_t, FILL, _P],
    "read_moments": [_P, _I, _I, READ, _P],
    "progress_json": [_P, _OUT],
    "report": [_P, C.POINTER(_S), C.POINTER(C.c_double), C.c_size_t],
    "write_optimizer_state": [_P, _S, FILL, _P],
    "take_outside_window": [_OUT],
    "end_forward": [_P],
    "drop_gradients": [_P],
    "drop_unit_gradients": [_P, _I],
    "read_gradients": [_P, _I, READ, _P],
    "step": [_P, C.POINTER(StepOptions), C.POINTER(StepResult)],
    "clip_grad_norm": [_P, _D, _D, C.POINTER(StepOptions), C.POINTER(C.c_double)],
    "recover": [_P],
    "fail": [_P, _I, _S],
    "run_step": [_P, BODY, _P],
    "shards_open": [_P, _OUT],
    "shards_part": [_P, _I, C.POINTER(Part)],
    "shards_begin": [_P, C.POINTER(StepOptions), C.POINTER(StepResult)],
    "shards_commit": [_P],
    "tensors_add": [_P, C.POINTER(Tensor)],
    "tensors_get": [_P, C.c_size_t, C.POINTER(Tensor)],
    "set_trainer_tensors": [_P, C.POINTER(TrainerTensors)],
    "set_buffer_hooks": [_P, C.POINTER(BufferHooks)],
    "set_buffer": [_P, _I, _P, C.c_size_t],
    "get_buffer": [_P, _I, _OUT, C.POINTER(C.c_size_t), C.POINTER(C.c_int),
                   C.POINTER(C.c_uint64)],
    "restore_buffers": [_P],
    "resume_buffers": [_P],
    "save_model": [_P, _S, _L, _S],
    "load_model": [_P, _S, _I, _OUT],
    "save_checkpoint": [_P, _S, C.POINTER(CheckpointOptions)],
    "await_save": [_P],
    "make_requested_save": [_P, _S, C.c_size_t, _S],
    "load_checkpoint": [_P, _S, _I, _I, _OUT, _OUT, C.POINTER(C.c_size_t)],
    "live_read": [C.POINTER(LiveOptions), _P, _OUT],
    "units_new": [_P, C.POINTER(C.c_int), _I, _OUT],
    "units_begin_forward": [_P, _I, _OUT],
    "units_end_forward": [_P, _P, _I, C.POINTER(C.c_int)],
    "units_begin_backward": [_P, C.POINTER(UnitWork), C.c_size_t],
    "units_begin_node": [_P, _P],
    "units_end_node": [_P, _P],
    "units_gradients": [_P, _I, C.POINTER(Gradient), C.c_size_t],
    "units_end_backward": [_P, _I],
}
# Those that return something else: result, arguments.
_VALUES = {
    "version": (_S, []),
    "abi_version": (_I, []),
    "last_error": (_S, []),
    "set_error": (None, [_S]),
    "free": (None, [_P]),
    "close": (None, [_P]),
    "close_at_exit": (None, [_P]),
    "defer_requested_saves": (None, [_P]),
    "requested_save": (_I, [_P]),
    "rank": (_I, [_P]),
    "world_size": (_I, [_P]),
    "num_units": (_I, [_P]),
    "gpu": (_I, [_P]),
    "initialized": (_I, [_P]),
    "next_step": (_L, [_P]),
    "epoch": (_L, [_P]),
    "restart_required": (_I, [_P]),
    "num_writes": (_L, [_P]),
    "within_step": (_I, [_P]),
    "compute_dtype": (_I, [_P, _I]),
    "full_dtype": (_I, [_P, _I]),
    "closed": (_I, [_P, _I]),
    "parameter": (_P, [_P, _I, _I]),
    "on_outside_window": (None, [_P, _I]),
    "install_fault_handler": (None, []),
    "shards_close": (None, [_P]),
    "shards_size": (_I, [_P]),
    "shards_has_gradient": (_I, [_P, _I]),
    "tensors_new": (_P, []),
    "tensors_delete": (None, [_P]),
    "tensors_size": (C.c_size_t, [_P]),
    "units_delete": (None, [_P]),
    "units_abandon_forward": (None, [_P, _P]),
    "forward_delete": (None, [_P]),
    "units_in_backward": (_I, [_P]),
    "units_begin_step": (None, [_P]),
    "units_reads": (_I, [_P, _I]),
    "units_set_stream": (None, [_P, _P]),
    "units_set_reshard_after_forward": (None, [_P, _I, _I]),
    "units_set_sync": (_I, [_P, _I, _I]),
    "units_set_forward_prefetch": (None, [_P, _I, C.POINTER(C.c_int), C.c_size_t]),
    "units_set_backward_prefetch": (None, [_P, _I, C.POINTER(C.c_int), C.c_size_t]),
}


def _path() -> str:
    # For builds in the source tree; an installed package has it beside this file.
    given = os.environ.get("TESSERA_LIBRARY")
    if given:
        return given
    return str(pathlib.Path(__file__).parent / "lib" / "libtessera.so.0")


def raise_error(code: int) -> None:
    """What the newest call of this thread, which returned `code`, says."""
    raise errors.from_code(code, lib.last_error().decode("utf-8", "replace"))


class _Library:
    """`lib.next_step(session)` is tessera_next_step; failures are TesseraError.

    `lib.unchecked.step` returns its code instead, for callers that must save a call of Python.
    """

    def __init__(self):
        path = _path()
        try:
            loaded = C.CDLL(path)
        except OSError as error:
            raise ImportError(f"tessera: {path} cannot be loaded: {error}") from None
        # Before what another version may lack.
        loaded.tessera_abi_version.restype = C.c_int
        found = loaded.tessera_abi_version()
        if found != ABI_VERSION:
            raise ImportError(f"tessera: {path} has ABI {found}, and this package needs "
                              f"{ABI_VERSION}: install both of one version")
        self.unchecked = types.SimpleNamespace()
        for name, arguments in _CODES.items():
            function = getattr(loaded, "tessera_" + name)
            function.argtypes, function.restype = arguments, C.c_int
            setattr(self.unchecked, name, function)
            setattr(self, name, self._raising(function))
        for name, (result, arguments) in _VALUES.items():
            function = getattr(loaded, "tessera_" + name)
            function.argtypes, function.restype = arguments, result
            setattr(self, name, function)

    @staticmethod
    def _raising(function):
        def call(*arguments):
            code = function(*arguments)
            if code:
                raise_error(code)
        return call

    def text(self, function, *arguments) -> str:
        """The string that `function` returns through its last argument."""
        out = C.c_void_p()
        function(*arguments, C.byref(out))
        try:
            return C.string_at(out).decode("utf-8", "replace")
        finally:
            self.free(out)


lib = _Library()


class Callbacks:
    """Python functions as C callbacks. What one raises is kept, and raised by `check`."""

    def __init__(self):
        self.error: BaseException | None = None

    def wrap(self, function):
        def call(*arguments):
            try:
                function(*arguments)
                return 0
            except BaseException as error:  # pylint: disable=broad-except
                if self.error is None:
                    self.error = error
                text = str(error) or type(error).__name__
                lib.set_error(text.encode("utf-8", "replace"))
                return errors.code_of(error)
        return call

    def run(self, call):
        """Runs call(); a callback's exception takes the place of the error that it became."""
        try:
            result = call()
        except errors.TesseraError:
            if self.error is not None and not isinstance(self.error, errors.StepUndone):
                raise self.error from None
            raise
        if self.error is not None and not isinstance(self.error, errors.StepUndone):
            raise self.error
        return result
