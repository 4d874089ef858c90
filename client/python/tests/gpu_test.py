"""One rank on a GPU: where its tensors are, streams, executors in this process, and misuse."""

import copy
import pathlib
import tempfile
import unittest

import torch
from torch import nn

import tessera
from tessera import _cluster

import training_test
from training_test import Block, Model, batches, loss_of

_folder = tempfile.TemporaryDirectory(prefix="tessera-test-")


def setUpModule():
    if not torch.cuda.is_available():
        raise unittest.SkipTest("no GPU: torch.cuda.is_available() is false")
    folder = pathlib.Path(_folder.name) / "cluster"
    folder.mkdir()
    cluster = _cluster.Cluster(folder, 16, 0)
    unittest.addModuleCleanup(cluster.stop)
    found = cluster.addresses()
    tessera.init(coordinator=found["TESSERA_COORDINATOR"], worker=found["TESSERA_WORKER"])


class GpuTest(training_test.Case):
    def setUp(self):
        super().setUp()
        self.gpu = torch.device("cuda", 0)

    def train(self, plain, sharded, count=5):
        # Not AdamW, which makes a step of a gradient that is noise, as that of a bias before a norm.
        theirs = torch.optim.SGD(plain.parameters(), lr=1e-2)
        ours = tessera.SGD(sharded, lr=1e-2)
        for x in batches(count):
            x = x.to(self.gpu)
            theirs.zero_grad()
            loss_of(plain, x).backward()
            theirs.step()
            loss_of(sharded, x).backward()
            ours.step()
        self.assert_same(plain, sharded)

    def test_a_model_in_host_memory_is_moved_to_the_ranks_gpu(self):
        plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        sharded = self.shard(copy.deepcopy(plain), nn.Linear)
        plain.to(self.gpu)
        self.train(plain, sharded)
        for tensor in [*sharded.parameters(), *sharded.buffers()]:
            self.assertEqual(tensor.device, self.gpu)

    def test_an_executor_in_this_process_trains_alike(self):
        plain, sharded = self.pair(Model().to(self.gpu), executor_in_process=True)
        self.train(plain, sharded)

    def test_bf16_trains_as_bf16_parameters_with_fp32_masters(self):
        plain, sharded = self.pair(Model(64, 4).to(self.gpu),
                                   precision=tessera.Precision(torch.bfloat16))
        computing = copy.deepcopy(plain).bfloat16()
        theirs, ours = torch.optim.SGD(plain.parameters(), lr=1e-2), tessera.SGD(sharded, lr=1e-2)
        for x in batches(5):
            x = x.to(self.gpu, torch.bfloat16)
            computing.zero_grad()
            (computing(x).float() - 1).square().mean().backward()
            for master, used in zip(plain.parameters(), computing.parameters()):
                master.grad = used.grad.float()
            theirs.step()
            with torch.no_grad():
                for master, used in zip(plain.parameters(), computing.parameters()):
                    used.copy_(master)
            (sharded(x).float() - 1).square().mean().backward()
            ours.step()
        self.assert_same(plain, sharded)

    def test_training_on_a_stream_of_its_own(self):
        plain, sharded = self.pair(Model(256, 6).to(self.gpu))
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            # The stream is behind the host by some milliseconds.
            for module in sharded.blocks:
                module.register_forward_pre_hook(lambda *_: torch.cuda._sleep(5_000_000))
            self.train(plain, sharded)

    def test_units_that_share_slots_keep_their_values(self):
        # Wide enough that kernels of a unit still run when the next one is opened.
        plain, sharded = self.pair(Model(1024, 12).to(self.gpu))
        self.assertIs(sharded.tessera.units[1].module, sharded.blocks[0])
        theirs = torch.optim.SGD(plain.parameters(), lr=1e-3)
        ours = tessera.SGD(sharded, lr=1e-3)
        for x in batches(4, rows=2048):
            x = x.to(self.gpu)
            theirs.zero_grad()
            theirs_loss = loss_of(plain, x)
            theirs_loss.backward()
            theirs.step()
            ours_loss = loss_of(sharded, x)
            ours_loss.backward()
            ours.step()
            self.assertAlmostEqual(ours_loss.item(), theirs_loss.item(), places=4)
        self.assert_same(plain, sharded, tolerance=1e-4)

    def test_accumulated_gradients_are_the_sum(self):
        plain, sharded = self.pair(Model().to(self.gpu), config={"gradient_slots": 0})
        theirs, ours = torch.optim.SGD(plain.parameters(), lr=0.1), tessera.SGD(sharded, lr=0.1)
        for x in batches(3):
            x = x.to(self.gpu)
            loss_of(plain, x).backward()
            with sharded.tessera.no_sync():
                loss_of(sharded, x).backward()
        theirs.step()
        ours.step()
        self.assert_same(plain, sharded)

    def test_a_checkpoint_continues_to_the_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            models = []
            for loads in (False, True):
                model = self.shard(Model().to(self.gpu))
                opt = tessera.AdamW(model, lr=1e-2)
                if loads:
                    tessera.load(model, f"{folder}/c")
                for x in batches(4)[2 * loads:]:
                    loss_of(model, x.to(self.gpu)).backward()
                    opt.step()
                    if not loads and model.tessera.next_step == 3:
                        tessera.save(model, f"{folder}/c")
                models.append(model)
            first, second = (model.state_dict() for model in models)
            for name, value in first.items():
                self.assertTrue(torch.equal(value, second[name]), name)

    def test_a_model_on_another_gpu_than_the_rank_is_named(self):
        model = Model().to(self.gpu)
        if torch.cuda.device_count() > 1:
            model = Model().to("cuda:1")
            with self.assertRaisesRegex(tessera.TesseraError, "the model is on cuda:1"):
                tessera.SGD(self.shard(model))
        mixed = Model()
        mixed.head.to(self.gpu)
        with self.assertRaisesRegex(tessera.TesseraError, "one device"):
            tessera.SGD(self.shard(mixed, Block))


if __name__ == "__main__":
    unittest.main()
