"""tessera run over two nodes: two network namespaces with nothing but a wire between them."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from run_command_test import descendants_with
from tessera import _slurm
from tessera._daemons import programs_folder
from tessera._hub import LOST
from tessera.errors import TesseraError

_TRAINER = pathlib.Path(__file__).parent / "trainer.py"
_HOSTS = ("10.77.0.1", "10.77.0.2")
_COORDINATOR = f"{_HOSTS[0]}:7060"
_STEPS = 6
# Kills itself once, as rank 3 in step 3. The mark is there for its successor.
_KILLED_ONCE = """
import os, pathlib, signal, sys
sys.path.insert(0, {folder!r})
import trainer
mark = pathlib.Path({mark!r})
if os.environ["RANK"] == "3" and not mark.exists():
    mark.touch()
    plain = trainer.loss_of
    def loss_of(model, rank, step):
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(model, rank, step)
    trainer.loss_of = loss_of
trainer.main()
"""
# With a mark's path it stands still as rank 1 in step 3, once.
_HYBRID = """
import pathlib, sys, threading
import torch, tessera
torch.manual_seed(1)
model = tessera.shard(torch.nn.Linear(4, 4), strategy="HYBRID_SHARD",
                      config={"shard_group_size": 1})
opt = tessera.AdamW(model, lr=1e-2)
model.tessera.attach()
rank, tries = model.tessera.rank, {}
while model.tessera.next_step <= 6:
    def closure():
        step = model.tessera.next_step
        tries[step] = tries.get(step, 0) + 1
        if tries[step] > 1:
            print("redone", step)
        torch.manual_seed(10 * step + rank)
        loss = model(torch.randn(3, 4)).square().mean()
        mark = pathlib.Path(sys.argv[2]) if sys.argv[2:] else None
        if mark and rank == 1 and step == 3 and not mark.exists():
            mark.touch()
            print("stopped")
            threading.Event().wait()
        loss.backward()
        return loss
    opt.step(closure)
state = model.state_dict()
if rank == 0:
    pathlib.Path(sys.argv[1] + ".txt").write_text(
        repr({key: [float(x).hex() for x in value.flatten()] for key, value in state.items()}))
