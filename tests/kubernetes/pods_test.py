"""Pods of deploy/kubernetes that are killed, and train to the same bits: tools/kubernetes-check."""

import copy
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from pods import Cluster, Image, Mount

_TOP = pathlib.Path(__file__).resolve().parents[2]
_STEPS, _SAVE_EVERY = 300, 50
_TORCH = "/opt/pytorch"  # Where a trainers' image of one's own would have it.


def _lacks() -> str | None:
    if os.geteuid() != 0:
        return "root"
    for program in ("ip", "kubectl", "nsenter", "setpriv", "umoci", "unshare"):
        if shutil.which(program) is None:
            return program
    for variable in ("TESSERA_TEST_IMAGE", "TESSERA_TEST_TRAINER_IMAGE"):
        if variable not in os.environ:
            return f"{variable}, FOLDER:TAG of an image of tools/image"
    for module in ("torch", "yaml"):
        if subprocess.run([sys.executable, "-c", f"import {module}"], check=False,
                          capture_output=True).returncode != 0:
            return f"a Python that has {module}"
    return None


def _folder_with_torch() -> pathlib.Path:
    found = subprocess.run([sys.executable, "-c", "import torch; print(torch.__path__[0])"],
                           check=True, capture_output=True, text=True)
    return pathlib.Path(found.stdout.strip()).parent


class PodsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        lacks = _lacks()
        if lacks is not None:
            raise unittest.SkipTest(f"needs {lacks}")
        import yaml
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="tessera-pods-"))
        cls.shared.chmod(0o755)
        cls.addClassCleanup(shutil.rmtree, cls.shared)
        cls.objects, cls.monitored = [
            list(yaml.safe_load_all(subprocess.run(
                ["kubectl", "kustomize", _TOP / "deploy/kubernetes" / name], check=True,
                capture_output=True, text=True).stdout))
            for name in ("base", "overlays/monitoring")]
        cls.images = {
            name: Image.unpack(os.environ[variable], cls.shared / name)
            for name, variable in (("tessera", "TESSERA_TEST_IMAGE"),
                                   ("tessera-trainer", "TESSERA_TEST_TRAINER_IMAGE"))}
        cls.certificates = cls.shared / "certificates"
        # As docs/guide/kubernetes.md says.
        cls.command(["certs", "make", "/tmp/certificates", "--coordinator", "coordinator",
                     "--coordinator", "train-0.train", "--nodes", "training"])
        cls.trained = {}

    @classmethod
    def command(cls, arguments, check=True):
        """The image's `tessera`, where /tmp is the folder that the tests share."""
        script = ('mkdir -p "$0/tmp" && mount --bind "$1" "$0/tmp" && mount -t proc proc "$0/proc" '
                  '&& exec chroot "$0" tessera "${@:2}"')
        return subprocess.run(
            ["unshare", "--mount", "bash", "-ec", script, cls.images["tessera"].root, cls.shared,
             *map(str, arguments)], check=check, capture_output=True, text=True)

    def setUp(self):
        self.make_cluster(self.objects)

    def make_cluster(self, objects):
        folder = tempfile.TemporaryDirectory(prefix="pods-", dir=self.shared)
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name)
        path.chmod(0o755)
        self.cluster = Cluster(copy.deepcopy(objects), self.images, path,
                               {"tessera-certificates": self.certificates})
        self.addCleanup(self.cluster.close)
        self.cluster.extra_mounts["train"] = [Mount(_folder_with_torch(), _TORCH, read_only=True)]
        self.cluster.environment["train"] = {"PYTHONPATH": _TORCH, "OMP_NUM_THREADS": "1",
                                             "PYTHONDONTWRITEBYTECODE": "1"}
        self.set_argument("--steps=1000", f"--steps={_STEPS}")
        self.set_argument("--save-every=50", f"--save-every={_SAVE_EVERY}")

    def set_argument(self, before, *after):
        args = self.cluster.object("Job", "train")["spec"]["template"]["spec"]["containers"][0][
            "args"]
        place = args.index(before)
        args[place:place + 1] = after

    def start(self, *strategy):
        if strategy:
            self.set_argument("--checkpoint=/checkpoints/train", "--checkpoint=/checkpoints/train",
                              *strategy)
        coordinator = self.cluster.start_stateful_set("coordinator")
        pods = self.cluster.start_job("train")
        return coordinator, pods

    def finish(self, *pods):
        for pod in pods:
            self.assertEqual(pod.wait(), 0, pod.output())
        path = self.cluster.claims / "checkpoints/train"
        self.assertTrue(path.exists())
        return path

    def undisturbed(self, *strategy):
        """The checkpoint that undisturbed pods leave."""
        if strategy not in self.trained:
            case = PodsTest("start")
            case.setUp()
            try:
                _, pods = case.start(*strategy)
                kept = self.shared / f"undisturbed-{len(self.trained)}"
                shutil.copytree(case.finish(*pods), kept)
                self.trained[strategy] = kept
            finally:
                case.doCleanups()
        return self.trained[strategy]

    def assert_same_bits(self, found, *strategy):
        expected = self.undisturbed(*strategy)
        inside = [pathlib.Path("/tmp") / path.relative_to(self.shared) for path in (expected, found)]
        result = self.command(["diff", *inside], check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_coordinators_probes_pass_while_it_serves_and_only_then(self):
        coordinator = self.cluster.start_stateful_set("coordinator")
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            coordinator.await_probe(kind)
        coordinator.signal(signal.SIGSTOP)
        command = ["tessera", "workers", "--timeout=1s"]
        self.assertNotEqual(coordinator.exec(command, 30).returncode, 0)
        coordinator.signal(signal.SIGCONT)
        coordinator.await_probe("livenessProbe")
        coordinator.signal(signal.SIGTERM)
        self.assertEqual(coordinator.wait(), 0, coordinator.output())

    def test_with_monitoring_probes_and_metrics_are_served_by_http(self):
        if "--http-listen" not in subprocess.run(
                ["chroot", self.images["tessera"].root, "tessera-coordinator", "--help"], check=True,
                capture_output=True, text=True).stdout:
            self.skipTest("the images' programs have no --http-listen")
        self.make_cluster(self.monitored)
        coordinator, pods = self.start()
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            coordinator.await_probe(kind)
        pods[0].await_line("step 60\n")
        for pod, metric in ((coordinator, "tessera_job_committed_step"),
                            (pods[0], "tessera_rank_step")):
            self.assertIn(metric, pod.get("http", "/metrics", 60).stdout)
        self.finish(*pods)

    def test_a_killed_pod_whose_shards_others_have_costs_a_step(self):
        _, pods = self.start()
        pods[1].await_line("step 60\n")
        pods[1].kill()
        pods[0].await_line("node 1 (10.88.0.")
        pods[1] = self.cluster.start_index("train", 1)
        found = self.finish(*pods)
        self.assertIn("takes its place again", pods[0].output())
        for pod in pods:
            self.assertNotIn("continues after step", pod.output())
        self.assertNotIn("step 1\n", pods[1].output())
        self.assert_same_bits(found)

    def test_an_evicted_pod_is_replaced_too(self):
        _, pods = self.start()
        pods[1].await_line("step 60\n")
        pods[1].signal(signal.SIGTERM)
        self.assertEqual(pods[1].wait(), 130, pods[1].output())
        pods[1] = self.cluster.start_index("train", 1)
        found = self.finish(*pods)
        self.assertIn("node 1: terminated by SIGTERM", pods[0].output())
        for pod in pods:
            self.assertNotIn("continues after step", pod.output())
        self.assert_same_bits(found)

    def test_a_killed_coordinator_disturbs_no_pod(self):
        coordinator, pods = self.start()
        pods[1].await_line("step 60\n")
        coordinator.kill()
        successor = self.cluster.start_stateful_set("coordinator")
        found = self.finish(*pods)
        self.assertIn("coordinator listens", successor.output())
        self.assert_same_bits(found)

    def test_if_pod_0_is_killed_all_continue_at_the_checkpoint(self):
        _, pods = self.start()
        pods[0].await_line("step 60\n")
        pods[0].kill()
        self.assertEqual(pods[1].wait(), 75, pods[1].output())  # Another try may help.
        self.assertIn("is gone: its launcher was killed", pods[1].output())
        pods = self.cluster.start_job("train")
        found = self.finish(*pods)
        self.assertIn("job 'train' of earlier launchers is deleted", pods[0].output())
        self.assertIn("continues after step", pods[1].output())
        self.assert_same_bits(found)

    def test_if_nobody_else_has_the_shards_all_continue_at_the_checkpoint(self):
        strategy = "--strategy=FULL_SHARD"
        _, pods = self.start(strategy)
        pods[1].await_line("step 60\n")
        pods[1].kill()
        # It takes its place again, whose shards are lost: that ends the job on all nodes.
        pods[1] = self.cluster.start_index("train", 1)
        for pod in pods:
            self.assertEqual(pod.wait(), 1, pod.output())
        pods = self.cluster.start_job("train")
        found = self.finish(*pods)
        self.assertIn("continues after step", pods[1].output())
        self.assert_same_bits(found, strategy)


if __name__ == "__main__":
    unittest.main()
