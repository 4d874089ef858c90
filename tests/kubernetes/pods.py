"""Starts the pods of rendered manifests on one machine that has no Kubernetes; needs root.

A pod has the command line, environment, user, groups, mounts and read-only root that its manifest and
its image say, in namespaces of its own: network, processes, mounts, IPC and the host's name. A bridge
joins the pods, and /etc/hosts has the names that a cluster's DNS would give them. A claim's volume is a
folder that outlives the pod. Not here: seccomp, limits of memory and CPU, network policies, scheduling,
and other probes than by exec and HTTP.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

_NETWORK = "10.88.0"
_SIZES = {"Ki": 2 ** 10, "Mi": 2 ** 20, "Gi": 2 ** 30}
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEADLINE_SECONDS = 600.0  # Of everything that is waited for.


@dataclasses.dataclass
class Image:
    """An image that umoci has unpacked, and what its configuration says."""

    root: pathlib.Path
    process: dict  # Of the OCI runtime's config.json: args, env, cwd, user.

    @classmethod
    def unpack(cls, image: str, folder: pathlib.Path) -> "Image":
        subprocess.run(["umoci", "unpack", "--image", image, folder], check=True,
                       capture_output=True)
        config = json.loads((folder / "config.json").read_text())
        return cls(folder / "rootfs", config["process"])


@dataclasses.dataclass
class Mount:
    source: pathlib.Path | None  # None: memory
    target: str
    read_only: bool = False
    size_bytes: int = 0


def _size(text: str) -> int:
    return int(text[:-2]) * _SIZES[text[-2:]]


class Pod:
    """One life of a pod with one container. Its output is kept line by line."""

    def __init__(self, cluster: "Cluster", names: list[str], template: dict, index: int | None):
        """names: the pod's, then those by which others reach it."""
        self.names, self._cluster, self._spec = names, cluster, template["spec"]
        self.name = names[0]
        self._container, = self._spec["containers"]
        self._index = index
        self._image = cluster.images[self._container["image"].split(":")[0]]
        self._folder = cluster.folder / f"{self.name}-{next(cluster.numbers)}"
        self._folder.mkdir()
        self._lines, self._changed, self._ended = [], threading.Condition(), False
        self._holder = cluster.network.join()
        self.address = cluster.network.addresses[self._holder.pid]
        self._first_pid, self._process = None, None

    def start(self) -> "Pod":
        security = {**self._spec["securityContext"], **self._container["securityContext"]}
        if security["runAsUser"] == 0 or not security["runAsNonRoot"]:
            raise ValueError(f"{self.name} would run as root")
        self._identity = ["setpriv", "--reuid", str(security["runAsUser"]), "--regid",
                          str(security["runAsGroup"]), "--groups", str(security["fsGroup"]),
                          "--inh-caps", "-all", "--bounding-set", "-all", "--no-new-privs"]
        if security["capabilities"] != {"drop": ["ALL"]} or security["allowPrivilegeEscalation"]:
            raise ValueError(f"{self.name}: setpriv does something else")
        environment = self._environment()
        self._env = ["env", "-i", f"--chdir={self._image.process['cwd']}", *(f"{key}={value}" for key, value in environment.items())]
        command = self._container.get("command") or self._image.process["args"][:1]
        command = [*command, *(_expand(arg, environment) for arg in self._container["args"])]
        script = self._script(security, command)
        self._process = subprocess.Popen(
            [*enter(self._holder), "unshare", "--mount", "--pid", "--ipc", "--uts", "--fork",
             "--propagation", "private", "bash", "-euc", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def _environment(self) -> dict[str, str]:
        fields = {"status.podIP": self.address, "metadata.name": self.name,
                  "metadata.annotations['batch.kubernetes.io/job-completion-index']":
                      str(self._index)}
        found = dict(each.split("=", 1) for each in self._image.process["env"])
        found.update(self._cluster.environment.get(self._container["name"], {}))
        for each in self._container.get("env", []):
            found[each["name"]] = (each["value"] if "value" in each else
                                   fields[each["valueFrom"]["fieldRef"]["fieldPath"]])
        return found

    def _mounts(self, group: int) -> list[Mount]:
        volumes = {each["name"]: each for each in self._spec.get("volumes", [])}
        found = [Mount(self._cluster.hosts_file, "/etc/hosts", read_only=True),
                 *self._cluster.extra_mounts.get(self._container["name"], [])]
        for place in self._container["volumeMounts"]:
            volume = volumes.get(place["name"]) or {
                "persistentVolumeClaim": {"claimName": f"{place['name']}-{self.name}"}}
            found.append(self._mount(volume, place, group))
        # A parent before what is mounted in it.
        return sorted(found, key=lambda mount: mount.target)

    def _mount(self, volume: dict, place: dict, group: int) -> Mount:
        read_only, target = place.get("readOnly", False), place["mountPath"]
        empty = volume.get("emptyDir")
        if empty is not None and empty.get("medium") == "Memory":
            return Mount(None, target, read_only, _size(empty["sizeLimit"]))
        folder = self._folder / place["name"]
        if empty is not None:
            _own(folder, group, 0o2777)
        elif "persistentVolumeClaim" in volume:
            folder = self._cluster.claims / volume["persistentVolumeClaim"]["claimName"]
            _own(folder, group, 0o2775)
        elif "configMap" in volume:
            _own(folder, group, 0o755)
            for key, text in self._cluster.config_map(volume["configMap"]["name"]).items():
                (folder / key).write_text(text)
        else:
            self._write_secret(folder, volume["secret"], group)
        return Mount(folder, target, read_only)

    def _write_secret(self, folder: pathlib.Path, secret: dict, group: int) -> None:
        _own(folder, group, 0o755)
        for item in secret["items"]:
            path = folder / item["path"]
            shutil.copy(self._cluster.secrets[secret["secretName"]] / item["key"], path)
            shutil.chown(path, 0, group)
            path.chmod(secret["defaultMode"])

    def _script(self, security: dict, command: list[str]) -> str:
        root = self._folder / "root"
        root.mkdir()
        group, mounts = security["fsGroup"], self._mounts(security["fsGroup"])
        lines = [["hostname", self.name]]
        for mount in mounts:
            _make_place(self._image.root / mount.target.lstrip("/"), mount.source)
        lines.append(["mount", "--bind", self._image.root, root])
        if security["readOnlyRootFilesystem"]:
            lines.append(["mount", "-o", "remount,bind,ro", root])
        lines += [["mount", "-t", "proc", "proc", root / "proc"],
                  ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", root / "dev"],
                  ["mkdir", root / "dev/shm"]]
        for device in _DEVICES:
            lines += [["touch", root / "dev" / device],
                      ["mount", "--bind", f"/dev/{device}", root / "dev" / device]]
        for mount in mounts:
            target = f"{root}{mount.target}"
            if mount.source is None:
                lines.append(["mount", "-t", "tmpfs", "-o",
                              f"size={mount.size_bytes},mode=2777,gid={group}", "tmpfs", target])
            else:
                lines.append(["mount", "--bind", mount.source, target])
            if mount.read_only:
                lines.append(["mount", "-o", "remount,bind,ro", target])
        return "\n".join([
            *(shlex.join(map(str, line)) for line in lines),
            "exec " + shlex.join(["chroot", str(root), *self._identity, *self._env,
                                  *command])])

    def _read(self) -> None:
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def output(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def await_line(self, text: str, seconds: float = _DEADLINE_SECONDS) -> None:
        """Errors: AssertionError  with all that it said"""
        def said():
            return any(text in line for line in self._lines)
        with self._changed:
            self._changed.wait_for(lambda: said() or self._ended, seconds)
            found = said()
        if not found:
            raise AssertionError(f"{self.name} did not say '{text}' within {seconds:.0f} s:\n"
                                 + self.output())

    def wait(self, seconds: float = _DEADLINE_SECONDS) -> int:
        """The exit status. Errors: AssertionError  it goes on"""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {seconds:.0f} s:\n"
                                 + self.output()) from None
        self._cluster.network.leave(self._holder)
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, seconds):
                raise AssertionError(f"{self.name}: something has kept its output open")
        self._process.stdout.close()
        return status

    def _first(self) -> int:
        """Process 1 of the pod, by the machine's number."""
        if self._first_pid is None:
            children = pathlib.Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
            self._first_pid, = map(int, children.read_text().split())
        return self._first_pid

    def signal(self, number: int) -> None:
        subprocess.run(["kill", f"-{number}", str(self._first())], check=True)

    def kill(self) -> None:
        """Ends all its processes at once: those of its namespace end with the first."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self.wait()

    def exec(self, command: list[str], seconds: float) -> subprocess.CompletedProcess:
        """As `kubectl exec` and exec probes do."""
        target = f"--target={self._first()}"
        return subprocess.run(
            ["nsenter", target, "--mount", "--net", "--pid", "--ipc", "--uts", "--root", "--wd",
             *self._identity, *self._env, *command],
            capture_output=True, text=True, check=False, timeout=seconds)

    def await_probe(self, kind: str) -> None:
        """Probes it as the kubelet does. Errors: AssertionError  it failed as often as it may"""
        probe, said = self._container[kind], ""
        for _ in range(probe.get("failureThreshold", 3)):  # Kubernetes' own default.
            if self._process.poll() is not None:
                raise AssertionError(f"{self.name} has ended:\n{self.output()}")
            try:
                result = self._probe(probe)
                said = result.stdout + result.stderr
                if result.returncode == 0:
                    return
            except (subprocess.TimeoutExpired, ValueError) as error:
                said = str(error)
            time.sleep(1)  # The kubelet's period, but less.
        raise AssertionError(f"{self.name}: {kind} failed: {said}\n{self.output()}")

    def _probe(self, probe: dict) -> subprocess.CompletedProcess:
        seconds = probe.get("timeoutSeconds", 1) + 60  # For a machine that does other things.
        if "exec" in probe:
            return self.exec(probe["exec"]["command"], seconds)
        return self.get(probe["httpGet"]["port"], probe["httpGet"]["path"], seconds)

    def get(self, port: str, path: str, seconds: float) -> subprocess.CompletedProcess:
        """What the pod answers by HTTP at the port of this name."""
        number, = [each["containerPort"] for each in self._container["ports"]
                   if each["name"] == port]
        program = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read())"
        return subprocess.run(
            [*enter(self._holder), sys.executable, "-c", program,
             f"http://{self.address}:{number}{path}"],
            capture_output=True, text=True, check=False, timeout=seconds)


def _own(folder: pathlib.Path, group: int, mode: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.chown(folder, 0, group)
    folder.chmod(mode)


def _make_place(path: pathlib.Path, source: pathlib.Path | None) -> None:
    """Container runtimes do this too, before they make the root read-only."""
    if source is not None and source.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    else:
        path.mkdir(parents=True, exist_ok=True)


def _expand(text: str, environment: dict[str, str]) -> str:
    """$(NAME), as in a manifest; an unknown one stays."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)


def enter(holder: subprocess.Popen) -> list[str]:
    return ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]