"""


def enter(holder):
    return ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]


def enter_by_name(holder, name, hosts):
    """As enter, where the node has this name, and /etc/hosts is the file `hosts`."""
    script = f'mount --bind {hosts} /etc/hosts; hostname "$0"; exec "$@"'
    return [*enter(holder), "unshare", "--mount", "--uts", "sh", "-ec", script, name]


def make_nodes():
    """Processes that hold the namespaces. Errors: CalledProcessError, OSError"""
    holders = []
    for _ in _HOSTS:
        holders.append(subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        if holders[-1].stdout.readline() != b"ready\n":
            raise OSError(holders[-1].communicate()[1].decode().strip())
    wire = ["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
            str(holders[1].pid)]
    for holder, commands in zip(holders, ([wire], [])):
        for command in commands:
            subprocess.run([*enter(holder), "ip", *command], check=True, capture_output=True)
    for holder, host in zip(holders, _HOSTS):
        for command in (["link", "set", "lo", "up"], ["link", "set", "eth0", "up"],
                        ["address", "add", f"{host}/24", "dev", "eth0"]):
            subprocess.run([*enter(holder), "ip", *command], check=True, capture_output=True)
    return holders


def make_certificates(folder, authority="ca", host=_HOSTS[0], node="alice-node", signed_by=None):
    """A folder for --certs, as docs/guide/several-nodes.md has it."""
    folder.mkdir()

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    if signed_by is None:
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-keyout", "ca.key",
                "-out", "ca.pem", "-subj", f"/CN={authority}")
    else:
        for name in ("ca.key", "ca.pem"):
            shutil.copy(signed_by / name, folder)
    (folder / "names").write_text(f"subjectAltName=IP:{host}")
    for name, common in (("coordinator", "coordinator"), ("node", node)):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out",
                f"{name}.csr", "-subj", f"/CN={common}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-days", "9", "-out", f"{name}.pem", "-extfile", "names")
    return folder


class NodesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
            raise unittest.SkipTest("needs root, ip, nsenter and unshare")
        try:
            cls.holders = make_nodes()
        except (OSError, subprocess.CalledProcessError) as error:
            raise unittest.SkipTest(f"no network namespaces: {error}")
        cls.trained = None

    @classmethod
    def tearDownClass(cls):
        for holder in cls.holders:
            holder.communicate()

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tessera-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "tmp").mkdir()
        self.environment = {**os.environ, "TMPDIR": str(self.folder / "tmp"),
                            "TESSERA_TOKEN_FILE": str(self.folder / "token")}
        self.processes = []
        self.addCleanup(self.kill_all)

    def kill_all(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()

    def launch(self, host, *arguments, **environment):
        process = subprocess.Popen(
            [*enter(self.holders[host]), sys.executable, "-m", "tessera.run", *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**self.environment, **environment})
        self.processes.append(process)
        return process

    def start(self, node, *arguments, ranks=2, security=("--insecure",), nnodes=2, **environment):
        return self.launch(node, "--nnodes", nnodes, "--node-rank", node, "--rendezvous",
                           f"{_HOSTS[0]}:7070", *security, "-n", ranks, *arguments, **environment)

    def start_both(self, *arguments, **kwargs):
        return [self.start(node, *arguments, **kwargs) for node in (0, 1)]

    def finish(self, process, status=0):
        try:
            output, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            for each in self.processes:
                each.kill()
            self.fail(f"it did not end: {[each.communicate()[0] for each in self.processes]}")
        self.assertEqual(process.returncode, status, output)
        return output

    def finish_all(self, processes, *statuses):
        outputs = [self.finish(process, status) for process, status in zip(processes, statuses)]
        self.assert_nothing_is_left()
        return outputs

    def assert_nothing_is_left(self):
        self.assertEqual(descendants_with(self.folder.name), [], "processes were left")
        self.assertEqual(list((self.folder / "tmp").glob("tessera*")), [], "files were left")

    def await_line(self, process, text, times=1):
        for line in process.stdout:
            times -= text in line
            if times == 0:
                return
        self.fail(f"it ended without saying '{text}'")

    def train(self, name, *program, **kwargs):
        import torch
        out = self.folder / f"{name}.pt"
        outputs = self.finish_all(self.start_both(*program, out, _STEPS, 0, **kwargs), 0, 0)
        return torch.load(out), outputs

    def undisturbed(self):
        if NodesTest.trained is None:
            NodesTest.trained, _ = self.train("undisturbed", _TRAINER)
        return NodesTest.trained

    def assert_same_bits(self, found, expected):
        import torch
        for key, value in expected.items():
            self.assertTrue(torch.equal(value, found[key]), key)

    def test_two_nodes_train_as_one_plain_module(self):
        import torch
        import trainer
        found = self.undisturbed()
        for key, value in trainer.train_plain(4, _STEPS).items():
            torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-5)

    def test_one_rank_on_each_of_two_nodes_has_the_bits_of_two_on_one(self):
        import torch
        out = self.folder / "one.pt"
        self.finish(self.launch(0, "-n", 2, _TRAINER, out, _STEPS, 0))
        found, _ = self.train("two", _TRAINER, ranks=1)
        self.assert_same_bits(found, torch.load(out))

    @unittest.skipUnless(shutil.which("openssl"), "needs openssl")
    def test_with_certificates_a_killed_trainer_is_started_again_to_the_bit(self):
        expected = self.undisturbed()
        certificates = make_certificates(self.folder / "certs")
        script = self.folder / "script.py"
        script.write_text(_KILLED_ONCE.format(folder=str(_TRAINER.parent),
                                              mark=str(self.folder / "mark")))
        found, outputs = self.train("killed", script,
                                    security=("--certs", certificates, "--insecure-data"))
        self.assertIn("rank 3 was killed by SIGKILL; it is started again", outputs[1])
        self.assert_same_bits(found, expected)

    def test_trainers_see_torchruns_variables(self):
        show = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR"
        outputs = self.finish_all(self.start_both("--", "sh", "-c", show), 0, 0)
        found = sorted(line for output in outputs for line in output.splitlines() if line[0] == "[")
        self.assertEqual(found, [f"[{rank}] {rank} {rank % 2} 4 2 {rank // 2} {_HOSTS[0]}"
                                 for rank in range(4)])

    def test_torchs_own_collectives_work_over_nodes(self):
        script = self.folder / "script.py"
        script.write_text("import torch, torch.distributed as dist\n"
                          "dist.init_process_group('gloo')\n"
                          "sum = torch.tensor([float(dist.get_rank())])\n"
                          "dist.all_reduce(sum)\n"
                          "print('sum', sum.item())\n")
        outputs = self.finish_all(self.start_both(script, ranks=1, GLOO_SOCKET_IFNAME="eth0"),
                                  0, 0)
        self.assertEqual([output.count("sum 1.0") for output in outputs], [1, 1], outputs)

    def test_an_error_of_a_trainer_ends_the_job_on_all_nodes_with_its_message(self):
        script = "if [ $RANK = 3 ]; then echo bad batch; exit 7; fi; exec sleep 1000"
        for output in self.finish_all(self.start_both("--", "sh", "-c", script), 7, 7):
            self.assertIn("tessera: node 1: rank 3 exited with status 7: bad batch; the job is "
                          "ended", output)

    def test_a_killed_worker_ends_the_job_on_all_nodes_and_is_named(self):
        both = self.start_both("--", "sh", "-c", "echo waits; exec sleep 1000")
        for process in both:
            self.await_line(process, "waits", times=2)
        worker, = [pid for pid in descendants_with(self.folder.name)
                   if b"--worker-id\0node-00001\0" in pathlib.Path(
                       f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(worker, signal.SIGKILL)
        for output in self.finish_all(both, LOST, LOST):
            self.assertIn("node 1: the worker ended with status -9; its log ends:", output)

    def test_a_killed_launcher_is_named_by_the_others_and_leaves_no_process(self):
        for killed, survivor in ((1, 0), (0, 1)):
            with self.subTest(killed=killed):
                both = self.start_both("--", "sh", "-c", "echo waits; exec sleep 1000")
                for process in both:
                    self.await_line(process, "waits", times=2)
                both[killed].kill()
                output = self.finish(both[survivor], status=LOST)
                self.assertRegex(output, f"node {killed} .*is gone: its launcher was killed")
                # Its children end by themselves.
                self.assertTrue(both[killed].communicate(timeout=60))
                for folder in (self.folder / "tmp").iterdir():
                    shutil.rmtree(folder)

    def test_interrupting_one_node_ends_all_and_leaves_nothing(self):
        both = self.start_both("--", "sh", "-c", "echo waits; exec sleep 1000")
        for process in both:
            self.await_line(process, "waits", times=2)
        both[1].send_signal(signal.SIGINT)
        for output in self.finish_all(both, 130, 130):
            self.assertIn("node 1: interrupted; the job is ended", output)

    def test_a_node_whose_shards_others_have_is_replaced_to_the_bit(self):
        script = self.folder / "script.py"
        script.write_text(_HYBRID)
        folders = [str(self.folder / name) for name in ("undisturbed", "replaced")]
        self.finish_all(self.start_both(script, folders[0], ranks=1), 0, 0)
        again = ["--replace-timeout", 60, script, folders[1], self.folder / "mark"]
        both = self.start_both(*again, ranks=1)
        self.await_line(both[1], "stopped")
        both[1].kill()
        both.append(self.start(1, *again, ranks=1))
        output = self.finish(both[0])
        self.finish(both[2])
        self.assertIn("node 1 (10.77.0.2) takes its place again", output)
        self.assertIn("redone 3", output)
        expected, found = map(pathlib.Path, (path + ".txt" for path in folders))
        self.assertEqual(found.read_text(), expected.read_text())

    def test_a_node_that_sigterm_ends_is_replaced_too(self):
        again = ["--replace-timeout", 60, "--", "sh", "-c", "echo waits; exec sleep 1000"]
        both = self.start_both(*again)
        for process in both:
            self.await_line(process, "waits", times=2)
        both[1].send_signal(signal.SIGTERM)
        self.assertIn("node 1: terminated by SIGTERM; the job is ended on this node",
                      self.finish(both[1], 130))
        self.await_line(both[0], "the job waits 60 s for another launcher with --node-rank 1")
        both.append(self.start(1, *again))
        self.await_line(both[0], "takes its place again")
        self.await_line(both[2], "waits", times=2)
        both[0].send_signal(signal.SIGTERM)
        self.assertIn("node 0: terminated by SIGTERM", self.finish(both[2], LOST))
        self.finish_all([both[0]], 130)

    def start_coordinator(self):
        process = subprocess.Popen(
            [*enter(self.holders[0]), programs_folder() / "tessera-coordinator", "--listen",
             _COORDINATOR, "--insecure-listen", "--journal", self.folder / "journal"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=self.environment)
        self.processes.append(process)
        return process

    def test_a_given_coordinator_may_be_killed_and_serves_the_next_launchers_too(self):
        expected = self.undisturbed()
        given, out = ["--coordinator", _COORDINATOR], self.folder / "given.pt"
        coordinator = self.start_coordinator()
        both = self.start_both(*given, _TRAINER, self.folder / "never.pt", _STEPS, 3)
        self.await_line(both[1], "stopped", times=2)
        coordinator.kill()
        coordinator.wait()
        coordinator = self.start_coordinator()
        both[1].kill()
        self.assertRegex(self.finish(both[0], status=LOST), "node 1 .*is gone")
        self.assertTrue(both[1].communicate(timeout=60))
        for folder in (self.folder / "tmp").glob("tessera*"):
            shutil.rmtree(folder)
        both = self.start_both(*given, _TRAINER, out, _STEPS, 0)
        outputs = [self.finish(process) for process in both]
        self.assertIn("job 'train' of earlier launchers is deleted", outputs[0])
        coordinator.terminate()
        self.finish_all([coordinator], 0)
        import torch
        self.assert_same_bits(torch.load(out), expected)

    def test_a_given_coordinator_that_does_not_answer_is_named(self):
        process = self.start(0, "--coordinator", _COORDINATOR, "--join-timeout", 1, "--", "true")
        self.assertIn(f"the coordinator at {_COORDINATOR} did not answer within 1 s",
                      self.finish(process, status=LOST))

    def test_flags_for_the_worker_reach_it(self):
        both = self.start_both("--worker-flag=--no-such-flag=7", "--", "true")
        outputs = [self.finish(process, status=1) for process in both]
        self.assertTrue(any("--no-such-flag" in output for output in outputs), outputs)

    def test_a_node_that_nobody_replaces_in_time_ends_the_job(self):
        both = self.start_both("--replace-timeout", 1, "--", "sh", "-c",
                               "echo waits; exec sleep 1000")
        for process in both:
            self.await_line(process, "waits", times=2)
        both[1].kill()
        output = self.finish(both[0], status=LOST)
        self.assertIn("the job waits 1 s for another launcher with --node-rank 1", output)
        self.assertRegex(output, "node 1 .*is gone: .*; none took its place within 1 s")

    def test_a_node_that_the_network_does_not_reach_is_named(self):
        both = self.start_both("--", "sh", "-c", "echo waits; exec sleep 1000")
        for process in both:
            self.await_line(process, "waits", times=2)
        wire = [*enter(self.holders[1]), "ip", "link", "set", "eth0"]
        self.addCleanup(subprocess.run, [*wire, "up"], check=True)
        subprocess.run([*wire, "down"], check=True)
        outputs = self.finish_all(both, LOST, LOST)
        self.assertIn("node 1 (10.77.0.2) is gone", outputs[0])
        self.assertIn("node 0 at 10.77.0.1:7071 is gone", outputs[1])

    def test_a_node_may_start_before_node_0(self):
        first = self.start(1, "--", "true")
        self.await_line(first, "node 1 waits for node 0 at 10.77.0.1:7071")
        self.finish_all([first, self.start(0, "--", "true")], 0, 0)

    def test_missing_nodes_are_named_by_those_that_came(self):
        both = self.start_both("--join-timeout", 3, "--", "true", nnodes=4)
        for output in self.finish_all(both, LOST, LOST):
            self.assertIn("nodes 2, 3 of 4 did not join within 3 s", output)
        output = self.finish(self.start(1, "--join-timeout", 1, "--", "true"), status=LOST)
        self.assertIn("node 0 at 10.77.0.1:7071 did not answer within 1 s", output)

    def test_a_missing_script_on_one_node_ends_all_and_is_named(self):
        script = self.folder / "script.py"
        script.touch()
        both = [self.start(0, script), self.start(1, self.folder / "scirpt.py")]
        for output in self.finish_all(both, 1, 1):
            self.assertRegex(output, "node 1: .*scirpt.py: no such file on ")

    def test_nodes_that_were_started_differently_are_named(self):
        for others, said in ((["-n", 3], "it has -n 3, and node 0 has -n 2"),
                             (["--nnodes", 3], "it has --nnodes 3, and node 0 has --nnodes 2"),
                             (["--job", "other"],
                              "it has --job other, and node 0 has --job train")):
            with self.subTest(said):
                both = [self.start(0, "--", "true"), self.start(1, *others, "--", "true")]
                for output in self.finish_all(both, 1, 1):
                    self.assertIn(f"node 1 (10.77.0.2) cannot join: {said}", output)

    def test_a_second_launcher_of_a_node_is_refused_and_disturbs_nothing(self):
        script = f"echo waits; while [ ! -e {self.folder}/go ]; do sleep 0.1; done"
        both = self.start_both("--", "sh", "-c", script)
        for process in both:
            self.await_line(process, "waits", times=2)
        output = self.finish(self.start(1, "--", "true"), status=1)
        self.assertIn("10.77.0.2 has joined as node 1 already", output)
        output = self.finish(self.start(0, "--", "true"), status=1)
        self.assertIn("cannot listen on 10.77.0.1:7071: Address already in use", output)
        (self.folder / "go").touch()
        self.finish_all(both, 0, 0)

    def test_an_address_that_node_0_cannot_have_is_named(self):
        for where, said in (("10.77.0.2:7070", "cannot listen on 10.77.0.2:7071: Cannot assign "
                             "requested address: node 0 must be the node that has this address"),
                            ("no.such.host.invalid:7070", "cannot listen on no.such.host.invalid")):
            with self.subTest(where):
                process = self.start(0, "--rendezvous", where, "--join-timeout", 1, "--", "true")
                self.assertIn(said, self.finish(process, status=1))

    def test_another_users_token_is_refused_by_name(self):
        token = self.folder / "other"
        token.write_text("00" * 32)
        token.chmod(0o600)
        leader = self.start(0, "--", "true")
        output = self.finish(self.start(1, "--", "true", TESSERA_TOKEN_FILE=str(token)), status=1)
        self.assertIn("cannot join: its access token is not that of node 0: copy node 0's "
                      f"{self.folder}/token there", output)
        leader.send_signal(signal.SIGINT)
        self.finish_all([leader], 130)

    @unittest.skipUnless(shutil.which("openssl"), "needs openssl")
    def test_certificates_that_do_not_fit_are_named(self):
        good = make_certificates(self.folder / "good")
        elsewhere = make_certificates(self.folder / "elsewhere", host="10.77.0.9")
        stranger = make_certificates(self.folder / "stranger", authority="stranger")
        bob = make_certificates(self.folder / "bob", node="bob", signed_by=good)

        def security(folder):
            return ("--certs", folder, "--insecure-data")

        output = self.finish(self.start(0, "--", "true", security=security(elsewhere)), status=1)
        self.assertIn("do not work together for the host 10.77.0.1", output)
        leader = self.start(0, "--", "true", security=security(good))
        self.await_line(leader, "node 0 waits")
        for given, said in (
                (security(stranger), "certificate verify failed"),
                (security(bob),
                 "node.pem has the common name 'bob', and node 0's has 'alice-node'"),
                (security(self.folder), "ca.pem: no such file")):
            with self.subTest(said):
                process = self.start(1, "--", "true", security=given)
                self.assertIn(said, self.finish(process, status=1))
        leader.send_signal(signal.SIGINT)
        self.finish_all([leader], 130)

    def test_srun_says_which_node_this_is(self):
        # As srun of Slurm 22.05 sets them. A batch script has those of the job alone.
        job = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "10.77.0.[1-2]"}
        slurm = {**job, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "10.77.0.[1-2]",
                 "SLURM_STEP_NUM_TASKS": "2"}
        show = "echo $RANK of $WORLD_SIZE at $TESSERA_COORDINATOR"
        both = [self.launch(node, "--insecure", "-n", 1, "--", "sh", "-c", show,
                            SLURM_NODEID=str(node), **slurm) for node in (0, 1)]
        for node, output in enumerate(self.finish_all(both, 0, 0)):
            self.assertIn(f"{node} of 2 at 10.77.0.1:20034", output)
        for wrong, said in (({**slurm, "SLURM_STEP_NUM_TASKS": "8"}, "srun starts 8 tasks on 2"),
                            (job, "the Slurm job has 2 nodes, and this was not started by srun")):
            process = self.launch(0, "--insecure", "-n", 1, "--", "true", SLURM_NODEID="0", **wrong)
            self.assertIn(said, self.finish(process, status=1))


class ArgumentsTest(unittest.TestCase):
    def test_lists_of_nodes_are_expanded_as_slurm_does(self):
        for text, names in (("n1", ["n1"]), ("a,b", ["a", "b"]),
                            ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
                            ("n[08-10]-ib,m", ["n08-ib", "n09-ib", "n10-ib", "m"]),
                            ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"])):
            self.assertEqual(_slurm.node_names(text), names)
        for text in ("", "n[1-3", "n]", "a,,b", "n[x]", "n[]"):
            with self.assertRaises(TesseraError, msg=text):
                _slurm.node_names(text)

    def test_wrong_arguments_are_named_with_what_to_do(self):
        two = ["--nnodes", "2", "--rendezvous", "host:7070"]
        for arguments, said in (
                (["--nnodes", "2"], "needs --node-rank I, from 0 to 1, and --rendezvous HOST:PORT"),
                ([*two, "--node-rank", "2", "--insecure"], "of 2 nodes it is from 0 to 1"),
                (["--nnodes", "2", "--node-rank", "0", "--rendezvous", "host", "--insecure"],
                 "not HOST:PORT"),
                ([*two, "--node-rank", "0"], "one of --certs DIR (TLS"),
                ([*two, "--node-rank", "0", "--certs", "x", "--insecure"], "one of --certs DIR"),
                ([*two, "--node-rank", "0", "--certs", "x"], "add --insecure-data"),
                (["--nnodes", "0"], "at least 1 node"),
                (["--coordinator", "host:7070"], "--nnodes 1 needs --node-rank I, from 0 to 0"),
                ([*two, "--node-rank", "0", "--coordinator", "host"], "--coordinator host: not"),
                (["--worker-flag=--gpu=0"], "--worker-flag is for several nodes")):
            with self.subTest(said):
                found = subprocess.run(
                    [sys.executable, "-m", "tessera.run", "-n", "1", *arguments, "--", "true"],
                    capture_output=True, text=True, check=False, timeout=60)
                self.assertEqual(found.returncode, 2)
                self.assertIn(said, " ".join(found.stderr.split()))


if __name__ == "__main__":
    unittest.main()
