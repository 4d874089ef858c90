"""Several ranks, each a process: beside one plain module, and through the death of a process."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch

from tessera import _cluster

_TRAINER = pathlib.Path(__file__).parent / "trainer.py"
_STEPS = 12


def start(rank, world_size, addresses, out, *, steps=_STEPS, stop_at=0):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size), **addresses}
    return subprocess.Popen(
        [sys.executable, "-u", str(_TRAINER), str(out), str(steps), str(stop_at)], env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class RanksTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="tessera-test-")
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name)
        self.processes = []
        self.addCleanup(self.kill_all)

    def kill_all(self):
        for process in self.processes:
            process.kill()
            process.communicate()

    def cluster(self, name, ranks):
        folder = self.folder / name
        folder.mkdir()
        cluster = _cluster.Cluster(folder, ranks)
        self.addCleanup(cluster.stop)
        return {**cluster.addresses(), "TESSERA_JOB": "ranks"}

    def start(self, *args, **kwargs):
        process = start(*args, **kwargs)
        self.processes.append(process)
        return process

    def finish(self, process):
        try:
            output, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            self.fail(f"a trainer did not end: {process.communicate()[0]}")
        self.assertEqual(process.returncode, 0, output)
        return output

    def train(self, world_size, name):
        addresses = self.cluster(name, world_size)
        out = self.folder / f"{name}.pt"
        for process in [self.start(r, world_size, addresses, out) for r in range(world_size)]:
            self.finish(process)
        return torch.load(out)

    def test_ranks_train_as_one_plain_module_on_all_batches(self):
        import trainer
        for world_size in (2, 3):
            with self.subTest(world_size):
                plain = trainer.train_plain(world_size, _STEPS)
                sharded = self.train(world_size, f"w{world_size}")
                for key, value in plain.items():
                    torch.testing.assert_close(sharded[key], value, rtol=1e-5, atol=1e-5)

    def test_a_killed_trainer_is_replaced_to_the_bit(self):
        undisturbed = self.train(2, "undisturbed")
        addresses, out = self.cluster("killed", 2), self.folder / "killed.pt"
        survivor = self.start(0, 2, addresses, out)
        victim = self.start(1, 2, addresses, out, stop_at=5)
        # It says so in the middle of step 5, and stops there.
        for line in victim.stdout:
            if line.startswith("stopped"):
                break
        victim.send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        victim.wait()
        replacement = self.start(1, 2, addresses, out)
        output = self.finish(survivor)
        self.finish(replacement)
        self.assertLess(time.monotonic() - killed_at, 60)
        self.assertIn("redone", output)
        for key, value in torch.load(out).items():
            self.assertTrue(torch.equal(value, undisturbed[key]), key)

    def test_a_killed_trainer_whose_child_lives_is_replaced(self):
        undisturbed = self.train(2, "childless")
        addresses, out = self.cluster("parent", 2), self.folder / "parent.pt"
        survivor = self.start(0, 2, addresses, out)
        victim = self.start(1, 2, {**addresses, "TEST_FORKS": "1"}, out, stop_at=5)
        child = None
        for line in victim.stdout:
            if line.startswith("child"):
                child = int(line.split()[1])
            if line.startswith("stopped"):
                break
        self.addCleanup(os.kill, child, signal.SIGKILL)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        # It has the socket's number of the trainer until it ends.
        replacement = self.start(1, 2, addresses, out)
        self.finish(survivor)
        self.finish(replacement)
        os.kill(child, 0)
        for key, value in torch.load(out).items():
            self.assertTrue(torch.equal(value, undisturbed[key]), key)

    def test_a_trainer_that_is_replaced_takes_over_the_gradients_scale(self):
        addresses = {**self.cluster("scale", 2), "TEST_SCALER": "1"}
        out = self.folder / "scale.pt"
        survivor = self.start(0, 2, addresses, out)
        victim = self.start(1, 2, addresses, out, stop_at=5)
        for line in victim.stdout:
            if line.startswith("stopped"):
                break
        victim.kill()
        victim.wait()
        replacement = self.start(1, 2, addresses, out)
        for process in (survivor, replacement):
            # 12 steps, and twice as large after every second one.
            self.assertIn(f"scale {2.0 ** 16}", self.finish(process))

    def test_an_error_of_one_rank_is_every_ranks(self):
        addresses, out = self.cluster("error", 2), self.folder / "error.pt"
        first = self.start(0, 2, addresses, out)
        second = self.start(1, 2, addresses, out, stop_at=-3)
        output, _ = second.communicate(timeout=120)
        self.assertIn("ValueError: bad batch", output)
        output, _ = first.communicate(timeout=120)
        self.assertNotEqual(first.returncode, 0)
        self.assertIn("bad batch", output)
        self.assertIn("rank 1", output)

    def tessera(self, addresses, *arguments):
        command = [os.path.join(os.environ["TESSERA_PROGRAMS"], "tessera"), *arguments,
                   "--coordinator", addresses["TESSERA_COORDINATOR"]]
        return subprocess.run(command, check=True, capture_output=True, text=True,
                              timeout=60).stdout

    def await_completion(self, addresses, step):
        deadline = time.monotonic() + 60
        while True:
            job = json.loads(self.tessera(addresses, "jobs", "--json"))["jobs"][0]
            if job["state"] == "COMPLETED":
                self.assertEqual(job["committed_step"], step)
                return
            self.assertLess(time.monotonic(), deadline, job)

    def test_only_an_orderly_end_completes_the_job(self):
        script = self.folder / "ends.py"
        script.write_text("""