class Network:
    """A bridge in a namespace of its own, and a namespace with an address for each life of a pod."""

    def __init__(self):
        self.addresses: dict[int, str] = {}
        self._holders: list[subprocess.Popen] = []
        self._next = 1
        self._bridge = self._hold()
        self._ip(self._bridge, "link", "add", "br0", "type", "bridge")
        self._ip(self._bridge, "link", "set", "br0", "up")

    def _hold(self) -> subprocess.Popen:
        holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
        self._holders.append(holder)
        if holder.stdout.readline() != b"ready\n":
            raise OSError(f"no network namespaces: {holder.communicate()[1].decode().strip()}")
        return holder

    def _ip(self, holder: subprocess.Popen, *arguments) -> None:
        subprocess.run([*enter(holder), "ip", *map(str, arguments)], check=True,
                       capture_output=True)

    def join(self) -> subprocess.Popen:
        """A process that holds the namespace of a new address."""
        holder = self._hold()
        number, self._next = self._next, self._next + 1
        self._ip(self._bridge, "link", "add", f"pod{number}", "type", "veth", "peer", "name",
                 "eth0", "netns", holder.pid)
        self._ip(self._bridge, "link", "set", f"pod{number}", "master", "br0", "up")
        self._ip(holder, "link", "set", "lo", "up")
        self._ip(holder, "link", "set", "eth0", "up")
        self.addresses[holder.pid] = f"{_NETWORK}.{number}"
        self._ip(holder, "address", "add", f"{_NETWORK}.{number}/24", "dev", "eth0")
        return holder

    def leave(self, holder: subprocess.Popen) -> None:
        """With the namespace its end of the wire goes, and the other one."""
        if holder.poll() is None:
            holder.communicate()

    def close(self) -> None:
        for holder in self._holders:
            self.leave(holder)


