"""The commands of docs/guide/ten-minutes.md, typed into a shell on each of two network namespaces.

All but those of "Install": the check of the packages does that. Here `tessera` and the daemons are
those of the build, under the names that the packages give them.
"""

import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from run_command_test import descendants_with
from run_nodes_test import enter_by_name, make_nodes

_PAGE = pathlib.Path(os.path.realpath(__file__)).parents[3] / "docs/guide/ten-minutes.md"
_NODES = {"node1": "10.77.0.1", "node2": "10.77.0.2"}
_SECONDS = 240


def sections():
    """What is in each section's blocks, by heading: [(language, text)]."""
    found = {}
    for part in re.split(r"^## ", _PAGE.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        found[heading] = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


class Shell:
    """A shell on a node that stays open, as somebody has it in front of him."""

    def __init__(self, command, environment, folder):
        self._process = subprocess.Popen(
            [*command, "bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder)
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._number = 0

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def type(self, text):
        """What it says, with "exit N" after a command that failed."""
        self._number += 1
        end = f"end of block {self._number}"
        self._process.stdin.write(f"trap 'echo exit $?' ERR\n{text}\necho {end}\n")
        self._process.stdin.flush()
        said, deadline = "", time.monotonic() + _SECONDS
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                line = ""
            if line == f"{end}\n":
                return said
            if not line:
                raise AssertionError(f"'{text}' did not end in {_SECONDS} s, and said: {said}")
            said += line

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=_SECONDS)
        self._process.stdout.close()


class TenMinutesTest(unittest.TestCase):
    def setUp(self):
        missing = [name for name in ("ip", "nsenter", "unshare", "bash", "hostname")
                   if not shutil.which(name)]
        if os.geteuid() != 0 or missing:
            raise unittest.SkipTest(f"needs root, and programs; missing: {missing}")
        programs = pathlib.Path(os.environ.get("TESSERA_PROGRAMS", "/nonexistent"))
        if not (programs / "tessera").exists():
            raise unittest.SkipTest(f"needs the program tessera; missing: {programs}/tessera")
        # A short path: that of a Unix socket has little room.
        folder = tempfile.TemporaryDirectory(prefix="tessera-test-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.install(programs)
        try:
            holders = make_nodes()
        except (OSError, subprocess.CalledProcessError) as error:
            raise unittest.SkipTest(f"no network namespaces: {error}")
        for holder in holders:
            self.addCleanup(holder.communicate)
        self.addCleanup(self.end_all)
        self.shells = {name: self.shell(name, holder) for name, holder in zip(_NODES, holders)}

    def install(self, programs):
        """What the packages put on the PATH."""
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        (self.folder / "shared").mkdir()
        for name, text in (
                ("python", f'exec {sys.executable} "$@"'),
                ("tessera", f'[ "$1" != run ] && exec {programs}/tessera "$@"\n'
                            f'exec {sys.executable} -m tessera.command "$@"')):
            (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (bin_folder / name).chmod(0o755)
        for name in ("tessera-coordinator", "tessera-worker", "tessera-executor"):
            (bin_folder / name).symlink_to(programs / name)
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
            f"{host} {name}\n" for name, host in _NODES.items()))

    def shell(self, name, holder):
        home = self.folder / name
        home.mkdir(mode=0o700)
        environment = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(home),
                       "TMPDIR": str(home), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        return Shell(enter_by_name(holder, name, self.folder / "hosts"), environment,
                     self.folder / "shared")

    def end_all(self):
        """Also what outlives its parent: the process that has a dead worker's memory."""
        while found := descendants_with(str(self.folder)):
            for pid in found:
                subprocess.run(["kill", "-KILL", str(pid)], check=False, capture_output=True)

    def type_section(self, heading):
        """What each block said: [text]."""
        said = []
        for language, text in sections()[heading]:
            if language == "python":
                (self.folder / "shared" / "train.py").write_text(text)
                continue
            where = text.partition("\n")[0].removeprefix("# on ")
            self.assertIn(where, (*_NODES, "both nodes"), text)
            for name in _NODES if where == "both nodes" else [where]:
                said.append(self.shells[name].type(text))
                self.assertNotRegex(said[-1], r"(?m)^exit [1-9]", text)
        return said

    def await_said(self, command, condition):
        """Types what the page's reader does again and again, until the condition holds."""
        deadline = time.monotonic() + _SECONDS
        while True:
            said = self.shells["node1"].type(command)
            if condition(said):
                return
            if time.monotonic() > deadline:
                logs = "".join(log.read_text()[-2000:]
                               for log in (self.folder / "shared").glob("*.log"))
                self.fail(f"the job did not come so far: {said}{logs}")

    def test_its_commands_do_what_it_says(self):
        self.assertEqual(list(sections()), [
            "Install", "A first job", "Certificates, a coordinator, two workers",
            "A job over both nodes", "A checkpoint", "A worker dies", "The end"])
        first, = self.type_section("A first job")
        losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)\n", first)]
        self.assertEqual(len(losses), 2, first)
        self.assertLess(max(losses), 0.9)
        self.type_section("Certificates, a coordinator, two workers")
        # The section starts them in the background.
        self.await_said("grep -l 'connected to coordinator' worker-*.log",
                        lambda said: all(f"worker-{name}.log" in said for name in _NODES))
        self.type_section("A job over both nodes")
        self.await_said("tessera status $access",
                        lambda said: "4 of 4 ranks attached" in said and "loss" in said)
        self.assertRegex(self.type_section("A checkpoint")[0], "checkpoints/first: whole")
        before, _ = self.type_section("A worker dies")
        self.await_said("tessera status $access", lambda said: (
            "daemon was replaced" in said and "RUNNING" in said and
            step_of(said) > step_of(before) + 1))
        self.type_section("The end")
        for shell in self.shells.values():
            shell.close()
        self.await_end_of_processes()

    def await_end_of_processes(self):
        deadline = time.monotonic() + _SECONDS
        while True:
            left = ",".join(map(str, descendants_with(str(self.folder)))) or "0"
            shown = subprocess.run(["ps", "--no-headers", "-o", "comm,pid,args", "-p", left],
                                   check=False, capture_output=True, text=True).stdout
            left = [line for line in shown.splitlines() if not line.startswith("tessera-vault ")]
            if not left:
                return
            self.assertLess(time.monotonic(), deadline, f"processes were left: {left}")
            time.sleep(0.1)


def step_of(status):
    return int(re.search(r"job first: \w+, epoch \d+, step (\d+),", status)[1])


if __name__ == "__main__":
    unittest.main()
