"""load_model() of folders that torch.distributed.checkpoint (DCP) wrote: on 1, 2 and 3 ranks.

What is saved and loaded with the optimizer is in conformance_test.
"""

import functools
import importlib.util
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict, get_optimizer_state_dict, set_optimizer_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import tessera
from tessera import _cluster

import conformance_ranks
from conformance_cases import Block, Net, Small, Tied

_results: dict[str, list] = {}


def setUpModule():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder = tempfile.TemporaryDirectory(prefix="tessera-test-")
    unittest.addModuleCleanup(folder.cleanup)
    top, deadline = pathlib.Path(folder.name), time.monotonic() + 200.0
    (top / "cluster").mkdir()
    cluster = _cluster.Cluster(top / "cluster", 6)
    unittest.addModuleCleanup(cluster.stop)
    for ranks, names in ((2, ["save", "load", "refuse"]), (1, ["load", "refuse"]), (3, ["load"])):
        works = [conformance_ranks.Work(f"{name} {ranks}", ranks, functools.partial(
            globals()[f"_{name}"], folder=top)) for name in names]
        _results.update(conformance_ranks.run_family(
            works, [cluster.addresses()] * ranks, top / f"ranks-{ranks}", deadline))


def _seeded(kind, seed=1):
    torch.manual_seed(seed)
    return kind()


def _changed(kind):
    """A module with values that no seed makes, in its buffers too."""
    model = _seeded(kind, 7)
    for name, buffer in model.named_buffers():
        buffer.add_(len(name))
    return model


def _fsdp1():
    import warnings
    warnings.simplefilter("ignore")  # Of FSDP1 on CPUs.
    return FullyShardedDataParallel(
        _changed(Net), device_id=torch.device("cpu"), use_orig_params=True,
        auto_wrap_policy=lambda module, recurse, **_: recurse or isinstance(module, Block))


def _fsdp2(model, mesh=None):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _save(rank, folder):
    """Writes the folders that _load and _refuse read, on two ranks."""
    hybrid = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    states = {
        "fsdp1": get_model_state_dict(_fsdp1()),
        "fsdp2": _fsdp2(_changed(Net)).state_dict(),
        "replicas": _fsdp2(_changed(Net), hybrid).state_dict(),
        "bf16": get_model_state_dict(_fsdp2(_changed(Net).to(torch.bfloat16))),
        "small": _changed(Small).state_dict(),
        "tied": _fsdp2(_changed(Tied)).state_dict(),
        "nested": {"model": _fsdp2(_changed(Net)).state_dict()},
        "partly": {name: value for name, value in _fsdp2(_changed(Net)).state_dict().items()
                   if name not in ("blocks.0.up.bias", "head.weight", "seen")
                   and not name.startswith("blocks.2.")} | {"extra": torch.ones(2)},
        "integers": {"embed.weight": torch.ones(7, 5, dtype=torch.int64)},
        "other shape": {"embed.weight": torch.ones(5, 7)},
    }
    for name, state in states.items():
        dcp.save(state, checkpoint_id=str(folder / name))
    if rank == 0:
        _break(folder)
    dist.barrier()
    return {}


def _break(folder):
    """Folders with faults."""
    for name in ("cut", "hole", "lost", "no pickle", "two models"):
        shutil.copytree(folder / "fsdp2", folder / name)
    data = next((folder / "cut").glob("__1_*"))
    data.write_bytes(data.read_bytes()[:700])
    next((folder / "lost").glob("__1_*")).unlink()
    metadata = pickle.loads((folder / "hole" / ".metadata").read_bytes())
    metadata.state_dict_metadata["head.weight"].chunks.pop()
    (folder / "hole" / ".metadata").write_bytes(pickle.dumps(metadata))
    (folder / "no pickle" / ".metadata").write_bytes(b"not a pickle")
    (folder / "two models" / "model.safetensors").write_bytes(b"")


_jobs = iter(range(1, 1_000_000))


