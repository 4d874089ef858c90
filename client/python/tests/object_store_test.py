"""s3:// paths from Python, against moto's server (tests/object_store/serve.py)."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import torch

import tessera
import trainer
from tessera import _cluster

_NOT_INSTALLED = 77
_RUN_SECONDS = 120
_TOP = pathlib.Path(os.path.realpath(__file__)).parents[3]
_SERVE = "tests/object_store/serve.py"

# Two ranks train 3 steps and save; rank 0 also writes its state dict to argv[2].
_PROGRAM = """
import sys
import torch, tessera, trainer
model = tessera.shard(trainer.make_model(), trainer.Block)
optimizer = tessera.AdamW(model, lr=1e-2)
for step in range(1, 4):
    trainer.loss_of(model, model.tessera.rank, step).backward()
    optimizer.step()
    optimizer.zero_grad()
tessera.save(model, sys.argv[1])
state = model.state_dict()
if model.tessera.rank == 0:
    torch.save(state, sys.argv[2])
"""

_folder = tempfile.TemporaryDirectory(prefix="tessera-test-")
_jobs = iter(range(1, 1_000_000))
_store = {}


def _start_store():
    """Endpoint, bucket and credentials; skips all tests if moto is not installed."""
    found = _TOP / ".cache/moto/venv/bin/python"
    python = os.environ.get("TESSERA_TEST_MOTO_PYTHON") or (found if found.exists() else sys.executable)
    process = subprocess.Popen(  # pylint: disable=consider-using-with
        [python, "-B", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop():
        process.stdin.close()  # It ends then.
        process.wait()
        process.stdout.close()

    unittest.addModuleCleanup(stop)
    line = process.stdout.readline()
    if not line and process.wait() == _NOT_INSTALLED:
        raise unittest.SkipTest("moto's server is not installed: run tools/setup --with-operations")
    _store.update(json.loads(line))


def _write_credentials(secret):
    (pathlib.Path(_folder.name) / "credentials").write_text(
        f"[default]\naws_access_key_id = {_store['access_key']}\naws_secret_access_key = {secret}\n",
        encoding="utf-8")


def setUpModule():
    _start_store()
    # Of this process and of the daemons that it starts. The file is read at each operation.
    os.environ.update(AWS_ENDPOINT_URL_S3=_store["proxy"], AWS_REGION="us-east-1",
                      AWS_SHARED_CREDENTIALS_FILE=f"{_folder.name}/credentials")
    _write_credentials(_store["secret_key"])
    folder = pathlib.Path(_folder.name) / "cluster"
    folder.mkdir()
    cluster = _cluster.Cluster(folder, 16)
    unittest.addModuleCleanup(cluster.stop)
    found = cluster.addresses()
    tessera.init(coordinator=found["TESSERA_COORDINATOR"], worker=found["TESSERA_WORKER"])


class ObjectStoreTest(unittest.TestCase):
    def shard(self, seed=1):
        model = trainer.make_model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(seed)
        model = tessera.shard(model, trainer.Block, job=f"job{next(_jobs)}")
        self.addCleanup(model.tessera.detach)
        return model, tessera.AdamW(model, lr=1e-2)

    def train(self, model, optimizer, steps):
        for step in steps:
            trainer.loss_of(model, 0, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        return {name: value.clone() for name, value in model.state_dict().items()}

    def path(self, name):
        return f"s3://{_store['bucket']}/{name}"

    def assert_same_bits(self, expected, state):
        self.assertEqual(list(expected), list(state))
        for name, value in expected.items():
            self.assertTrue(torch.equal(value, state[name]), name)

    def test_a_loaded_checkpoint_continues_to_the_bit(self):
        for in_background in (False, True):
            with self.subTest(in_background=in_background):
                path = self.path(f"run/{in_background}")
                model, optimizer = self.shard()
                saved = self.train(model, optimizer, range(1, 4))
                tessera.save(model, path, in_background=in_background)
                continued = self.train(model, optimizer, range(4, 7))
                if in_background:
                    tessera.await_save(model)
                other, its_optimizer = self.shard(seed=2)
                self.assertEqual(tessera.load(other, path)["step"], 3)
                self.assert_same_bits(saved, other.state_dict())
                # With the moments of the optimizer, too.
                self.assert_same_bits(continued, self.train(other, its_optimizer, range(4, 7)))

    def test_a_model_file_is_loaded_to_the_bit(self):
        model, optimizer = self.shard()
        saved = self.train(model, optimizer, range(1, 3))
        tessera.save_model(model, self.path("model.safetensors"))
        other, _ = self.shard(seed=2)
        self.assertEqual(tessera.load_model(other, self.path("model.safetensors"))["missing"], [])
        self.assert_same_bits(saved, other.state_dict())

    def test_what_two_ranks_saved_is_loaded_by_one_to_the_bit(self):
        program, state = [pathlib.Path(_folder.name) / name for name in ("program.py", "state.pt")]
        program.write_text(_PROGRAM, encoding="utf-8")
        environment = {**os.environ, "TMPDIR": _folder.name}
        with subprocess.Popen(
                [sys.executable, "-m", "tessera.run", "-n", "2", program, self.path("two"), state],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True) as run:
            try:
                output, _ = run.communicate(timeout=_RUN_SECONDS)
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGTERM)
                self.fail(f"two ranks took more than {_RUN_SECONDS} s:\n{run.communicate()[0]}")
        self.assertEqual(run.returncode, 0, output)
        model, _ = self.shard(seed=2)
        tessera.load(model, self.path("two"))
        self.assert_same_bits(torch.load(state), model.state_dict())

    def test_wrong_credentials_are_named_and_training_goes_on(self):
        model, optimizer = self.shard()
        self.train(model, optimizer, range(1, 3))
        tessera.save(model, self.path("kept"))
        self.addCleanup(_write_credentials, _store["secret_key"])
        _write_credentials("wrong")
        # A save first looks what is there, by HEAD, to which a store answers with the status alone.
        for call, says in ((tessera.save, "credentials of this process"),
                           (tessera.load, "SignatureDoesNotMatch")):
            with self.assertRaises(tessera.TesseraError) as caught:
                call(model, self.path("kept"))
            self.assertEqual(caught.exception.code, "PERMISSION_DENIED")
            for text in (self.path("kept"), "HTTP 403", says):
                self.assertIn(text, str(caught.exception))
            self.assertNotIn("wrong", str(caught.exception))
        saved = self.train(model, optimizer, range(3, 5))
        _write_credentials(_store["secret_key"])
        tessera.save(model, self.path("kept"))
        other, _ = self.shard(seed=2)
        self.assertEqual(tessera.load(other, self.path("kept"))["step"], 4)
        self.assert_same_bits(saved, other.state_dict())
