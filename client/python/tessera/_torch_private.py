"""Every private call of torch that this package makes. Tested with the torch of docs/python.md."""

from __future__ import annotations

import contextlib
import gc

import torch
from torch.autograd import Variable
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


# () -> a number of the backward that runs on this thread; -1: none does.
backward_id = torch._C._current_graph_task_id


def queue_end_of_backward(callback) -> None:
    """Runs `callback` when the backward under way on this thread has ended without an error."""
    Variable._execution_engine.queue_callback(callback)


def view_base(tensor: torch.Tensor):
    """The tensor that `tensor` is a view of, or None."""
    return tensor._base if tensor._is_view() else None


def storage_at(address: int, size_bytes: int, device: torch.device) -> torch.UntypedStorage:
    """Over memory that is somebody else's. Those of torch.frombuffer and torch.as_tensor take the
    interpreter's lock when they go: a graph that a failed backward leaves goes after the interpreter,
    and the process would never end."""
    return torch._C._construct_storage_from_data_pointer(address, device, size_bytes)


def name_in_state_dict(name: str) -> str:
    """Of a parameter or buffer: without the levels of checkpoint_wrapper(), as state_dict() has it."""
    return name.replace("_checkpoint_wrapped_module.", "")


def holders(module: torch.nn.Module) -> tuple[dict, dict]:
    """Where `module` has its own parameters and modules."""
    return module._parameters, module._modules


def schedulers_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.lr_scheduler.LRScheduler]:
    """LR schedulers know their optimizer, and it does not know them: all objects are looked at."""
    return [found for found in gc.get_objects()
            if issubclass(type(found), torch.optim.lr_scheduler.LRScheduler)
            and getattr(found, "optimizer", None) is optimizer]


def note_steps_before(optimizer: torch.optim.Optimizer) -> None:
    """So that LR schedulers that are brought to its step do not warn that they come before it."""
    optimizer._opt_called = True


def watches_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a profiler runs, or somebody has registered hooks of steps."""
    return bool(is_profiling() or optimizer._optimizer_step_pre_hooks
                or optimizer._optimizer_step_post_hooks or _global_optimizer_pre_hooks
                or _global_optimizer_post_hooks)


def non_persistent_buffers(module: torch.nn.Module) -> set[str]:
    return module._non_persistent_buffers_set


def register_state_dict_hook(module: torch.nn.Module, hook) -> None:
    """hook(module, state_dict, prefix, local_metadata), after the module's own; public since 2.5."""
    module._register_state_dict_hook(hook)


# Of MultiheadAttention, which computes with their parameters without calling them.
WITHOUT_FORWARD = torch.nn.modules.linear.NonDynamicallyQuantizableLinear

is_profiling = torch._C._autograd._profiler_enabled
_NO_RANGE = contextlib.nullcontext()


def profiler_range(what: str, unit: str):
    """A range of torch's profiler, or of NVTX by emit_nvtx(); nothing while nobody profiles."""
    if not is_profiling():
        return _NO_RANGE
    return torch.profiler.record_function(f"tessera::{what} ({unit or 'root'})")


def replace_apply(module: torch.nn.Module, function) -> None:
    """to(), cuda(), half() and the like of `module` call function(convert, ...)."""
    module._apply = function


def apply(module: torch.nn.Module, *args, **kwargs) -> torch.nn.Module:
    """What replace_apply() has replaced."""
    return type(module)._apply(module, *args, **kwargs)


# Without these torch.compile would trace hooks, which talk to other processes.
torch._dynamo.trace_rules.add(__package__)
# Else code that was compiled for a module without our hooks is run for one that has them.
torch._dynamo.config.skip_nnmodule_hook_guards = False

# () -> what compiles the functions that are called next on this thread, or None; since 2.6.
_compiler = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: False)


def without_compiling(hook):
    """The same hook, but what it calls in other packages is not compiled either. Hooks of backward go
    without it: they call this package, C, and of torch's Python code current_stream() and profilers.
    """
    disabled = torch._dynamo.disable(hook)

    def call(*args):
        # Where nothing would be compiled, as in most calls, the microseconds of `disabled` are saved.
        return hook(*args) if _compiler() is None else disabled(*args)

    return call