class Cluster:
    """The objects of rendered manifests, and the pods that were started of them."""

    def __init__(self, objects: list[dict], images: dict[str, Image], folder: pathlib.Path,
                 secrets: dict[str, pathlib.Path]):
        """images: by name without a tag. secrets: by name, a folder with a file for each key."""
        self._objects, self.images, self.folder, self.secrets = objects, images, folder, secrets
        self.claims, self.hosts_file = folder / "claims", folder / "hosts"
        self.claims.mkdir()
        self.hosts_file.touch()
        # By the container's name.
        self.environment: dict[str, dict[str, str]] = {}
        self.extra_mounts: dict[str, list[Mount]] = {}
        self.numbers = iter(range(1_000_000))
        self.network = Network()
        self._pods: dict[str, Pod] = {}

    def object(self, kind: str, name: str) -> dict:
        found, = [each for each in self._objects
                  if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        return found

    def config_map(self, name: str) -> dict[str, str]:
        return self.object("ConfigMap", name)["data"]

    def start_stateful_set(self, name: str) -> Pod:
        """Its only pod, or the successor of it."""
        spec = self.object("StatefulSet", name)["spec"]
        if spec["replicas"] != 1:
            raise ValueError(f"{name} has several replicas")
        return self._start([f"{name}-0", spec["serviceName"]], spec["template"], None)

    def start_job(self, name: str) -> list[Pod]:
        return [self.start_index(name, index)
                for index in range(self.object("Job", name)["spec"]["completions"])]

    def start_index(self, name: str, index: int) -> Pod:
        """The pod of an index, or its successor, with another address."""
        template = self.object("Job", name)["spec"]["template"]
        pod = f"{name}-{index}"
        return self._start([pod, f"{pod}.{template['spec']['subdomain']}"], template, index)

    def _start(self, names: list[str], template: dict, index: int | None) -> Pod:
        pod = Pod(self, names, template, index)
        self._pods[pod.name] = pod
        # The file keeps its place, for those that have mounted it.
        self.hosts_file.write_text("127.0.0.1 localhost\n" + "".join(
            f"{each.address} {' '.join(each.names)}\n" for each in self._pods.values()))
        return pod.start()

    def close(self) -> None:
        for pod in self._pods.values():
            pod.kill()
        self.network.close()