def _model(kind, ranks):
    return tessera.shard(_seeded(kind), Block, job=f"dcp-{ranks}-{next(_jobs)}")


def _load(rank, folder):
    """By folder, what the model has after a load, and what the load returned."""
    del rank
    found = {}
    for name, kind, strict in (("fsdp1", Net, True), ("fsdp2", Net, True), ("replicas", Net, True),
                               ("bf16", Net, True), ("small", Small, True), ("tied", Tied, True),
                               ("partly", Net, False), ("nested", Net, False)):
        model = _model(kind, dist.get_world_size())
        path = f"file://{folder / name}" if name == "fsdp1" else folder / name
        found[name] = {"returned": tessera.load_model(model, path, strict=strict),
                       "state": model.state_dict()}
        model.tessera.detach()
    with torch.device("meta"):
        model = _model(Net, dist.get_world_size())
    model.seen = torch.zeros(2, dtype=torch.int64)
    tessera.load_model(model, folder / "fsdp2")
    found["meta"] = {"state": model.state_dict()}
    model.tessera.detach()
    return found


def _refuse(rank, folder):
    """By folder, the error. The state of the model after all of them, and after a step."""
    model = _model(Net, dist.get_world_size())
    optimizer = tessera.AdamW(model, lr=0.01)
    before, errors = model.state_dict(), {}

    def attempt(name, path, **options):
        try:
            tessera.load_model(model, path, **options)
            errors[name] = "no error"
        except tessera.TesseraError as error:
            errors[name] = f"{error.code}: {error}"
        print(name, errors[name], flush=True)

    for name in ("nested", "partly", "other shape", "integers", "hole", "cut", "lost", "no pickle",
                 "two models", "absent"):
        attempt(name, folder / name)
    if dist.get_world_size() > 1:
        attempt("one rank sees another", folder / ("fsdp2" if rank == 0 else "bf16"))
        attempt("one rank sees none", folder / ("fsdp2" if rank == 0 else "absent"))
        attempt("one rank sees nonsense", folder / ("fsdp2" if rank == 0 else "no pickle"))
        attempt("one rank sees a file less", folder / ("fsdp2" if rank == 0 else "lost"))
        attempt("one rank is strict", folder / "fsdp2", strict=rank == 0)
        sharded = fully_shard(nn.Linear(4, 4))
        theirs = torch.optim.AdamW(sharded.parameters())
        try:
            set_optimizer_state_dict(model, optimizer, {
                "state": {name: {"exp_avg": next(iter(sharded.parameters()))}
                          for name, _ in model.named_parameters()},
                "param_groups": [{**get_optimizer_state_dict(sharded, theirs)["param_groups"][0],
                                  "params": [name for name, _ in model.named_parameters()]}]})
        except tessera.TesseraError as error:
            errors["dtensor"] = f"{error.code}: {error}"
    after = model.state_dict()
    optimizer.step(lambda: model(torch.ones(1, 5), 1, 0).sum().backward())
    model.tessera.detach()
    return {"errors": errors, "before": before, "after": after}


class Case(unittest.TestCase):
    def results_of(self, work):
        found = _results[work]
        for rank, of_rank in enumerate(found):
            if isinstance(of_rank, str):
                self.fail(f"rank {rank}: {of_rank}")
        return found

    def assert_state(self, actual, expected):
        self.assertEqual(list(actual), list(expected))
        for name, value in expected.items():
            self.assertTrue(torch.equal(actual[name], value), name)


