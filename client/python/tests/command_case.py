"""For suites that run `python -m tessera.run`: a folder, and a look at what it left."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TRAINER = pathlib.Path(__file__).parent / "trainer.py"


def run(*arguments, **kwargs):
    return subprocess.Popen([sys.executable, "-m", "tessera.run", *map(str, arguments)],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, **kwargs)


def descendants_with(mark):
    """Process ids whose environment or command line has `mark`."""
    found = []
    for process in pathlib.Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in text:
            found.append(int(process.name))
    return found


class CommandCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tessera-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # Temporary folders of the command are below this one.
        self.environment = {**os.environ, "TMPDIR": folder.name}

    def script(self, text):
        path = self.folder / "script.py"
        path.write_text(text)
        return path

    def finish(self, process, status=0):
        output, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, status, output)
        self.assertEqual(descendants_with(self.folder.name), [], "processes were left")
        return output
