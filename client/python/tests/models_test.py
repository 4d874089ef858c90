"""Programs with several sharded models: each has a job of its own."""

import socket
import subprocess
import unittest

import torch

from command_case import CommandCase, run
from tessera._daemons import programs_folder

# Generator and discriminator, whose steps run the other one forward.
_ADVERSARIES = """
import json, os, pathlib, signal, subprocess, sys, time, torch, tessera
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def make():
    torch.manual_seed(1)
    return (nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)),
            nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1)))

def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 4, generator=generator), 3 + torch.randn(8, 2, generator=generator)

def disc_loss(gen, disc, step, rank):
    noise, real = batch(step, rank)
    with torch.no_grad():
        fake = gen(noise)
    return loss_of(disc(real), torch.ones(8, 1)) + loss_of(disc(fake), torch.zeros(8, 1))

def gen_loss(gen, disc, step, rank):
    return loss_of(disc(gen(batch(step, rank)[0])), torch.ones(8, 1))

tessera.init()
gen, disc = make()
tessera.shard(gen, job="gen", units=nn.Linear)
tessera.shard(disc, job="disc", units=nn.Linear)
gen_opt, disc_opt = tessera.Adam(gen, lr=1e-2), tessera.Adam(disc, lr=1e-2)
"""

_WITH_CLOSURES = _ADVERSARIES + """
out, place = pathlib.Path(sys.argv[1]), sys.argv[2]

def executor_of(job):
    deadline, pid = time.monotonic() + 60, 0
    while pid == 0:  # Until the worker has told it.
        assert time.monotonic() < deadline
        status = subprocess.run(
            [os.path.join(os.environ["TESSERA_PROGRAMS"], "tessera"), "status", "--json",
             "--coordinator", os.environ["TESSERA_COORDINATOR"]],
            check=True, stdout=subprocess.PIPE).stdout
        found = next(each for each in json.loads(status)["jobs"] if each["job_id"] == job)
        pid = next(rank["executor_pid"] for rank in found["ranks"] if rank["rank"] == 2)
    return pid

def die(at):
    mark, (where, _, job) = out.with_suffix(".mark"), place.partition(":")
    if at == where and step == 5 and RANK == 1 and not mark.exists():
        mark.touch()
        os.kill(executor_of(job) if job else os.getpid(), signal.SIGKILL)

def train_disc():
    loss = disc_loss(gen, disc, step, RANK)
    die("disc forward")
    loss.backward()
    die("disc backward")

def train_gen():
    loss = gen_loss(gen, disc, step, RANK)
    die("gen forward")
    loss.backward()
    die("gen backward")
    disc_opt.zero_grad()

while gen.tessera.next_step <= 8:
    step = gen.tessera.next_step
    if disc.tessera.next_step == step:
        disc_opt.step(train_disc)
    die("between")
    gen_opt.step(train_gen)
state = gen.state_dict(), disc.state_dict()
if RANK == 0:
    torch.save(state, out)
"""


def free_ports():
    """The first of two that nothing listens at."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


class SeveralModelsTest(CommandCase):
    def test_two_train_as_pytorch_trains_them(self):
        self.finish(run("-n", 2, self.script(_ADVERSARIES + """
plain_gen, plain_disc = make()
plain_gen_opt = torch.optim.Adam(plain_gen.parameters(), lr=1e-2)
plain_disc_opt = torch.optim.Adam(plain_disc.parameters(), lr=1e-2)
for step in range(10):
    disc_loss(gen, disc, step, RANK).backward()
    disc_opt.step()
    gen_loss(gen, disc, step, RANK).backward()
    gen_opt.step()
    disc_opt.zero_grad()
    for optimizer, loss in (plain_disc_opt, disc_loss), (plain_gen_opt, gen_loss):
        for model in plain_gen, plain_disc:
            model.zero_grad()
        for rank in range(WORLD):
            (loss(plain_gen, plain_disc, step, rank) / WORLD).backward()
        optimizer.step()