import sys, torch, tessera
steps, end = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(3, 1))
opt = tessera.SGD(model, lr=0.1)

def closure():
    if model.tessera.next_step > steps:
        raise ValueError("bad batch")
    loss = model(torch.ones(2, 3)).square().mean()
    loss.backward()
    return loss

try:
    while model.tessera.next_step <= steps:
        opt.step(closure)
    if end in ("in_step", "caught"):
        opt.step(closure)
except (ValueError, tessera.TesseraError):
    # A slower rank may learn of the other's error while it still waits in the step before.
    if end != "caught":
        raise
if end == "raise":
    raise ValueError("bad evaluation")
sys.exit(3 if end == "exit" else 0)
""")
        addresses = self.cluster("ends", 2)

        def run(steps, end):
            processes = [subprocess.Popen(
                [sys.executable, script, str(steps), end], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, **addresses, "RANK": str(rank), "WORLD_SIZE": "2"})
                for rank in range(2)]
            self.processes += processes
            return [(p.communicate(timeout=120)[0], p.returncode) for p in processes]

        for step, (end, status) in enumerate(
                (("raise", 1), ("exit", 3), ("caught", 0), ("in_step", 1)), start=1):
            with self.subTest(end):
                ended = run(step, end)
                self.assertEqual([code for _, code in ended], [status] * 2, ended)
        ended = run(5, "well")
        self.assertEqual([code for _, code in ended], [0, 0], ended)
        self.await_completion(addresses, 5)
        # The next trainers came to a job that was not completed, each time.
        self.assertEqual(self.tessera(addresses, "events").count("COMPLETED"), 1)

    def test_a_checkpoint_that_was_requested_continues_to_the_bit(self):
        script = self.folder / "requested.py"
        script.write_text("""
import pathlib, sys, threading, torch, tessera
from torch import nn
folder, out, checkpoint = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
STEPS = 300

class Loader:  # As torchdata's: with a position.
    def __init__(self):
        self.at = 0
    def __iter__(self):
        while self.at < STEPS:
            self.at += 1
            yield self.at
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]

class Average:
    def __init__(self):
        self.value = 0.0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
model = tessera.shard(model, nn.Linear)
opt = tessera.AdamW(model, param_groups=[
    {"params": list(model[0].parameters()), "lr": 1e-2},
    {"params": list(model[2].parameters()), "lr": 1e-3, "weight_decay": 0.0}])
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
loader, average = Loader(), Average()
for name, state in dict(scheduler=scheduler, loader=loader, average=average).items():
    tessera.register_state(name, state, model)
torch.manual_seed(100 + model.tessera.rank)
if checkpoint:
    assert 3 < tessera.load(model, checkpoint[0])["step"] < STEPS
