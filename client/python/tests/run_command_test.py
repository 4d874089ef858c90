"""python -m tessera.run: a node's job as one command."""

import contextlib
import io
import math
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest
from unittest import mock

import torch

from tessera import _cores, _trainers
from command_case import TRAINER, CommandCase, descendants_with, run


class RunCommandTest(CommandCase):
    def test_readmes_program_trains(self):
        readme = pathlib.Path(os.path.realpath(__file__)).parents[3] / "README.md"
        code = readme.read_text().split("```python\n")[1].split("```")[0]
        script = self.script(code + """
if model.tessera.rank == 0: print("loss", loss.item())
""")
        output = self.finish(run("-n", 2, script, env=self.environment, cwd=self.folder))
        self.assertLess(float(output.rpartition("loss ")[2]), 0.9)

    def test_two_jobs_in_a_row_train(self):
        import trainer
        for number in range(2):
            out = self.folder / f"{number}.pt"
            self.finish(run("-n", 2, TRAINER, out, 6, 0, env=self.environment))
            for key, value in trainer.train_plain(2, 6).items():
                torch.testing.assert_close(torch.load(out)[key], value, rtol=1e-5, atol=1e-5)

    def test_an_error_of_a_trainer_ends_the_job_with_its_message(self):
        output = self.finish(run("-n", 2, TRAINER, self.folder / "x.pt", 6, -3,
                                 env=self.environment), status=1)
        self.assertIn("ValueError: bad batch", output)
        self.assertRegex(output, r"tessera: rank [01] exited with status 1: .*bad batch.*; the job is ended")

    def test_an_error_within_backward_ends_the_program(self):
        # Autograd keeps what it has not run yet, with the job's parameters, until the process exits.
        script = self.script("""
import torch, tessera
torch.manual_seed(1)
model = tessera.shard(torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)]),
                      units=torch.nn.Linear)
opt = tessera.AdamW(model)
model[3].weight.register_post_accumulate_grad_hook(lambda parameter: 1 / 0)
model(torch.ones(4, 8)).sum().backward()
""")
        output = self.finish(run("-n", 2, script, env=self.environment), status=1)
        self.assertRegex(output, "rank [01] exited with status 1: ZeroDivisionError")

    def test_it_tells_which_ranks_go_on_where_others_ended(self):
        go = self.folder / "go"
        wait = "import os, sys, time\nwhile sys.argv[1] != os.environ['RANK'] and " \
               "not os.path.exists(sys.argv[2]): time.sleep(0.01)"
        environments = {rank: {"RANK": str(rank)} for rank in range(3)}
        output = io.TextIOWrapper(io.BytesIO())
        with mock.patch.object(_trainers, "_ALONE_SECONDS", 0), contextlib.redirect_stdout(output):
            trainers = _trainers.Trainers([sys.executable, "-c", wait, "1", str(go)], environments, 0)
            trainers.start()
            deadline = time.monotonic() + 60
            while not output.buffer.getvalue() and time.monotonic() < deadline:
                trainers.tell_who_goes_on()
            for _ in range(3):
                trainers.tell_who_goes_on()
            go.touch()
            self.assertTrue(trainers.ended.wait(60))
            trainers.tell_who_goes_on()
        self.assertRegex(output.buffer.getvalue().decode(), "^tessera: still running: ranks 0, 2; "
                         "ended without an error: rank 1. .*\n$")

    def test_its_exit_status_is_the_programs_or_says_that_a_daemon_is_gone(self):
        output = self.finish(run("-n", 1, "--", "sh", "-c", "exit 7", env=self.environment),
                             status=7)
        self.assertIn("rank 0 exited with status 7", output)
        self.finish(run("-n", 1, "--max-restarts", 1, "--", "sh", "-c", "kill -9 $$",
                        env=self.environment), status=128 + 9)
        process = run("-n", 1, "--", "sh", "-c", "echo waits; exec sleep 1000",
                      env=self.environment)
        self.assertTrue(any("waits" in line for line in process.stdout))
        folder = next(self.folder.glob("tessera-run-*"))
        worker = [pid for pid in descendants_with(f"{folder}/sockets")
                  if b"tessera-worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(worker[0], signal.SIGKILL)
        self.assertIn("the worker ended", self.finish(process, status=75))

    def test_it_does_not_load_pytorch(self):
        loaded = subprocess.run(
            [sys.executable, "-c", "import sys, tessera.command, tessera.run\n"
             "print(sorted({'torch', 'numpy', 'tessera._library'} & set(sys.modules)))\n"
             "tessera.AdamW, tessera.optim.SGD, tessera.errors, tessera.live.read\n"
             "print('torch' in sys.modules, hasattr(tessera, 'no_such_name'))"],
            check=True, capture_output=True, text=True, timeout=100).stdout
        self.assertEqual(loaded.splitlines(), ["[]", "True False"])

    def threads_of_ranks(self, ranks, cores, **environment):
        script = self.script("import os\nprint('threads', os.environ['OMP_NUM_THREADS'])\n")
        clean = {k: v for k, v in self.environment.items() if k != "OMP_NUM_THREADS"}
        output = self.finish(run("-n", ranks, script, env={**clean, **environment},
                                 preexec_fn=lambda: os.sched_setaffinity(0, cores)))
        return [int(line.split()[-1]) for line in output.splitlines() if " threads " in line]

    def test_its_ranks_share_the_cores_that_it_may_run_on(self):
        cores = sorted(os.sched_getaffinity(0))
        for given in (cores[:1], cores):
            alone, = self.threads_of_ranks(1, given)
            # A core may have two hardware threads; a quota may be less.
            least = min(len(given) // 2, _cores.quota(
                pathlib.Path("/proc/self/cgroup").read_text(), pathlib.Path("/sys/fs/cgroup")))
            self.assertIn(alone, range(max(1, int(least)), len(given) + 1))
            self.assertEqual(self.threads_of_ranks(3, given), [max(1, alone // 3)] * 3)
        self.assertEqual(self.threads_of_ranks(1, cores[:1], OMP_NUM_THREADS="5"), [5])

    def test_a_quota_of_a_cgroup_or_of_one_around_it_counts_as_fewer_cores(self):
        root = self.folder / "cgroup"
        (root / "pods/pod").mkdir(parents=True)
        of = lambda membership: _cores.quota(membership, root)
        self.assertEqual(of("0::/pods/pod\n"), math.inf)
        (root / "pods/pod/cpu.max").write_text("max 100000\n")
        self.assertEqual(of("0::/pods/pod\n"), math.inf)
        (root / "pods/cpu.max").write_text("350000 100000\n")
        self.assertEqual(of("1:cpu:/x\n0::/pods/pod\n"), 3.5)
        (root / "pods/pod/cpu.max").write_text("200000 100000\n")
        self.assertEqual(of("0::/pods/pod\n"), 2)
        self.assertEqual(of("0::/\n"), math.inf)
        self.assertEqual(of("0::/../outside\n"), math.inf)
        self.assertEqual(of("1:cpu:/x\n"), math.inf)

    def test_interrupting_it_leaves_nothing(self):
        script = self.script("import signal, os\nprint('waits', flush=True)\nsignal.pause()\n")
        process = run("-n", 2, script, env=self.environment)
        waiting = 0
        for line in process.stdout:
            waiting += "waits" in line
            if waiting == 2:
                break
        process.send_signal(signal.SIGINT)
        self.assertIn("interrupted", self.finish(process, status=130))

    def test_ranks_with_other_initial_values_are_an_error_that_names_one(self):
        script = self.script("""
import os, torch, tessera
torch.manual_seed(int(os.environ["RANK"]))
model = tessera.shard(torch.nn.Linear(3, 3))
tessera.SGD(model)
""")
        output = self.finish(run("-n", 2, script, env=self.environment), status=1)
        self.assertIn("initial values of parameter 'weight' on rank 1 are not those of rank 0", output)

    def test_a_model_on_the_meta_device_of_some_ranks_is_an_error_that_names_it(self):
        script = self.script("""
import os, torch, tessera
torch.manual_seed(1)
with torch.device("meta" if os.environ["RANK"] == "1" else "cpu"):
    model = torch.nn.Linear(3, 3)
tessera.SGD(tessera.shard(model))
""")
        output = self.finish(run("-n", 2, script, env=self.environment), status=1)
        self.assertIn("parameter 'weight' is on the meta device on rank 1", output)

    def test_torchs_own_collectives_work_beside_it(self):
        script = self.script("""
import torch, torch.distributed as dist, tessera
dist.init_process_group("gloo")
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(3, 1))
opt = tessera.SGD(model, lr=0.1)
loss = model(torch.full((2, 3), float(dist.get_rank()))).square().mean()
loss.backward()
opt.step()
mean = loss.detach()
dist.all_reduce(mean)
print("mean", mean.item() / dist.get_world_size())
""")
        output = self.finish(run("-n", 2, script, env=self.environment))
        means = [line.split()[-1] for line in output.splitlines() if "mean" in line]
        self.assertEqual((len(means), len(set(means))), (2, 1), output)

    def test_a_model_that_finds_no_device_is_told_of_those_that_have_them(self):
        script = self.script("""
import torch, tessera
from tessera._daemons import MAX_JOBS
tessera.init(timeouts={"attach": 1})
def attach(trial):
    return tessera.SGD(tessera.shard(torch.nn.Linear(1, 1), job=f"trial{trial}"), lr=0.1).sharded
models = [attach(trial) for trial in range(MAX_JOBS)]
try:
    attach("s")
except tessera.TesseraError as error:
    print(error)
models[0].detach()
attach("s")
print("attached")
""")
        output = self.finish(run("-n", 1, script, env=self.environment))
        self.assertRegex(output, r"largest free: none; .*models have 8 jobs: call model.tessera.detach\(\)")
        self.assertIn("attached", output)

    def test_a_cluster_outlives_the_thread_that_attached(self):
        script = self.script("""
import threading, torch, tessera
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(3, 1))
made = []
thread = threading.Thread(target=lambda: made.append(tessera.SGD(model, lr=0.1)))
thread.start()
thread.join()
for _ in range(50):
    model(torch.ones(2, 3)).sum().backward()
    made[0].step()
print("step", model.tessera.next_step)
""")
        process = subprocess.Popen([sys.executable, script], stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   env=self.environment)
        self.assertIn("step 51", self.finish(process))

    def test_any_rank_is_one_that_no_other_trainer_has(self):
        script = self.script("""
import torch, tessera
tessera.init(rank="any", world_size=3)  # Not what the environment says.
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(3, 1, bias=False))
before = model.weight.detach().clone()
opt = tessera.SGD(model, lr=0.1)
rank = model.tessera.rank
model(torch.full((1, 3), float(rank))).sum().backward()
opt.step()
# By the mean of what ranks 0, 1 and 2 gave.
torch.testing.assert_close(model.state_dict()["weight"], before - 0.1)
print("rank", rank)
""")
        output = self.finish(run("-n", 3, script, env=self.environment))
        self.assertEqual(sorted(line.split("] ")[1] for line in output.splitlines()
                                if "] rank" in line), ["rank 0", "rank 1", "rank 2"])

    def test_any_program_is_run(self):
        output = self.finish(run("-n", 2, "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE",
                                 env=self.environment))
        *lines, said = sorted(output.splitlines())
        self.assertEqual(lines, ["[0] rank 0 of 2", "[1] rank 1 of 2"])
        self.assertRegex(said, "^tessera: watch job 'train' by `tessera status --coordinator unix:/")

    def test_a_module_is_run_as_python_does(self):
        (self.folder / "package").mkdir()
        (self.folder / "package" / "train.py").write_text(
            "import os, sys\nprint(__name__, __package__, sys.argv[1:], os.environ['RANK'])\n")
        output = self.finish(run("-n", 2, "-m", "package.train", "--lr", 3, cwd=self.folder,
                                 env=self.environment))
        for rank in range(2):
            self.assertIn(f"[{rank}] __main__ package ['--lr', '3'] {rank}\n", output)

    def test_a_long_folder_for_temporary_files_is_no_place_for_sockets(self):
        folder = self.folder / ("x" * 100)
        folder.mkdir()
        output = self.finish(run("-n", 1, "--", "sh", "-c", "echo runs",
                                 env={**self.environment, "TMPDIR": str(folder)}))
        self.assertIn("runs", output)

    def test_wrong_arguments_are_named(self):
        for arguments, said in ((["-n", 2, "missing.py"], "missing.py: no such file"),
                                (["-n", 0, TRAINER], "at least 1 rank"),
                                (["-n", 2], "which program?"),
                                (["-n", 1, "--", "/no/such/program"], "cannot be started")):
            with self.subTest(said):
                process = run(*arguments, env=self.environment)
                output, _ = process.communicate(timeout=60)
                self.assertNotEqual(process.returncode, 0)
                self.assertIn(said, output)


if __name__ == "__main__":
    unittest.main()