for ours, plain in (gen, plain_gen), (disc, plain_disc):
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[key], rtol=1e-5, atol=1e-6)
"""), env=self.environment))

    def test_one_that_is_not_trained_takes_no_optimizer(self):
        self.finish(run("-n", 2, self.script("""
import copy, os, torch, tessera
from torch import nn
torch.manual_seed(1)
teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).requires_grad_(False).eval()
student = nn.Linear(8, 4)
plain = copy.deepcopy(teacher)
tessera.init()
tessera.shard(teacher, job="teacher", units=nn.Linear)
tessera.shard(student)
opt = tessera.AdamW(student, lr=1e-2)
losses = []
for step in range(20):
    x = torch.randn(16, 8)
    with torch.no_grad():
        wanted = teacher(x)
    torch.testing.assert_close(wanted, plain(x))
    loss = (student(x) - wanted).square().mean()
    loss.backward()
    opt.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
"""), env=self.environment))

    def test_a_death_undoes_a_step_of_one_with_what_it_did_with_the_other(self):
        script, undisturbed = self.script(_WITH_CLOSURES), self.folder / "undisturbed.pt"
        self.finish(run("-n", 3, script, undisturbed, "nowhere", env=self.environment))
        expected = torch.load(undisturbed)
        # With a job: its executor of rank 2 alone, of which the others hear at other places.
        for number, place in enumerate((
                "disc forward", "disc backward", "between", "gen forward", "gen backward",
                "disc forward:gen", "between:gen", "gen backward:disc", "gen backward:gen")):
            with self.subTest(place):
                out = self.folder / f"{number}.pt"
                output = self.finish(run("-n", 3, script, out, place, env=self.environment))
                self.assertTrue(out.with_suffix(".mark").exists())
                self.assertEqual("rank 1 was killed by SIGKILL" in output, ":" not in place)
                for killed, model in zip(torch.load(out), expected):
                    for key, value in killed.items():
                        self.assertTrue(torch.equal(value, model[key]), key)

    def test_two_train_on_two_nodes(self):
        script, ports = self.script(_WITH_CLOSURES), free_ports()
        launchers = [
            run("--nnodes", 2, "--node-rank", node, "--rendezvous", f"127.0.0.1:{ports}",
                "--insecure", "-n", 2, script, self.folder / "out.pt", "nowhere",
                env=self.environment) for node in range(2)]
        for launcher in launchers:
            output, _ = launcher.communicate(timeout=120)
            self.assertEqual(launcher.returncode, 0, output)
        one_node = self.folder / "one.pt"
        self.finish(run("-n", 4, script, one_node, "nowhere", env=self.environment))
        for found, expected in zip(torch.load(self.folder / "out.pt"), torch.load(one_node)):
            torch.testing.assert_close(found, expected)

    def test_a_given_coordinator_serves_the_next_launchers_too(self):
        port, ready = free_ports(), self.folder / "ready"
        coordinator = subprocess.Popen(
            [programs_folder() / "tessera-coordinator", "--ephemeral", "--listen",
             f"127.0.0.1:{port}", "--port-file", ready], stderr=subprocess.DEVNULL)
        self.addCleanup(coordinator.wait)
        self.addCleanup(coordinator.kill)
        script = self.script(_WITH_CLOSURES)
        for number in range(2):
            launcher = run("--nnodes", 1, "--node-rank", 0, "--rendezvous",
                           f"127.0.0.1:{free_ports()}", "--insecure", "--coordinator",
                           f"127.0.0.1:{port}", "-n", 1, script, self.folder / f"{number}.pt",
                           "nowhere", env=self.environment)
            output, _ = launcher.communicate(timeout=120)
            self.assertEqual(launcher.returncode, 0, output)
            for job in ("gen", "disc"):
                self.assertEqual(f"job '{job}' of earlier launchers is deleted" in output,
                                 number > 0, output)
        first, second = (torch.load(self.folder / f"{number}.pt") for number in range(2))
        for key, value in first[0].items():
            self.assertTrue(torch.equal(value, second[0][key]), key)


if __name__ == "__main__":
    unittest.main()