for batch in loader:
    def closure():
        x = torch.randn(5, 4) + batch
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss
    loss = opt.step(closure)
    scheduler.step()
    opt.zero_grad()
    average.value = 0.9 * average.value + 0.1 * loss.item()
    if model.tessera.next_step == 4 and not checkpoint:
        print("waits", flush=True)
        while not (folder / "go").exists():
            threading.Event().wait(0.01)
state = {"model": model.state_dict(), "opt": opt.state_dict(), "average": average.value}
torch.save(state, f"{out}.{model.tessera.rank}")
""")

        def start(addresses, *arguments):
            self.processes += (started := [subprocess.Popen(
                [sys.executable, script, self.folder, *arguments], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, **addresses, "RANK": str(rank), "WORLD_SIZE": "2"})
                for rank in range(2)])
            return started

        addresses = self.cluster("requested", 2)
        trainers = start(addresses, self.folder / "disturbed")
        for trainer in trainers:
            self.assertIn("waits", trainer.stdout.readline())
        checkpoint = self.folder / "checkpoint"
        self.tessera(addresses, "save", "--job", "ranks", "--to", checkpoint, "--no-wait")
        (self.folder / "go").touch()
        for trainer in trainers:
            self.finish(trainer)
        for out, given in (("undisturbed", []), ("resumed", [checkpoint])):
            for trainer in start(self.cluster(out, 2), self.folder / out, *given):
                self.finish(trainer)
        for rank in range(2):
            disturbed, undisturbed, resumed = (torch.load(self.folder / f"{out}.{rank}") for out in (
                "disturbed", "undisturbed", "resumed"))
            for found in (disturbed, resumed):
                self.assertEqual(found["average"], undisturbed["average"])
                self.assertEqual(found["opt"]["param_groups"], undisturbed["opt"]["param_groups"])
                for key, value in undisturbed["model"].items():
                    self.assertTrue(torch.equal(found["model"][key], value), key)
                for number, entry in undisturbed["opt"]["state"].items():
                    for key, value in entry.items():
                        self.assertTrue(torch.equal(found["opt"]["state"][number][key], value))

    def test_torchruns_variables_are_enough(self):
        out = self.folder / "torchrun.pt"
        environment = {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "12345",
                       "TORCHELASTIC_RUN_ID": self.folder.name}
        processes = [self.start(rank, 2, {**environment, "LOCAL_RANK": str(rank)}, out)
                     for rank in range(2)]
        for process in processes:
            self.finish(process)
        import trainer
        for key, value in trainer.train_plain(2, _STEPS).items():
            torch.testing.assert_close(torch.load(out)[key], value, rtol=1e-5, atol=1e-5)

    def test_timeouts_are_the_sessions(self):
        addresses = self.cluster("timeouts", 2)
        script = self.folder / "alone.py"
        script.write_text("""
import torch, tessera
tessera.init(timeouts={"attach": 30, "operation": 0.5})
tessera.SGD(tessera.shard(torch.nn.Linear(2, 2)))
""")
        process = subprocess.run(
            [sys.executable, script], env={**os.environ, **addresses, "RANK": "0",
                                           "WORLD_SIZE": "2"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False)
        # Long before the ten minutes that it waits otherwise.
        self.assertIn("waited too long", process.stderr)
        self.assertIn("rank 1 has no trainer", process.stderr)

    def test_a_job_undoes_no_step_before_its_trainers_have_waited_long_enough(self):
        script = self.folder / "timeouts.py"
        script.write_text("""
import subprocess, sys, torch, tessera
from tessera._daemons import programs_folder
tessera.init(timeouts={"operation": float(sys.argv[1])} if sys.argv[1] else {})
models = [tessera.shard(torch.nn.Linear(2, 2), job=f"model{i}") for i in range(int(sys.argv[2]))]
tessera.SGD(models[0])
print(subprocess.check_output([programs_folder() / "tessera", "dump", "model0", "--coordinator",
                               models[0].tessera._context.coordinator], text=True))