class LoadTest(Case):
    def loaded(self):
        """(ranks, what _load returned) of each rank of each family."""
        self.results_of("save 2")
        for ranks in (1, 2, 3):
            for of_rank in self.results_of(f"load {ranks}"):
                yield ranks, of_rank

    def test_what_any_fsdp_saved_is_loaded_by_any_number_of_ranks_to_the_bit(self):
        for ranks, found in self.loaded():
            for name, kind in (("fsdp1", Net), ("fsdp2", Net), ("replicas", Net), ("small", Small),
                               ("tied", Tied)):
                with self.subTest(name, ranks=ranks):
                    self.assertEqual(found[name]["returned"], {"missing": [], "unexpected": []})
                    self.assert_state(found[name]["state"], _changed(kind).state_dict())

    def test_low_precision_is_widened(self):
        expected = {name: value.to(torch.bfloat16).to(value.dtype) if value.is_floating_point()
                    else value for name, value in _changed(Net).state_dict().items()}
        for _, found in self.loaded():
            self.assert_state(found["bf16"]["state"], expected)

    def test_a_model_on_the_meta_device_is_loaded(self):
        for _, found in self.loaded():
            self.assert_state(found["meta"]["state"], _changed(Net).state_dict())

    def test_what_is_not_there_stays_and_is_named(self):
        kept = _seeded(Net).state_dict()
        for _, found in self.loaded():
            self.assert_state(found["partly"]["state"], {
                name: kept[name] if name in ("blocks.0.up.bias", "head.weight", "seen")
                or name.startswith("blocks.2.") else value
                for name, value in _changed(Net).state_dict().items()})
            self.assertEqual(found["partly"]["returned"]["unexpected"], ["extra"])
            self.assertEqual(found["partly"]["returned"]["missing"], [
                "head.weight", "blocks.0.up.bias",
                *(name for name in kept if name.startswith("blocks.2.")), "seen"])
            self.assert_state(found["nested"]["state"], kept)
            self.assertEqual(sorted(found["nested"]["returned"]["missing"]), sorted(kept))
            self.assertEqual(found["nested"]["returned"]["unexpected"],
                             sorted(f"model.{name}" for name in kept))


# Before a program of docs/from-fsdp.md; and what each goes on with, or checks.
_PRELUDE = """
import os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import tessera
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict)
from torch.distributed.fsdp import fully_shard

class Block(nn.Linear):
    def __init__(self):
        super().__init__(5, 5)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(5, 3)
    def forward(self, x):
        return self.head(torch.tanh(self.blocks(x)))

def loss_of(model, step):
    return model(torch.ones(4, 5) * (step + 1)).square().mean()

torch.manual_seed(int(os.environ.get("TEST_SEED", "1")))
"""
_GOES_ON = """
for step in range(3, 5):
    loss_of(model, step).backward()
    opt.step()
    opt.zero_grad()
"""
_CHECKS = """
expected = torch.load("expected.pt")
actual = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
for name, value in expected.items():
    torch.testing.assert_close(actual[name], value, rtol=0.0, atol=2e-5)
print(f"alike {len(expected)}\\n", end="", flush=True)  # In one piece.
"""
_SAVES = """
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
if dist.get_rank() == 0:
    torch.save(state, "expected.pt")
"""
_CONTINUES_FROM_5 = """
dist.init_process_group("gloo")
model = fully_shard(Model())
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
model_state, optim_state = get_state_dict(model, opt)
state = {"model": model_state, "optim": optim_state}
dcp.load(state, checkpoint_id="checkpoint-5")
set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["optim"])
assert {int(entry["step"]) for entry in opt.state.values()} == {5}
dist.destroy_process_group()
"""
_CONVERTS = """
import json
import torch.distributed.checkpoint.format_utils
import safetensors.torch
"""


def _before_end(program, added):
    *most, end = program.splitlines(keepends=True)
    assert end == "dist.destroy_process_group()\n", end
    return "".join(most) + added + end


