"""deploy/slurm under Debian's Slurm: its controller, and two nodes that are network namespaces."""

import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from run_nodes_test import enter_by_name, make_nodes

_TREE = pathlib.Path(os.path.realpath(__file__)).parents[3]
_DEPLOY = _TREE / "deploy/slurm"
_NAMES, _HOSTS = ("n1", "n2"), ("10.77.0.1", "10.77.0.2")
_NEEDS = ("munged", "slurmctld", "slurmd", "sbatch", "ip", "nsenter", "unshare")
_STEPS = 9
_SECONDS = 300
# Without accounting, cgroups or PMIx, which a user's cluster has, and with shorter waits.
_CONFIG = """
ClusterName=test
SlurmctldHost=n1(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdTimeout=300
ReturnToService=2
NodeName=n1 NodeHostname=n1 NodeAddr=10.77.0.1 CPUs=2
NodeName=n2 NodeHostname=n2 NodeAddr=10.77.0.2 CPUs=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=n1,n2 Default=YES State=UP
PartitionName=urgent Nodes=n1,n2 PriorityTier=9 State=UP
"""
# As train.py, in fewer steps. With a mark's path rank 1 stands still in step 7, once for each mark.
_TRAINER = """
import os, pathlib, sys, threading
sys.path.insert(0, {deploy!r})
import train
train.SAVE_EVERY = 2
plain, mark = train.batch_of, os.environ.get("TEST_MARK")
def batch_of(step, rank):
    if step == 7 and rank == 1 and mark and not os.path.exists(mark):
        pathlib.Path(mark).touch()
        if os.environ.get("TEST_ERROR"):
            raise ValueError("bad batch")
        threading.Event().wait()
    return plain(step, rank)
train.batch_of = batch_of
train.main(pathlib.Path(sys.argv[1]), {steps})
"""


