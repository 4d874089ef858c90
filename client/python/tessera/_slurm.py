"""What srun says about the node that this process was started on."""

from __future__ import annotations

import dataclasses
import os
import re

from .errors import TesseraError

# Below the ports that the kernel gives out, and two for each job.
_FIRST_PORT, _PORTS = 20000, 12000
_SPAN = r"\d+(-\d+)?"
_NAME = rf"([^\s,\[\]]|\[{_SPAN}(,{_SPAN})*\])+"


@dataclasses.dataclass(frozen=True)
class Place:
    nnodes: int
    node_rank: int
    rendezvous: str


def place() -> Place | None:
    """Of the step that srun started, or else of the job; None: not in one, or on one node.

    Errors: FAILED_PRECONDITION  more than one launcher on a node; INVALID_ARGUMENT  a variable
    """
    if not all(name in os.environ for name in ("SLURM_JOB_ID", "SLURM_NODEID", "SLURM_NNODES")):
        return None
    nnodes = _number("SLURM_STEP_NUM_NODES", "SLURM_NNODES")
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS")
    in_step = "SLURM_STEP_NODELIST" in os.environ
    if in_step and tasks is not None and int(tasks) != nnodes:
        raise TesseraError(
            f"srun starts {tasks} tasks on {nnodes} nodes: `tessera run` starts the ranks of a "
            "node itself, so give srun --ntasks-per-node=1", "FAILED_PRECONDITION")
    if nnodes == 1:
        return None
    nodes = node_names(os.environ.get("SLURM_STEP_NODELIST") or
                       os.environ.get("SLURM_JOB_NODELIST", ""))
    port = _FIRST_PORT + 2 * _number("SLURM_JOB_ID") % _PORTS
    return Place(nnodes, _number("SLURM_NODEID"), f"{nodes[0]}:{port}")


def _number(*names: str) -> int:
    name = next(name for name in names if name in os.environ)
    try:
        return int(os.environ[name])
    except ValueError:
        raise TesseraError(f"{name}={os.environ[name]!r} is not a number",
                           "INVALID_ARGUMENT") from None


def node_names(text: str) -> list[str]:
    """"n[1-3,7],b" is n1, n2, n3, n7, b. Errors: INVALID_ARGUMENT  not such a list"""
    if not re.fullmatch(f"{_NAME}(,{_NAME})*", text):
        raise TesseraError(f"{text!r} is not a list of nodes as Slurm writes it",
                           "INVALID_ARGUMENT")
    return [name for part in re.finditer(_NAME, text) for name in _expanded(part[0])]


def _expanded(part: str) -> list[str]:
    found = re.search(r"\[([\d,-]+)\]", part)
    if found is None:
        return [part]
    numbers = []
    for span in found[1].split(","):
        first, _, last = span.partition("-")
        numbers += [str(number).zfill(len(first))
                    for number in range(int(first), int(last or first) + 1)]
    return [name for number in numbers
            for name in _expanded(part[:found.start()] + number + part[found.end():])]
