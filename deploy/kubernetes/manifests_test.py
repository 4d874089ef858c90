"""What Kustomize makes of deploy/kubernetes: valid, consistent in itself, and as restricted as it says."""

import copy
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types
import unittest
import unittest.mock

from run import run_suite

# Copies of the sources: Kustomize follows no links out of its folder.
_SOURCES = pathlib.Path(os.environ["TESSERA_SOURCES"])
_FOLDER = _SOURCES / "deploy/kubernetes"
_RENDERED = ("base", "overlays/gpu", "overlays/monitoring")
_USER = 10001  # tools/image's.
# The oldest one in which podFailurePolicy is not a preview.
_VERSIONS = ("1.31", "1.35")


def _lacks() -> str | None:
    if shutil.which("kubectl") is None:
        return "kubectl"
    said = subprocess.run(["kubectl", "kustomize", "--help"], check=False, capture_output=True,
                          text=True).stdout
    if "--enable-helm" not in said:
        return "a kubectl newer than 1.21, whose Kustomize knows components"
    for module in ("yaml", "kubernetes_validate"):
        try:
            __import__(module)
        except ImportError:
            return f"Python's {module}: tools/setup --with-operations"
    return None


def render(name: str) -> list[dict]:
    import yaml
    done = subprocess.run(["kubectl", "kustomize", _FOLDER / name], check=False,
                          capture_output=True, text=True)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{name}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def flags_of(program: str) -> set[str]:
    said = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"--[a-z][a-z-]*", said))


class ManifestsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        lacks = _lacks()
        if lacks is not None:
            raise unittest.SkipTest(f"needs {lacks}")
        cls.rendered = {name: render(name) for name in _RENDERED}

    def each(self, *kinds):
        """(overlay, object) of these kinds."""
        for name, objects in self.rendered.items():
            for found in objects:
                if found["kind"] in kinds:
                    yield name, found

    def of(self, name, kind, called):
        found, = [each for each in self.rendered[name]
                  if (each["kind"], each["metadata"]["name"]) == (kind, called)]
        return found

    def test_all_of_it_is_valid(self):
        import kubernetes_validate
        for name, objects in self.rendered.items():
            for found in objects:
                if found["kind"] == "PodMonitor":
                    continue  # Of the Prometheus operator: there is no schema of it here.
                for version in _VERSIONS:
                    with self.subTest(name, kind=found["kind"], version=version):
                        kubernetes_validate.validate(found, version, strict=True)

    def test_an_unknown_field_is_seen(self):
        import kubernetes_validate
        wrong = copy.deepcopy(self.of("base", "Job", "train"))
        wrong["spec"]["template"]["spec"]["containers"][0]["argz"] = []
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, _VERSIONS[0], strict=True)

    def test_pods_meet_the_restricted_standard_with_a_root_that_is_read_only(self):
        for name, found in self.each("StatefulSet", "Job"):
            pod = found["spec"]["template"]["spec"]
            with self.subTest(name, pod=found["metadata"]["name"]):
                security = pod["securityContext"]
                self.assertTrue(security["runAsNonRoot"])
                self.assertEqual([security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")],
                                 [_USER] * 3)
                self.assertEqual(security["seccompProfile"], {"type": "RuntimeDefault"})
                self.assertFalse(pod["automountServiceAccountToken"])
                self.assertFalse({"hostNetwork", "hostPID", "hostIPC"} & set(pod))
                self.assertFalse([each for each in pod["volumes"] if "hostPath" in each])
                for container in pod["containers"]:
                    self.assertEqual(container["securityContext"], {
                        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]}})
                    self.assertIn("memory", container["resources"]["limits"])

    def test_the_number_of_pods_is_the_same_wherever_it_stands(self):
        for name, job in self.each("Job"):
            args = job["spec"]["template"]["spec"]["containers"][0]["args"]
            nodes, = [arg.split("=")[1] for arg in args if arg.startswith("--nnodes=")]
            budget = self.of(name, "PodDisruptionBudget", "train")
            self.assertEqual({job["spec"]["completions"], job["spec"]["parallelism"], int(nodes),
                              budget["spec"]["minAvailable"]}, {int(nodes)}, name)

    def test_names_and_selectors_find_what_they_mean(self):
        for name, service in self.each("Service"):
            workloads = [found for _, found in self.each("StatefulSet", "Job")
                         if service["spec"]["selector"].items()
                         <= found["spec"]["template"]["metadata"]["labels"].items()]
            self.assertEqual({found["metadata"]["name"] for found in workloads},
                             {service["metadata"]["name"]}, name)
        for name, job in self.each("Job"):
            pod, arguments = job["spec"]["template"]["spec"], {}
            for arg in pod["containers"][0]["args"]:
                arguments.setdefault(*arg.partition("=")[::2])
            self.assertEqual(self.of(name, "Service", pod["subdomain"])["spec"]["clusterIP"],
                             "None")
            self.assertEqual(arguments["--rendezvous"], f"{job['metadata']['name']}-0."
                             f"{pod['subdomain']}:7070")
            service, port = arguments["--coordinator"].split(":")
            found, = self.of(name, "Service", service)["spec"]["ports"]
            self.assertEqual(found["port"], int(port))
        for name, found in self.each("StatefulSet", "Job"):
            pod = found["spec"]["template"]["spec"]
            volumes = {each["name"] for each in pod["volumes"]} | {
                each["metadata"]["name"] for each in found["spec"].get("volumeClaimTemplates", [])}
            mounted = {each["name"] for each in pod["containers"][0]["volumeMounts"]}
            self.assertEqual(volumes, mounted, name)

    def test_a_monitor_and_the_network_policies_name_a_port_that_pods_have(self):
        name = "overlays/monitoring"
        monitor = self.of(name, "PodMonitor", "tessera")
        ports = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
        for kind, called in (("StatefulSet", "coordinator"), ("Job", "train")):
            template = self.of(name, kind, called)["spec"]["template"]
            self.assertLessEqual(monitor["spec"]["selector"]["matchLabels"].items(),
                                 template["metadata"]["labels"].items())
            self.assertLessEqual(ports, {each["name"] for each in
                                         template["spec"]["containers"][0]["ports"]})
            policy = self.of(name, "NetworkPolicy", called)
            self.assertIn({"ports": [{"port": "http"}]}, policy["spec"]["ingress"])

    def test_a_gpu_is_asked_for_and_given_to_the_worker(self):
        container = self.of("overlays/gpu", "Job", "train")["spec"]["template"]["spec"][
            "containers"][0]
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertIn("--worker-flag=--gpu=0", container["args"])
        self.assertTrue(container["image"].endswith("-cuda"))

    def test_the_programs_know_the_arguments(self):
        programs = os.environ.get("TESSERA_PROGRAMS")
        if programs is None:
            self.skipTest("needs TESSERA_PROGRAMS, a folder with coordinator and worker")
        known = {name: flags_of(f"{programs}/{name}") for name in (
            "tessera-coordinator", "tessera-worker")}
        for name, found in self.each("StatefulSet", "Job"):
            if name == "overlays/monitoring" and "--http-listen" not in known["tessera-worker"]:
                self.skipTest("these programs have no --http-listen, which overlays/monitoring uses")
            container = found["spec"]["template"]["spec"]["containers"][0]
            if found["kind"] == "Job":
                flags = [arg.split("=", 1)[1] for arg in container["args"]
                         if arg.startswith("--worker-flag=")]
                program = "tessera-worker"
            else:
                flags, program = container["args"], container["command"][0]
            with self.subTest(name, program=program):
                self.assertLessEqual({flag.split("=")[0] for flag in flags}, known[program])

    def test_the_launcher_takes_the_jobs_arguments(self):
        # Without the package's own module, which imports PyTorch.
        package = types.ModuleType("tessera")
        package.__path__ = [str(_SOURCES / "client/python/tessera")]
        with unittest.mock.patch.dict(sys.modules, tessera=package):
            run = importlib.import_module("tessera.run")
        for name, job in self.each("Job"):
            container = job["spec"]["template"]["spec"]["containers"][0]
            self.assertEqual(container["command"], ["tessera", "run"])
            given = run._parse([arg.replace("$(NODE_RANK)", "1") for arg in container["args"]])
            self.assertEqual((given.nnodes, given.node_rank, given.program[0]),
                             (2, 1, "/program/train.py"), name)


if __name__ == "__main__":
    sys.exit(run_suite(unittest.defaultTestLoader.loadTestsFromTestCase(ManifestsTest)))
