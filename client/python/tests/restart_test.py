"""Trainers that are killed, and that `tessera run` starts again."""

import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

import torch

from command_case import TRAINER, CommandCase, descendants_with, run
from tessera._daemons import programs_folder


class RestartTest(CommandCase):
    def test_a_killed_trainer_is_started_again_to_the_bit(self):
        undisturbed, killed = self.folder / "undisturbed.pt", self.folder / "killed.pt"
        self.finish(run("-n", 2, TRAINER, undisturbed, 6, 0, env=self.environment))
        # Once: the mark is there for its successor.
        script = self.script(
            "import os, pathlib, signal, sys\n"
            f"sys.path.insert(0, {str(TRAINER.parent)!r})\n"
            "import trainer\n"
            f"mark = pathlib.Path({str(self.folder / 'mark')!r})\n"
            "if os.environ['RANK'] == '1' and not mark.exists():\n"
            "    mark.touch()\n"
            "    plain = trainer.loss_of\n"
            "    def loss_of(model, rank, step):\n"
            "        if step == 3:\n"
            "            os.kill(os.getpid(), signal.SIGKILL)\n"
            "        return plain(model, rank, step)\n"
            "    trainer.loss_of = loss_of\n"
            "trainer.main()\n")
        output = self.finish(run("-n", 2, script, killed, 6, 0, env=self.environment))
        self.assertIn("rank 1 was killed by SIGKILL", output)
        expected = torch.load(undisturbed)
        for key, value in torch.load(killed).items():
            self.assertTrue(torch.equal(value, expected[key]), key)

    def test_a_trainer_killed_at_a_collective_call_takes_part_again(self):
        script = self.script("""
import os, pathlib, signal, sys, torch, tessera
folder, name, place = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
tessera.init()
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(8, 8))
opt = tessera.SGD(model, lr=0.1)
while model.tessera.next_step <= 3:
    def closure():
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        return loss
    opt.step(closure)
model.tessera.attach()

def call():
    if name == "save":
        tessera.save(model, folder / "checkpoint")
    elif name == "save_model":
        tessera.save_model(model, folder / "model.safetensors")
    elif name == "state_dict":
        torch.save(model.state_dict(), folder / f"state.{model.tessera.rank}")
    elif name == "load":
        tessera.load(model, folder / "checkpoint")
    elif name == "load_model":
        tessera.load_model(model, folder / "model.safetensors")
    elif name == "load_state_dict":
        model.load_state_dict(torch.load(folder / "state.0"))

def die(at):
    mark = folder / f"{name} {at}"
    if at == place and model.tessera.rank == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

die("before")
call()
die("after")
if name.startswith("load"):
    for key, value in torch.load(folder / "state.0").items():
        assert torch.equal(model.state_dict()[key], value), key
""")
        # The first ones make what the others load.
        for name in "save", "save_model", "state_dict", "load", "load_model", "load_state_dict":
            # After a save the other one has left: its successor has nobody to save with.
            for place in ("before", "after") if name == "save" else ("before",):
                with self.subTest(name, place=place):
                    output = self.finish(run("-n", 2, script, self.folder, name, place,
                                             env=self.environment))
                    self.assertIn("rank 1 was killed by SIGKILL; it is started again", output)

    def test_a_trainer_killed_in_a_save_goes_on_with_the_others(self):
        script = self.script("""
import json, os, pathlib, signal, subprocess, sys, time, torch, tessera
folder = pathlib.Path(sys.argv[1])
mark, process = folder / "mark", folder / "process"
tessera.init()
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(8, 8))
opt = tessera.SGD(model, lr=0.1)

def await_that(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)

def other():
    status = subprocess.run(
        [os.path.join(os.environ["TESSERA_PROGRAMS"], "tessera"), "status", "--json",
         "--coordinator", model.tessera._context.coordinator],
        check=True, stdout=subprocess.PIPE).stdout
    return next(rank for rank in json.loads(status)["jobs"][0]["ranks"] if rank["rank"] == 1)

def closure():
    loss = model(torch.ones(2, 8)).square().mean()
    loss.backward()
    return loss

def save():
    done = model.tessera.next_step - 1
    if done == 2 and not mark.exists():
        if model.tessera.rank == 1:
            process.write_text(str(os.getpid()))
        else:
            await_that(lambda: other()["doing"] == "save")
            mark.touch()
            os.kill(int(process.read_text()), signal.SIGKILL)
            await_that(lambda: not other()["attached"])
    tessera.save(model, folder / f"checkpoint-{done}")
    print(f"rank {model.tessera.rank} saved {done}", flush=True)

if sys.argv[2] == "after":
    while model.tessera.next_step <= 4:
        opt.step(closure)
        save()
else:
    while model.tessera.next_step <= 4:
        if model.tessera.next_step > 1:
            save()
        opt.step(closure)
    save()
""")
        for place in "after", "before":
            with self.subTest(place=place):
                folder = self.folder / place
                folder.mkdir()
                output = self.finish(run("-n", 2, script, folder, place, env=self.environment))
                self.assertIn("rank 1 was killed by SIGKILL; it is started again", output)
                # At the beginning of its loop it asks for the save that it died in.
                self.assertEqual("rank 1 saved 2" in output, place == "before", output)
                for line in ("rank 0 saved 2", "rank 1 saved 3", "rank 1 saved 4"):
                    self.assertIn(line, output)

    def test_trainers_that_cannot_go_on_where_one_died_are_all_started_again(self):
        script = self.script("""
import os, pathlib, signal, sys, time, torch, tessera
folder, place = pathlib.Path(sys.argv[1]), sys.argv[2]
tessera.init()
rank = int(os.environ["RANK"])
mark = folder / f"rank {rank} has begun"
is_first = not mark.exists()
mark.touch()

def die_at(here):
    if here == place and is_first and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

class Layer(torch.nn.Linear):
    def reset_parameters(self):
        super().reset_parameters()
        if torch.empty(0).device.type != "meta":
            die_at("first values")

with torch.device("meta"):
    model = torch.nn.Sequential(Layer(8, 8), Layer(8, 8))
torch.manual_seed(1)
opt = tessera.AdamW(tessera.shard(model, units=Layer), lr=0.1)

def evaluate():
    model.eval()
    with torch.no_grad():
        loss = model(torch.ones(2, 8)).square().mean()
        die_at("evaluation")
        deadline = time.monotonic() + 60
        while place == "evaluation" and is_first and rank == 0:  # Until it hears of the other one.
            assert time.monotonic() < deadline
            model(torch.ones(2, 8))
    model.train()
    return loss

def loss_of(step):
    torch.manual_seed(10 * step + rank)
    loss = model(torch.randn(2, 8)).square().mean()
    if step == 3:
        die_at("forward")
        die_at("repeated step")
    loss.backward()
    return loss

if place == "repeated step":
    evaluate()
while model.tessera.next_step <= 4:
    step = model.tessera.next_step
    if place == "forward":
        loss_of(step)
        opt.step()
    else:
        opt.step(lambda: loss_of(step))
    if step == 2:
        evaluate()
        die_at("save")
        tessera.save(model, folder / "checkpoint")
        die_at("state_dict")
        torch.save(model.state_dict(), folder / f"state.{rank}")
torch.save(model.state_dict(), folder / f"end.{rank}")
""")
        ends = {}
        for place in ("nowhere", "first values", "evaluation", "save", "state_dict", "forward",
                      "repeated step"):
            with self.subTest(place=place):
                folder = self.folder / place
                folder.mkdir()
                output = self.finish(run("-n", 2, script, folder, place, env=self.environment))
                ends[place] = [torch.load(folder / f"end.{rank}") for rank in (0, 1)]
                for end in ends[place]:
                    for name, value in ends["nowhere"][0].items():
                        self.assertTrue(torch.equal(end[name], value), name)
                if place != "nowhere":
                    self.assertIn("rank 1 was killed by SIGKILL; it is started again", output)
                if place == "first values":  # The other one gives them again.
                    self.assertNotIn("rank 0 exited", output)
                elif place != "nowhere":
                    self.assertRegex(output, "rank 0 exited with status 75: .*; it is started again")

    def test_trainers_that_host_their_executors_undo_no_step_of_each_other_as_they_begin(self):
        script = self.script("""
import os, pathlib, signal, sys, torch, tessera
folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
dies = folder / "rank 1 has died"
tessera.init()
torch.manual_seed(1)
# With buffers, which a trainer restores as it attaches.
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
tessera.shard(model, executor_in_process=True)
opt = tessera.AdamW(model, lr=0.1)
while model.tessera.next_step <= 4:
    step = model.tessera.next_step
    torch.manual_seed(10 * step + rank)
    if step == 3 and rank == 1 and sys.argv[2] == "kill" and not dies.exists():
        dies.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.randn(2, 8)).square().mean().backward()
    opt.step()
torch.save(model.state_dict(), folder / f"end.{rank}")
""")
        ends = []
        for what, most_starts in ("train", 0), ("kill", 3):
            with self.subTest(what):
                folder = self.folder / what
                folder.mkdir()
                output = self.finish(run("-n", 3, script, folder, what, env=self.environment))
                self.assertLessEqual(output.count("it is started again"), most_starts, output)
                ends.append(torch.load(folder / "end.0"))
        for name, value in ends[0].items():
            self.assertTrue(torch.equal(value, ends[1][name]), name)

    def test_a_program_that_does_not_ask_for_the_next_step_is_not_started_again(self):
        script = self.script("""
import os, signal, torch, tessera
tessera.init()
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(8, 8))
opt = tessera.SGD(model, lr=0.1)
for step in range(3):
    loss = model(torch.ones(2, 8)).square().mean()
    if step == 1 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    opt.step()
""")
        output = self.finish(run("-n", 2, script, env=self.environment), status=1)
        self.assertIn("the program is not to be started again", output)

    def test_a_killed_trainer_that_would_begin_at_the_first_step_again_ends_the_job(self):
        script = self.script("""
import os, pathlib, signal, sys, torch, tessera
mark = pathlib.Path(sys.argv[1]) / "mark"
tessera.init()
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(8, 8))
opt = tessera.SGD(model, lr=0.1)
for step in range(3):
    def closure():
        if step == 1 and os.environ["RANK"] == "1" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.full((2, 8), step + 1.0)).square().mean().backward()
    opt.step(closure)
""")
        output = self.finish(run("-n", 2, script, self.folder, env=self.environment), status=1)
        self.assertIn("started again after a process died, at step 2, and cannot go on: it would begin "
                      "at its first step", output)

    def test_a_killed_trainer_brings_its_learning_rate_to_the_step(self):
        script = self.script("""
import os, pathlib, signal, sys, torch, tessera
folder, name, catches_up = pathlib.Path(sys.argv[1]), sys.argv[2], len(sys.argv) > 3
tessera.init()
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(8, 8))
opt = tessera.AdamW(model, lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6)
if catches_up:
    for _ in range(model.tessera.next_step - 1):
        schedule.step()
while model.tessera.next_step <= 6:
    def closure():
        if model.tessera.next_step == 4 and name != "undisturbed" and model.tessera.rank == 1:
            if not (folder / name).exists():
                (folder / name).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        loss = model(torch.full((2, 8), float(model.tessera.next_step))).square().mean()
        loss.backward()
        return loss
    assert opt.step(closure).item() > 0
    schedule.step()
torch.save(model.state_dict(), folder / f"{name}.pt")
""")
        for name in "undisturbed", "killed":
            self.finish(run("-n", 2, script, self.folder, name, "catches up", env=self.environment))
        expected = torch.load(self.folder / "undisturbed.pt")
        for key, value in torch.load(self.folder / "killed.pt").items():
            self.assertTrue(torch.equal(value, expected[key]), key)
        output = self.finish(run("-n", 2, script, self.folder, "forgets", env=self.environment),
                             status=1)
        self.assertIn("the job continues at step 4, and CosineAnnealingLR at its beginning", output)

    def test_what_is_registered_and_begins_again_is_told(self):
        script = self.script("""
import os, pathlib, signal, sys, torch, tessera
mark = pathlib.Path(sys.argv[1]) / "mark"
class Count:
    def __init__(self): self.steps = 0
    def state_dict(self): return {"steps": self.steps}
    def load_state_dict(self, state): self.steps = state["steps"]
tessera.init()
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(8, 8))
opt = tessera.SGD(model, lr=0.1)
tessera.register_state("count", Count(), model)
while model.tessera.next_step <= 4:
    def closure():
        if model.tessera.next_step == 3 and model.tessera.rank == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        return loss
    opt.step(closure)
""")
        output = self.finish(run("-n", 2, script, self.folder, env=self.environment))
        self.assertEqual(output.count("the job continues at step 3, and what is registered as "
                                      "'count' on rank 1 is this program's"), 1, output)

    def test_a_closure_after_other_batches_of_its_step_is_not_run_without_them(self):
        script = self.script("""
import os, pathlib, signal, sys, torch, tessera
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
tessera.init()
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(8, 8))
opt = tessera.SGD(model, lr=0.1)
while model.tessera.next_step <= 4:
    step = model.tessera.next_step
    model(torch.full((2, 8), float(step))).square().mean().backward()
    def closure():
        if step == 3 and name == "killed" and os.environ["RANK"] == "1":
            if not (folder / "mark").exists():
                (folder / "mark").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        model(torch.full((2, 8), -2.0 * step)).square().mean().backward()
    opt.step(closure)
torch.save(model.state_dict(), folder / f"{name}.pt")
""")
        for name in "undisturbed", "killed":
            self.finish(run("-n", 2, script, self.folder, name, env=self.environment))
        expected = torch.load(self.folder / "undisturbed.pt")
        for key, value in torch.load(self.folder / "killed.pt").items():
            self.assertTrue(torch.equal(value, expected[key]), key)
        torch.manual_seed(1)
        plain = torch.nn.Linear(8, 8)
        opt = torch.optim.SGD(plain.parameters(), lr=0.1)
        for step in range(1, 5):
            opt.zero_grad()
            for value in (float(step), -2.0 * step):
                plain(torch.full((2, 8), value)).square().mean().backward()
            opt.step()
        for key, value in plain.state_dict().items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-5)

    def test_a_program_that_differs_by_itself_is_started_again_once_and_then_ends(self):
        script = self.script("""
import os, pathlib, signal, sys, torch, tessera
folder = pathlib.Path(sys.argv[1])
tessera.init()
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(8, 8))
opt = tessera.SGD(model, lr=0.1)
rank = model.tessera.rank
with open(folder / f"begun.{rank}", "a") as file:
    file.write(".")

def closure():
    loss = model(torch.ones(2, 8)).square().mean()
    if model.tessera.next_step == 2 and rank == 1 and not (folder / "mark").exists():
        (folder / "mark").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    return loss

opt.step(closure)
opt.step(closure)
if rank == 0:
    model.state_dict()
opt.step(closure)
""")
        output = self.finish(run("-n", 2, script, self.folder, env=self.environment), status=1)
        self.assertIn("execution orders differ", output)
        self.assertEqual([len((self.folder / f"begun.{rank}").read_text()) for rank in (0, 1)],
                         [2, 3])

    def await_step(self, coordinator, step):
        """Until a job there has taken it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            asked = subprocess.run([programs_folder() / "tessera", "jobs", "--json",
                                    "--coordinator", coordinator], capture_output=True, text=True)
            if asked.returncode == 0 and any(int(job.get("committed_step", 0)) >= step
                                             for job in json.loads(asked.stdout)["jobs"]):
                return
        self.fail(f"no job at {coordinator} has taken step {step}: {asked}")

    def test_a_program_in_cpp_is_started_again_to_the_bit(self):
        program = programs_folder() / "train"
        undisturbed, killed = self.folder / "undisturbed", self.folder / "killed"
        self.finish(run("-n", 2, "--", program, 200, undisturbed, env=self.environment))
        process = run("-n", 2, "--", program, 200, killed, env=self.environment)
        self.await_step(process.stdout.readline().split("--coordinator ")[1].strip("`\n"), 5)
        victim, = (pid for pid in descendants_with(str(killed))
                   if b"\0RANK=1\0" in pathlib.Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(victim, signal.SIGKILL)
        self.assertIn("rank 1 was killed by SIGKILL; it is started again", self.finish(process))
        self.assertEqual(undisturbed.read_bytes(), killed.read_bytes())

    def test_a_killed_trainer_whose_child_has_its_output_open_is_started_again(self):
        script = (f"[ -e {self.folder}/mark ] && exit; touch {self.folder}/mark; sleep 1000 & "
                  "kill -9 $$")
        output = self.finish(run("-n", 1, "--", "sh", "-c", script, env=self.environment))
        self.assertIn("rank 0 was killed by SIGKILL; it is started again", output)


if __name__ == "__main__":
    unittest.main()