""")
        # With several models the end of such a wait may be the only way on.
        for operation, models, milliseconds in (("", 1, 660_000), ("100", 1, 160_000),
                                                ("100", 2, 160_000), ("", 2, 120_000),
                                                ("1e9", 1, 7 * 86_400_000)):
            with self.subTest(operation=operation, models=models):
                output = subprocess.check_output(
                    [sys.executable, script, operation, str(models)], stdin=subprocess.DEVNULL,
                    text=True, timeout=100)
                self.assertIn(f"collective_timeout_ms: {milliseconds}\n", output)

    def run_script(self, name, script, world_size=2):
        """Ranks of it, in a cluster of their own."""
        path = self.folder / f"{name}.py"
        path.write_text(script)
        addresses = self.cluster(name, world_size)
        self.processes += [subprocess.Popen(
            [sys.executable, path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **addresses, "RANK": str(rank), "WORLD_SIZE": str(world_size)})
            for rank in range(world_size)]
        return self.processes[-world_size:]

    def test_a_rank_that_has_left_is_named_by_those_that_still_call(self):
        for what, call in (("state", "model.state_dict()"), ("step", "step()")):
            with self.subTest(call):
                left, other = self.run_script(what, f"""
import torch, tessera
tessera.init(timeouts={{"operation": 2.0}})
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(2, 2))
opt = tessera.SGD(model)
def step():
    model(torch.ones(1, 2)).sum().backward()
    opt.step()
step()
if model.tessera.rank == 0:
    {call}
""")
                output, _ = left.communicate(timeout=120)
                self.finish(other)
                self.assertEqual(left.returncode, 1, output)
                self.assertRegex(output,
                                 "TesseraError: waited too long for .*: rank 1 has no trainer")

    def test_ranks_that_the_saved_job_did_not_have_continue_its_schedule(self):
        for world_size in (2, 4):
            for process in self.run_script(f"of{world_size}", f"""
import os, torch, tessera
tessera.init()
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(4, 4))
opt = tessera.SGD(model, lr=0.1)
class Loader:
    taken = 0
    def __iter__(self): yield
    def state_dict(self): return {{"taken": self.taken}}
    def load_state_dict(self, state): self.taken = state["taken"]
loader = Loader()
scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
late = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(1, 1))
tessera.register_state("scheduler", scheduler, model)
tessera.register_state("loader", loader, model)
rank = model.tessera.rank
def step():
    model(torch.ones(1, 4)).sum().backward()
    opt.step()
    scheduler.step()
if {world_size} == 2:
    tessera.register_state("late", late, model)
    for _ in range(3):
        step()
    loader.taken = 3
    late.n_averaged += 5
else:
    tessera.load(model, {str(self.folder / "saved")!r})
    assert scheduler.last_epoch == 3 and opt.param_groups[0]["lr"] == 0.0125, scheduler.state_dict()
    assert loader.taken == (3 if rank < 2 else 0), loader.taken
    tessera.register_state("late", late, model)
    assert late.n_averaged == 5
    step()
tessera.save(model, {str(self.folder / "saved")!r})
""", world_size):
                self.finish(process)

    def test_a_rank_evaluates_alone_where_parameters_are_summoned(self):
        for process in self.run_script("alone", """
import torch, tessera
tessera.init()
torch.manual_seed(1)
plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
model = tessera.shard(torch.nn.Sequential(*plain), units=torch.nn.Linear)
opt = tessera.SGD(model, lr=0.1)
for i in range(3):
    model(torch.full((2, 4), i + 1.0)).sum().backward()
    opt.step()
    values = model.state_dict()
    with torch.no_grad(), model.tessera.summon_full_params(writeback=False):
        if model.tessera.rank == 0:
            found = [model(torch.full((1, 4), float(j))) for j in range(i + 1)]
    if model.tessera.rank == 0:
        other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
        other.load_state_dict(values)
        assert all(torch.equal(y, other(torch.full((1, 4), float(j)))) for j, y in enumerate(found))
"""):
            self.finish(process)

    def test_several_nodes_need_addresses(self):
        environment = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        process = self.start(0, 2, environment, self.folder / "none.pt")
        output, _ = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("TESSERA_COORDINATOR", output)


if __name__ == "__main__":
    unittest.main()