class GuideTest(unittest.TestCase):
    def test_the_programs_of_the_documents_run(self):
        docs = pathlib.Path(os.path.realpath(__file__)).parents[3] / "docs"
        if not docs.exists():
            self.skipTest("docs/ is not here")
        programs = dict(match for page in ("from-fsdp.md", "formats/stored_models.md")
                        for match in re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```",
                                                (docs / page).read_text(), re.DOTALL))
        self.assertEqual(set(programs), {"fsdp2", "tessera", "convert"})
        torchs = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        with tempfile.TemporaryDirectory(prefix="tessera-test-") as folder:
            self.run_program(folder, torchs, _before_end(programs["fsdp2"], _GOES_ON + _SAVES))
            said = self.run_program(folder, ["tessera.run", "-n", "3"],
                                    _before_end(programs["tessera"], _CHECKS), TEST_SEED="2")
            self.assertEqual(said.count("alike 6"), 3, said)
            said = self.run_program(folder, torchs, _before_end(_CONTINUES_FROM_5, _CHECKS))
            self.assertEqual(said.count("alike 6"), 2, said)
            if importlib.util.find_spec("safetensors"):
                self.run_program(folder, [], _CONVERTS + programs["convert"] + """
model = tessera.shard(Model(), units=Block)
print(tessera.load_model(model, "model.safetensors"))
state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
dcp.load({"model": state}, checkpoint_id="checkpoint")
for name, value in model.state_dict().items():
    assert torch.equal(value, state[name]), name
""")

    def run_program(self, folder, launcher, program, **environment):
        script = pathlib.Path(folder) / "program.py"
        script.write_text(_PRELUDE + program)
        process = subprocess.run(
            [sys.executable, *(["-m", *launcher] if launcher else []), str(script)], cwd=folder,
            env={**os.environ, "TMPDIR": folder, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150, check=False)
        self.assertEqual(process.returncode, 0, process.stdout)
        return process.stdout


class RefusalTest(Case):
    said = {
        "nested": ["INVALID_ARGUMENT", "it lacks 'embed.weight', 'embed.bias', 'head.weight'",
                   "and 11 more", "it has them under the key 'model'",
                   "the model lacks 'model.blocks.0.down.bias'"],
        "partly": ["INVALID_ARGUMENT", "it lacks 'head.weight', 'blocks.0.up.bias'",
                   "the model lacks 'extra'"],
        "other shape": ["INVALID_ARGUMENT", "tensor 'embed.weight' has shape (5, 7), and the "
                        "parameter has (7, 5)"],
        "integers": ["INVALID_ARGUMENT", "tensor 'embed.weight' is torch.int64, and the parameter "
                     "is torch.float32"],
        "hole": ["DATA_LOSS", "/hole: of tensor 'head.weight' 14 elements are stored, and it has 21"],
        "cut": ["DATA_LOSS", "/cut: tensor '"],
        "lost": ["NOT_FOUND", "/lost: tensor '", "__1_0.distcp"],
        "no pickle": ["DATA_LOSS", "/no pickle/.metadata: "],
        "two models": ["INVALID_ARGUMENT", "holds more than one model"],
        "absent": ["NOT_FOUND", "/absent"],
        "one rank sees another": ["FAILED_PRECONDITION", "rank 1 sees another model than rank 0"],
        "one rank sees none": ["FAILED_PRECONDITION", "rank 1 sees another model than rank 0"],
        "one rank sees nonsense": ["DATA_LOSS", "/no pickle/.metadata: "],
        "one rank sees a file less": ["NOT_FOUND", "/lost: tensor '", "__1_0.distcp"],
        "one rank is strict": ["FAILED_PRECONDITION", "rank 1 sees another model than rank 0, or "
                               "loads it otherwise"],
        "dtensor": ["INVALID_ARGUMENT", "is a DTensor: get the state with "
                    "StateDictOptions(full_state_dict=True)"],
    }

    def test_what_does_not_fit_is_every_ranks_error_by_name_and_nothing_is_loaded(self):
        self.results_of("save 2")
        for ranks in (1, 2):
            for rank, found in enumerate(self.results_of(f"refuse {ranks}")):
                self.assertEqual(len(found["errors"]), 10 if ranks == 1 else len(self.said))
                for name, error in found["errors"].items():
                    for text in self.said[name]:
                        with self.subTest(name, rank=rank, ranks=ranks):
                            self.assertIn(text, error)
                self.assert_state(found["after"], found["before"])


if __name__ == "__main__":
    unittest.main()
