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
    """Among the nodes of the step that srun started; None: not in one of several nodes.

    Errors: FAILED_PRECONDITION  not started once on each node; INVALID_ARGUMENT  a variable
    """
    if "SLURM_JOB_ID" not in os.environ or "SLURM_NODEID" not in os.environ:
        return None
    nnodes = _number("SLURM_STEP_NUM_NODES", "SLURM_NNODES")
    if nnodes == 1:
        return None
    # A batch script runs on the first node alone, and has no step.
    if "SLURM_STEP_NODELIST" not in os.environ:
        raise TesseraError(
            f"the Slurm job has {nnodes} nodes, and this was not started by srun: use `srun "
            "--ntasks-per-node=1 tessera run`, or --nnodes 1 for this node alone",
            "FAILED_PRECONDITION")
    tasks = _number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if tasks != nnodes:
        raise TesseraError(
            f"srun starts {tasks} tasks on {nnodes} nodes: `tessera run` starts the ranks of a "
            "node itself, so give srun --ntasks-per-node=1", "FAILED_PRECONDITION")
    nodes = node_names(os.environ["SLURM_STEP_NODELIST"])
    port = _FIRST_PORT + 2 * _number("SLURM_JOB_ID") % _PORTS
    return Place(nnodes, _number("SLURM_NODEID"), f"{nodes[0]}:{port}")


def _number(*names: str) -> int:
    name = next((name for name in names if name in os.environ), names[-1])
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        raise TesseraError(f"{name}={os.environ.get(name, '')!r} is not a number",
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