def wait_for(condition, what, seconds=_SECONDS):
    """What condition() returned, once it is true. Errors: AssertionError with what(), or what."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.1)


class Slurm:
    """A controller and two nodes, which have nothing in common but a wire, munge and the files."""

    def __init__(self, folder):
        self.folder, self.daemons = folder, []
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"),
                            "TMPDIR": str(folder / "tmp"), "PATH": f"{folder}:{os.environ['PATH']}",
                            "HOME": str(folder), "USER": "alice"}
        for name in ("state", "spool-n1", "spool-n2", "munge", "tmp"):
            (folder / name).mkdir(mode=0o755)
        (folder / "slurm.conf").write_text(_CONFIG.format(folder=folder))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
            f"{host} {name}\n" for name, host in zip(_NAMES, _HOSTS)))
        self.holders = make_nodes()

    def start(self):
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(64))
        (munge / "key").chmod(0o600)
        self._start("munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket",
                    f"--pid-file={munge}/pid", f"--seed-file={munge}/seed",
                    f"--log-file={munge}/log")
        wait_for((munge / "socket").exists, "munged did not start")
        self._start(*self.on(0, "slurmctld", "-D"))
        for node in (0, 1):
            self.start_node(node)

    def start_node(self, node):
        self._start(*self.on(node, "slurmd", "-D", "-N", _NAMES[node]))
        wait_for(lambda: self.run("sinfo", "-h", "-p", "all", "-n", _NAMES[node], "-o", "%t",
                                  check=False).strip() == "idle",
                 lambda: f"node {_NAMES[node]} is not idle: {self.run('sinfo', '-N', check=False)}"
                 f"{self.log()}")

    def on(self, node, *command):
        """A command that runs there."""
        return [*enter_by_name(self.holders[node], _NAMES[node], self.folder / "hosts"),
                *map(str, command)]

    def run(self, *command, check=True):
        """The output of a command on the first node."""
        found = subprocess.run(self.on(0, *command), env=self.environment, capture_output=True,
                               text=True, timeout=60, check=False, cwd=self.folder)
        if check and found.returncode != 0:
            raise AssertionError(f"{command}: {found.stdout}{found.stderr}{self.log()}")
        return found.stdout

    def log(self):
        return (self.folder / "daemons.log").read_text(errors="replace")[-4000:]

    def _start(self, *command):
        with open(self.folder / "daemons.log", "ab") as log:
            self.daemons.append(subprocess.Popen(  # pylint: disable=consider-using-with
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def processes(self, node):
        """Of a node, but for the one that holds its namespace."""
        holder = self.holders[node].pid
        space, found = os.readlink(f"/proc/{holder}/ns/net"), []
        for process in pathlib.Path("/proc").iterdir():
            try:
                if (process.name.isdigit() and int(process.name) != holder and
                        os.readlink(process / "ns/net") == space):
                    found.append(int(process.name))
            except OSError:
                pass  # It has ended.
        return found

    def kill_node(self, node):
        """All that runs on it, at once as far as signals are."""
        while found := self.processes(node):
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for daemon in self.daemons:
                daemon.poll()

    def stop(self):
        for node in (0, 1):
            self.kill_node(node)
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()
        for holder in self.holders:
            holder.communicate()


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = [name for name in _NEEDS if not shutil.which(name)]
        tessera = pathlib.Path(os.environ.get("TESSERA_PROGRAMS", "/nonexistent")) / "tessera"
        if os.geteuid() != 0 or missing:
            raise unittest.SkipTest(
                "needs root and Slurm (apt install slurmctld slurmd slurm-client munge, iproute2, "
                f"util-linux); missing: {missing}")
        if not tessera.exists():
            raise unittest.SkipTest(f"needs the program tessera; missing: {tessera}")
        # In /tmp itself: munged wants folders that others cannot write to, or a sticky one.
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-slurm-", dir="/tmp"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.folder.chmod(0o755)
        # What the wheel installs.
        command = cls.folder / "tessera"
        command.write_text(f'#!/bin/sh\n[ "$1" = run ] && exec {sys.executable} -m tessera.command '
                           f'"$@"\nexec {tessera} "$@"\n')
        command.chmod(0o755)
        try:
            cls.slurm = Slurm(cls.folder)
        except (OSError, subprocess.CalledProcessError) as error:
            raise unittest.SkipTest(f"no network namespaces: {error}")
        cls.addClassCleanup(cls.slurm.stop)
        cls.slurm.start()
        cls.slurm.run("sh", "-c", cls.command_of_the_guide("tessera certs make"))
        (cls.folder / "trainer.py").write_text(
            _TRAINER.format(deploy=str(_DEPLOY), steps=_STEPS))
        cls.expected = None

    @staticmethod
    def command_of_the_guide(beginning):
        guide = (_TREE / "docs/guide/slurm.md").read_text()
        return re.search(rf"^{re.escape(beginning)}.*$", guide, re.MULTILINE)[0]

    def setUp(self):
        if SlurmTest.expected is None:
            SlurmTest.expected = "running"
            job = self.submit("undisturbed")
            self.await_state(job, "COMPLETED")
            SlurmTest.expected = self.model("undisturbed")
        self.assertNotEqual(SlurmTest.expected, "running", "the undisturbed run has failed")

    def submit(self, name, **environment):
        """deploy/slurm/train.sbatch as it is, for less of a machine."""
        self.name = name
        return self.slurm.run(
            "env", f"CHECKPOINTS={self.folder}/{name}", "RANKS=1",
            *(f"{key}={value}" for key, value in environment.items()),
            "sbatch", "--parsable", "--cpus-per-task=1", "--time=60", f"--job-name={name}",
            f"--output={self.folder}/%x.log", _DEPLOY / "train.sbatch",
            self.folder / "trainer.py").strip()

    def submit_to_stand(self, name, **environment):
        """Returns once rank 1 stands in step 7, after a checkpoint."""
        mark = self.folder / f"{name}.mark"
        job = self.submit(name, TEST_MARK=mark, **environment)
        wait_for(mark.exists, self.output)
        wait_for(lambda: list((self.folder / name).glob("step-" + "[0-9]" * 8)), self.output)
        return job

    def output(self):
        log = self.folder / f"{self.name}.log"
        return (log.read_text(errors="replace") if log.exists() else "no log") + "".join(
            self.slurm.run("scontrol", "show", "job", check=False))

    def show(self, job):
        shown = self.slurm.run("scontrol", "show", "job", job)
        return dict(part.partition("=")[::2] for part in shown.split())

    def await_state(self, job, state):
        """Of the job, which ends in no other one."""
        final = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
        found = wait_for(lambda: (final & {self.show(job)["JobState"]}), self.output)
        self.assertEqual(found, {state}, self.output())
        return self.show(job)

    def model(self, name):
        folder = self.folder / name / f"step-{_STEPS:08}"
        return [hashlib.sha256((folder / file).read_bytes()).hexdigest()
                for file in ("model.safetensors", "optimizer.safetensors")]

    def assert_resumed_to_the_bit(self, job, restarts):
        shown = self.await_state(job, "COMPLETED")
        self.assertEqual(shown["Restarts"], str(restarts), self.output())
        self.assertRegex(self.output(), rf"continues from .*/{self.name}/step-0000000[246]\n")
        self.assertEqual(self.model(self.name), self.expected)
        self.assert_nothing_is_left()

    def assert_nothing_is_left(self):
        wait_for(lambda: not list((self.folder / "tmp").glob("tessera*")), "files were left")
        names = [pathlib.Path(f"/proc/{pid}/comm") for node in (0, 1)
                 for pid in self.slurm.processes(node)]
        self.assertFalse([name for name in names
                          if name.exists() and name.read_text().startswith("tessera")])

    def test_a_requeued_job_continues_to_the_bit(self):
        job = self.submit_to_stand("requeued")
        command = self.command_of_the_guide("tessera status").replace("JOB", job)
        shown = self.slurm.run("sh", "-ec", f"cd ~/tessera-certificates; {command}")
        self.assertIn("train", shown)
        self.slurm.run("scontrol", "requeue", job)
        self.assert_resumed_to_the_bit(job, restarts=1)

    def test_a_preempted_job_continues_to_the_bit(self):
        job = self.submit_to_stand("preempted")
        self.slurm.run("sbatch", "--partition=urgent", "--exclusive", "--nodes=2",
                       f"--output={self.folder}/urgent.log", "--wrap=echo runs")
        self.assert_resumed_to_the_bit(job, restarts=1)
        self.assertEqual((self.folder / "urgent.log").read_text(), "runs\n")

    def test_a_job_near_its_time_limit_is_requeued_and_continues_to_the_bit(self):
        job = self.submit_to_stand("limit")
        hours, minutes, _ = map(int, self.show(job)["RunTime"].split(":"))
        # Slurm sends the signal by itself: the limit comes in less than three minutes.
        self.slurm.run("scontrol", "update", f"JobId={job}",
                       f"TimeLimit={60 * hours + minutes + 3}")
        wait_for(lambda: self.show(job)["Restarts"] == "1", self.output)
        self.slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=60")
        self.assert_resumed_to_the_bit(job, restarts=1)
        self.assertIn("the time limit is near; the job is queued again", self.output())

    def test_the_signal_of_a_user_requeues_the_job_as_the_time_limit_does(self):
        job = self.submit_to_stand("signal")
        self.slurm.run("scancel", "--batch", "--signal=USR1", job)
        self.assert_resumed_to_the_bit(job, restarts=1)

    def test_a_cancelled_job_stays_so_and_another_one_continues_to_the_bit(self):
        job = self.submit_to_stand("cancelled")
        self.slurm.run("scancel", job)
        self.await_state(job, "CANCELLED")
        wait_for(lambda: self.slurm.run("squeue", "-h") == "", self.output)
        self.assert_nothing_is_left()
        self.assert_resumed_to_the_bit(self.submit("cancelled"), restarts=0)

    def test_a_killed_trainer_is_replaced_within_the_job(self):
        job = self.submit_to_stand("trainer")
        trainer, = [pid for pid in self.slurm.processes(1)
                    if b"\0RANK=1\0" in pathlib.Path(f"/proc/{pid}/environ").read_bytes()]
        os.kill(trainer, signal.SIGKILL)
        shown = self.await_state(job, "COMPLETED")
        self.assertEqual(shown["Restarts"], "0", self.output())
        self.assertIn("rank 1 was killed by SIGKILL; it is started again", self.output())
        self.assertNotIn("continues from", self.output())
        self.assertEqual(self.model("trainer"), self.expected)

    def test_a_node_that_dies_is_named_and_the_job_is_requeued_and_continues_to_the_bit(self):
        job = self.submit_to_stand("node")
        self.slurm.kill_node(1)
        said = r"node 1 \(10\.77\.0\.2\) is gone: its launcher was killed, or the network does not"
        wait_for(lambda: re.search(said, self.output()), self.output)
        wait_for(lambda: self.show(job)["Restarts"] == "1", self.output)
        for left in (self.folder / "tmp").glob("tessera*"):
            if str(left) not in self.command_lines(0):
                shutil.rmtree(left)  # Of the dead launcher.
        self.slurm.start_node(1)
        self.assert_resumed_to_the_bit(job, restarts=1)

    def command_lines(self, node):
        found = ""
        for pid in self.slurm.processes(node):
            try:
                found += pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            except OSError:
                pass
        return found

    def test_an_error_of_the_program_that_comes_back_ends_the_job(self):
        # Not before a checkpoint: then it may be the machine's.
        mark = self.folder / "error.mark"
        job = self.submit("error", TEST_MARK=mark, TEST_ERROR="1")
        wait_for(lambda: self.show(job)["Restarts"] == "1", self.output)
        # Whichever rank ends first.
        self.assertRegex(self.output(), r"rank [01] exited with status 1: .*bad batch; the job is")
        self.assertIn("it ended with status 1, after a new checkpoint", self.output())
        self.assert_resumed_to_the_bit(job, restarts=1)
        job = self.submit("wrong", CERTIFICATES="/nonexistent")
        self.await_state(job, "FAILED")
        self.assertEqual(self.show(job)["Restarts"], "0")


if __name__ == "__main__":
    unittest.main()
