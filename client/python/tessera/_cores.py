"""The cores that a launcher's trainers share."""

from __future__ import annotations

import math
import os
import pathlib

_CGROUPS = pathlib.Path("/sys/fs/cgroup")  # Where those of version 2 are.
_CPUS = pathlib.Path("/sys/devices/system/cpu")


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def quota(membership: str, cgroups: pathlib.Path) -> float:
    """Cores' worth of time that a process may use, by its /proc/PID/cgroup. Infinite: no limit."""
    least = math.inf
    own = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), None)
    if own is None:
        return least
    folder = cgroups / own.lstrip("/")
    for each in (folder, *folder.parents):
        used, _, period = _read(each / "cpu.max").partition(" ")
        if used.isdigit() and period.isdigit():
            least = min(least, int(used) / int(period))
        if each == cgroups:
            break
    return least


def count() -> int:
    """Whole cores for this process and its children: by its affinity and its cgroups' quota."""
    # Two hardware threads of one core compute hardly faster than one.
    cores = {_read(_CPUS / f"cpu{cpu}/topology/thread_siblings_list") or cpu
             for cpu in os.sched_getaffinity(0)}
    membership = _read(pathlib.Path("/proc/self/cgroup"))
    return max(1, math.floor(min(len(cores), quota(membership, _CGROUPS))))


def environment(local_ranks: int) -> dict[str, str]:
    """Variables of trainers that share this node, but for those that are set already."""
    # Of its own accord each of PyTorch's processes computes on all cores, and waits by spinning.
    threads = {"OMP_NUM_THREADS": str(max(1, count() // local_ranks))}
    return {name: value for name, value in threads.items() if name not in os.environ}
