"""Saves and loads as many bytes as the benchmark's checkpoints have, as users of PyTorch do.

    checkpoint_peer.py RANKS FOLDER TENSORS NUMEL

RANKS processes; each line on stdin is one of COMMANDS, each answer on stdout a line
"SECONDS CPU_NANOSECONDS PEAK_BYTES": how long it took, what all processes have used of the
processors up to now, and by how much they grew at the most meanwhile. What is saved is on disk
when the clock stops. Ends with stdin. FOLDER is empty before.
"""

import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def memory_bytes(key):
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


class Peer:
    """One rank. Rank 0 has the gathered state, and all a shard of it each."""

    def __init__(self, rank, size, folder, tensors, numel):
        self.rank = rank
        self.folder = folder
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size
        )
        mesh = init_device_mesh("cpu", (size,))
        names = [f"t{i}" for i in range(tensors)]
        self.shards = {
            name: DTensor.from_local(torch.ones(numel // size), mesh, [Shard(0)]) for name in names
        }
        self.gathered = {name: torch.ones(numel) for name in names} if rank == 0 else {}

    def path(self, name):
        return f"{self.folder}/{name}"

    def take(self, loaded):
        """Into the tensors that there are, as a module's are."""
        for name, tensor in self.gathered.items():
            tensor.copy_(loaded[name])

    # Each is called on all ranks.

    def save_file(self):
        if self.rank == 0:
            save_file(self.gathered, self.path("st"))
            sync(self.path("st"))

    def load_file(self):
        if self.rank == 0:
            self.take(load_file(self.path("st")))  # It maps the file, and reads nothing yet.

    def torch_save(self):
        if self.rank == 0:
            torch.save(self.gathered, self.path("pt"))
            sync(self.path("pt"))

    def torch_load(self):
        if self.rank == 0:
            self.take(torch.load(self.path("pt"), weights_only=True))

    def dcp_save(self):  # Its writer syncs files by itself.
        dcp.save(self.shards, checkpoint_id=self.path("dcp"))

    def dcp_load(self):
        dcp.load(self.shards, checkpoint_id=self.path("dcp"))

    def remove(self):
        if self.rank == 0:
            for name in ("st", "pt"):
                if os.path.exists(self.path(name)):
                    os.remove(self.path(name))
            shutil.rmtree(self.path("dcp"), ignore_errors=True)

    def run(self, command):
        dist.barrier()
        with open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
            peak.write("5")
        before = memory_bytes("VmRSS")
        start = time.monotonic()
        getattr(self, command)()
        dist.barrier()
        seconds = time.monotonic() - start
        sums = torch.tensor([time.process_time_ns(), memory_bytes("VmHWM") - before])
        dist.all_reduce(sums)
        return seconds, int(sums[0]), int(sums[1])


COMMANDS = ("save_file", "load_file", "torch_save", "torch_load", "dcp_save", "dcp_load", "remove")


def main():
    size, folder = int(sys.argv[1]), sys.argv[2]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Gloo tells about itself on stdout.
    rank = 0
    for other in range(1, size):
        if os.fork() == 0:
            rank = other
            break
    torch.set_num_threads(1)
    peer = Peer(rank, size, folder, int(sys.argv[3]), int(sys.argv[4]))
    while True:
        command = [sys.stdin.readline().strip()] if rank == 0 else [None]
        dist.broadcast_object_list(command, src=0)
        if not command[0]:
            break
        if command[0] not in COMMANDS:
            raise ValueError(f"no command {command[0]!r}")
        seconds, cpu_ns, peak_bytes = peer.run(command[0])
        if rank == 0:
            print(seconds, cpu_ns, peak_bytes, file=answers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
