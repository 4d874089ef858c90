"""The processes that train conformance_test's cases: for each number of ranks one family."""

from __future__ import annotations

import dataclasses
import datetime
import faulthandler
import multiprocessing
import os
import pathlib
import time
import traceback
from typing import Callable

import torch
import torch.distributed as dist

import tessera

_OTHERS_SECONDS = 120.0  # For a rank's wait for the others.


@dataclasses.dataclass(frozen=True)
class Work:
    """What each rank runs: function(rank) returns what torch.save can write."""

    name: str
    ranks: int
    function: Callable[[int], dict]


def _work(rank: int, ranks: int, works, worker: dict[str, str], folder: pathlib.Path) -> dict:
    """By name of the work, what it returned, or the text of its error."""
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=_OTHERS_SECONDS)
    store = dist.FileStore(str(folder / "rendezvous"), ranks)
    store.set_timeout(timeout)
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank,
                            world_size=ranks, timeout=timeout)
    tessera.init(coordinator=worker["TESSERA_COORDINATOR"], worker=worker["TESSERA_WORKER"],
                 rank=rank, world_size=ranks, timeouts={"operation": _OTHERS_SECONDS})
    found = {}
    for work in works:
        print(work.name, flush=True)
        try:
            found[work.name] = work.function(rank)
        except Exception:  # pylint: disable=broad-except
            found[work.name] = traceback.format_exc()
        # Where it failed on all ranks or on none, all are at the same place, and can go on.
        store.set(f"{work.name}/{rank}", str(isinstance(found[work.name], str)))
        if len({store.get(f"{work.name}/{other}") for other in range(ranks)}) > 1:
            break
    dist.destroy_process_group()
    return found


def _run(rank: int, ranks: int, works, worker: dict[str, str], folder: pathlib.Path,
         deadline: float) -> None:
    with open(folder / f"rank-{rank}.log", "w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        faulthandler.dump_traceback_later(max(1.0, deadline - time.monotonic() - 10), file=log)
        torch.save(_work(rank, ranks, works, worker, folder), folder / f"rank-{rank}.pt")
        faulthandler.cancel_dump_traceback_later()


def run_family(works: list[Work], workers: list[dict[str, str]], folder: pathlib.Path,
               deadline: float) -> dict[str, list]:
    """Forks a process for each rank, which does one work after the other.

    workers: of each rank, its addresses. deadline: of the monotonic clock; ranks that are not done
    then are killed. Returns of each work, by rank, what it returned, or the text of what went wrong.
    """
    folder.mkdir()
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=_run, args=(rank, len(workers), works, worker, folder, deadline))
        for rank, worker in enumerate(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    by_rank = [_of_rank(rank, works, folder) for rank in range(len(workers))]
    return {work.name: [found[work.name] for found in by_rank] for work in works}


def _of_rank(rank: int, works: list[Work], folder: pathlib.Path) -> dict:
    saved, log = folder / f"rank-{rank}.pt", folder / f"rank-{rank}.log"
    if saved.exists():
        found, why = torch.load(saved, weights_only=True), "a work before it failed on some ranks"
    else:
        found = {}
        why = f"its log ends:\n{log.read_text(errors='replace')[-3000:] if log.exists() else ''}"
    return {work.name: found.get(work.name, f"rank {rank} did not do '{work.name}': {why}")
            for work in works}
