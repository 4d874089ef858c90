"""Training loops of other packages: compared with plain ones, resumed, and used wrongly."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch

import tessera
from tessera import _cluster

import integrations_trainer as trainer

_folder = tempfile.TemporaryDirectory(prefix="tessera-test-")
_jobs = iter(range(1, 1_000_000))


def setUpModule():
    folder = pathlib.Path(_folder.name) / "cluster"
    folder.mkdir()
    cluster = _cluster.Cluster(folder, 32)
    unittest.addModuleCleanup(cluster.stop)
    found = cluster.addresses()
    tessera.init(coordinator=found["TESSERA_COORDINATOR"], worker=found["TESSERA_WORKER"])


def needs(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise unittest.SkipTest(f"the package {package} is not installed")


class Case(unittest.TestCase):
    kind = ""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="tessera-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    @classmethod
    def run_ranks(cls, ranks, *arguments):
        """Runs a script. ranks: 0 is one process, without a launcher."""
        launcher = ["-m", "tessera.run", "-n", str(ranks)] if ranks else []
        return subprocess.run(
            [sys.executable, *launcher, *map(str, arguments)], stdin=subprocess.DEVNULL, text=True,
            env={**os.environ, "TMPDIR": str(cls.folder)}, cwd=cls.folder, timeout=200,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    @classmethod
    def train(cls, name, ranks, **options):
        """Runs integrations_trainer.py and returns its folder. ranks: 0 is one process, plain."""
        out = cls.folder / name
        if ranks == 0:
            options["plain"] = True
        process = cls.run_ranks(ranks, trainer.__file__, cls.kind, out, json.dumps(options))
        if process.returncode:
            raise AssertionError(process.stdout)
        return out

    def log_of(self, folder):
        return json.loads((folder / "log.json").read_text())

    def assert_same(self, first, second, tolerance=1e-5):
        """The models of two runs; tolerance 0: to the bit."""
        expected, actual = torch.load(first / "model.pt"), torch.load(second / "model.pt")
        self.assertEqual(list(expected), list(actual))
        for name, value in expected.items():
            if tolerance == 0:
                self.assertTrue(torch.equal(actual[name], value), name)
            torch.testing.assert_close(actual[name], value, rtol=tolerance, atol=tolerance,
                                       msg=lambda text, name=name: f"{name}: {text}")

    def assert_raises(self, said, call):
        with self.assertRaises(tessera.TesseraError) as raised:
            call()
        self.assertIn(said, str(raised.exception))

    def shard(self, model, units=None, **kwargs):
        tessera.shard(model, units, job=f"job{next(_jobs)}", **kwargs)
        self.addCleanup(model.tessera.detach)
        return model


class ImportTest(unittest.TestCase):
    def test_import_of_tessera_needs_none_of_the_packages(self):
        code = ("import sys\n"
                "for name in ('accelerate', 'transformers', 'lightning', 'torchdata'):\n"
                "    sys.modules[name] = None\n"
                "import tessera\n"
                "print(sorted(n for n in sys.modules if n.startswith('tessera.integrations')))\n")
        output = subprocess.run([sys.executable, "-c", code], check=True, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout
        self.assertEqual(output.strip(), "[]")


class GuideTest(Case):
    def test_the_snippets_of_the_guide_run(self):
        guide = pathlib.Path(os.path.realpath(__file__)).parents[3] / "docs/guide/integrations.md"
        if not guide.exists():
            self.skipTest("docs/ is not here")
        found = re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", guide.read_text(),
                           re.DOTALL)
        self.assertEqual(len(found), 4)
        for name, code in found:
            with self.subTest(name):
                needs("torchdata" if name == "batches" else name)
                process = self.run_ranks(0, "-c", code)
                self.assertEqual(process.returncode, 0, process.stdout)


class TransformersTest(Case):
    kind = "transformers"
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "eval_strategy": "steps",
               "eval_steps": 3, "save_strategy": "steps", "save_steps": 3,
               "load_best_model_at_end": True}

    @classmethod
    def setUpClass(cls):
        needs("accelerate", "transformers")
        super().setUpClass()
        cls.plain = cls.train("plain", 0, per_device_train_batch_size=4, **cls.options)
        cls.sharded = cls.train("sharded", 2, per_device_train_batch_size=2, **cls.options)

    def assert_same_log(self, first, second):
        """Of each step: loss, norm of the gradient, learning rate, loss of the evaluation."""
        names = ("step", "loss", "grad_norm", "learning_rate", "eval_loss")
        expected, actual = ([{k: v for k, v in entry.items() if k in names}
                             for entry in self.log_of(out)] for out in (first, second))
        self.assertEqual([list(entry) for entry in expected[:-1]],
                         [sorted(entry, key=list(expected[i]).index)
                          for i, entry in enumerate(actual[:-1])])
        for mine, theirs in zip(actual, expected):
            for name, value in theirs.items():
                self.assertAlmostEqual(mine[name], value, places=4, msg=f"{name} of {theirs}")

    def test_an_unmodified_gpt2_trains_as_with_the_plain_trainer(self):
        self.assertEqual(sum("loss" in entry for entry in self.log_of(self.plain)), 6)
        self.assertEqual(sum("eval_loss" in entry for entry in self.log_of(self.plain)), 2)
        self.assert_same_log(self.plain, self.sharded)
        self.assert_same(self.plain, self.sharded, 2e-5)

    def test_what_it_saved_opens_by_from_pretrained(self):
        import transformers
        expected = torch.load(self.sharded / "model.pt")
        for name in ("final", "checkpoint-6"):
            opened = transformers.GPT2LMHeadModel.from_pretrained(self.sharded / name).state_dict()
            for key, value in expected.items():
                self.assertTrue(torch.equal(opened[key], value), key)

    def test_training_goes_on_from_a_checkpoint_to_the_bit(self):
        options = {"dropout": 0.1, "save_strategy": "steps", "save_steps": 3}
        whole = self.train("whole", 2, **options)
        again = self.train("again", 2, resume=str(whole / "checkpoint-3"), **options)
        self.assert_same(whole, again, 0)

    def test_training_goes_on_in_another_world_size(self):
        one = self.train("one", 1, per_device_train_batch_size=4,
                         resume=str(self.sharded / "checkpoint-3"), **self.options)
        self.assert_same_log(self.plain, one)
        self.assert_same(self.plain, one, 2e-5)

    def test_training_goes_on_from_a_checkpoint_of_the_plain_trainer(self):
        out = self.train("theirs", 2, per_device_train_batch_size=2,
                         resume=str(self.plain / "checkpoint-3"), **self.options)
        self.assert_same_log(self.plain, out)
        self.assert_same(self.plain, out, 2e-5)


    def test_the_death_of_a_rank_is_an_error_that_says_how_to_go_on(self):
        out = self.folder / "killed"
        process = self.run_ranks(2, trainer.__file__, "transformers", out, json.dumps(
            {"kill": 4, "save_strategy": "steps", "save_steps": 3}))
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("the trainer of rank 1 died, and Trainer cannot repeat the step: start all "
                      "ranks again, with train(resume_from_checkpoint=True)", process.stdout)
        whole = self.train("undisturbed", 2)
        self.assert_same(whole, self.train("killed", 2, resume=True), 0)

    def test_ranks_that_accelerate_does_not_see_are_named(self):
        if torch.cuda.is_available():
            self.skipTest("there is a GPU, which each rank would use")
        process = self.run_ranks(2, trainer.__file__, "transformers", self.folder / "unseen",
                                 json.dumps({"use_cpu": False}))
        self.assertIn("the job has 2 ranks and accelerate has 1 processes", process.stdout)
        self.assertIn("TrainingArguments(use_cpu=True)", process.stdout)

    def test_saving_on_rank_0_alone_is_an_error_that_says_so(self):
        script = self.folder / "alone.py"
        script.write_text(f"""
import sys
sys.path.insert(0, {str(pathlib.Path(trainer.__file__).parent)!r})
import integrations_trainer as trainer
from tessera.integrations.transformers import Trainer
made = Trainer(model=trainer.gpt2(), train_dataset=trainer.tokens(),
               args=trainer.arguments_of_transformers("alone", max_steps=1))
made.train()
if made.is_world_process_zero():
    made.save_model()
""")
        process = self.run_ranks(2, script)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("call it on all ranks, not under is_world_process_zero()", process.stdout)


class TransformersMisuseTest(Case):
    @classmethod
    def setUpClass(cls):
        needs("accelerate", "transformers")
        super().setUpClass()

    def trainer(self, model=None, *, optimizers=(None, None), **changed):
        from tessera.integrations.transformers import Trainer, blocks_of
        if model is None:
            model = trainer.gpt2()
            self.shard(model, blocks_of(model))
        return Trainer(model=model, args=trainer.arguments_of_transformers(self.folder, **changed),
                       train_dataset=trainer.tokens(), eval_dataset=trainer.tokens(8),
                       optimizers=optimizers)

    def test_arguments_that_are_not_supported_are_named(self):
        for name, value in (("torch_compile", True), ("auto_find_batch_size", True),
                            ("bf16_full_eval", True), ("fsdp", True)):
            with self.subTest(name):
                arguments = trainer.arguments_of_transformers(self.folder)
                setattr(arguments, name, value)
                from tessera.integrations.transformers import Trainer
                self.assert_raises(f"TrainingArguments({name}=...) is not supported",
                                   lambda: Trainer(model=trainer.gpt2(), args=arguments))
        arguments = trainer.arguments_of_transformers(self.folder)
        arguments.fp16, arguments.mixed_precision = True, "fp16"
        self.assert_raises("fp16=...) is not supported: it needs a GradScaler",
                           lambda: Trainer(model=trainer.gpt2(), args=arguments))
        self.assert_raises("even_batches", lambda: self.trainer(
            accelerator_config={"even_batches": False}))

    def test_a_model_init_is_refused(self):
        from tessera.integrations.transformers import Trainer
        self.assert_raises("give it as model=", lambda: Trainer(
            model_init=trainer.gpt2, args=trainer.arguments_of_transformers(self.folder)))

    def test_optimizers_of_others_are_named(self):
        self.assert_raises("optim='adafactor'", self.trainer(optim="adafactor").train)
        model = trainer.gpt2()
        wrong = torch.optim.SGD(model.parameters(), lr=0.1)
        self.assert_raises("the optimizer is torch.optim.sgd.SGD: use tessera.AdamW",
                           self.trainer(self.shard(model), optimizers=(wrong, None)).train)

    def test_sgd_and_a_local_optimizer_train(self):
        before = self.trainer(optim="sgd", max_steps=2)
        self.assertIsInstance(before.create_optimizer(), tessera.SGD)
        before.train()
        model = self.shard(trainer.gpt2())
        local = tessera.LocalOptimizer(model, lambda shards: torch.optim.RMSprop(shards, lr=1e-3))
        clips = self.trainer(model, optimizers=(local, None), max_steps=2)
        self.assert_raises("max_grad_norm=0", clips.train)
        self.trainer(model, optimizers=(local, None), max_steps=2, max_grad_norm=0.0).train()

    def test_it_evaluates_before_training_and_trains_twice(self):
        once = self.trainer(max_steps=2)
        first = once.evaluate()["eval_loss"]
        once.train()
        second = once.evaluate()["eval_loss"]
        self.assertEqual(once.predict(trainer.tokens(8)).predictions.shape, (8, 16, 128))
        once.train()
        self.assertLess(once.evaluate()["eval_loss"], second)
        self.assertLess(second, first)
        self.assertEqual(once.model.tessera.next_step, 5)

    def test_bf16_trains(self):
        once = self.trainer(bf16=True, max_steps=2)
        first = once.evaluate()["eval_loss"]
        once.train()
        self.assertLess(once.evaluate()["eval_loss"], first)

    def test_a_second_trainer_goes_on_with_the_first_ones_optimizer(self):
        first = self.trainer(max_steps=1)
        first.train()
        self.assert_raises("the model has an optimizer already", self.trainer(first.model).train)
        self.trainer(first.model, optimizers=(first.optimizer, None), max_steps=1).train()
        self.assertEqual(first.model.tessera.next_step, 3)

    def test_a_folder_without_checkpoint_is_named(self):
        with self.assertRaisesRegex(ValueError, "checkpoint"):
            self.trainer().train(resume_from_checkpoint=True)


class Seq2SeqTest(Case):
    kind = "seq2seq"

    def test_ranks_generate_texts_of_different_lengths(self):
        needs("accelerate", "transformers")
        out = self.train("t5", 2, max_steps=30, learning_rate=3e-2)
        plain = trainer.t5()
        plain.load_state_dict(torch.load(out / "model.pt"))
        found = torch.tensor(self.log_of(out))
        lengths = []
        for first in range(0, 16, 4):
            rows = torch.stack([row["input_ids"] for row in trainer.sequences()[first:first + 4]])
            expected = plain.generate(rows, max_length=10)
            lengths.append(expected.shape[1])
            padded = torch.nn.functional.pad(expected, (0, found.shape[1] - expected.shape[1]))
            self.assertEqual(found[first:first + 4].tolist(), padded.tolist())
        # Of the batches that the ranks have at once.
        self.assertNotEqual(lengths[::2], lengths[1::2], "one takes more forwards than the other")


class AccelerateTest(Case):
    kind = "accelerate"

    @classmethod
    def setUpClass(cls):
        needs("accelerate")
        super().setUpClass()

    def test_a_loop_trains_as_the_plain_one_and_goes_on_from_its_state(self):
        plain = self.train("plain", 0)
        sharded = self.train("sharded", 2)
        self.assertEqual(len(self.log_of(plain)), 8)
        for mine, theirs in zip(self.log_of(sharded), self.log_of(plain)):
            self.assertAlmostEqual(mine, theirs, places=4)
        self.assert_same(plain, sharded)
        again = self.train("again", 2, resume=str(sharded / "state"), **{"from": 1})
        self.assert_same(sharded, again, 0)
        one = self.train("one", 1, resume=str(sharded / "state"), **{"from": 1})
        self.assert_same(sharded, one)

    def test_what_cannot_be_prepared_is_named(self):
        from tessera.integrations.accelerate import Accelerator
        accelerator = Accelerator(cpu=True)
        model = trainer.Net()
        self.assert_raises("call tessera.shard(model) before prepare()",
                           lambda: accelerator.prepare(model))
        wrong = torch.optim.AdamW(model.parameters())
        self.shard(model)
        self.assert_raises("the optimizer is torch.optim.adamw.AdamW: use tessera.AdamW(model)",
                           lambda: accelerator.prepare(model, wrong))
        model, _ = accelerator.prepare(model, tessera.AdamW(model))
        some = list(model.parameters())[:1]
        self.assert_raises("clip_grad_norm_ takes all parameters",
                           lambda: accelerator.clip_grad_norm_(some, 1.0))
        self.assert_raises("clip_grad_value_", lambda: accelerator.clip_grad_value_(
            model.parameters(), 1.0))

    def test_a_frozen_model_that_is_not_sharded_is_prepared(self):
        from tessera.integrations.accelerate import Accelerator
        teacher = trainer.Net().requires_grad_(False)
        self.assertIs(Accelerator(cpu=True).prepare(teacher), teacher)

    def test_a_state_of_a_local_optimizer_goes_on(self):
        from tessera.integrations.accelerate import Accelerator
        torch.manual_seed(1)
        batches, models = trainer.data().split(8), []
        for _ in range(2):
            accelerator = Accelerator(cpu=True)
            torch.manual_seed(1)
            model = self.shard(trainer.Net(), trainer.Block)
            opt = tessera.LocalOptimizer(model, lambda s: torch.optim.RMSprop(s, lr=1e-2))
            model, opt = accelerator.prepare(model, opt)
            models.append((accelerator, model, opt))
        for number, (accelerator, model, opt) in enumerate(models):
            if number == 1:
                accelerator.load_state(str(self.folder / "local"))
            for x in batches[2:] if number else batches:
                if number == 0 and x is batches[2]:
                    accelerator.save_state(str(self.folder / "local"))
                accelerator.backward(trainer.loss_of(model, x))
                opt.step()
        for first, second in zip(*(m.state_dict().values() for _, m, _ in models)):
            self.assertTrue(torch.equal(first, second))


class LightningTest(Case):
    kind = "lightning"

    @classmethod
    def setUpClass(cls):
        needs("lightning")
        super().setUpClass()
        cls.plain = cls.train("plain", 0, rows=8, max_epochs=2)
        cls.sharded = cls.train("sharded", 2, rows=4, max_epochs=2)

    def test_a_module_trains_as_with_the_plain_strategy(self):
        sums = self.train("sums", 2, rows=2, accumulate_grad_batches=2, max_epochs=2)
        expected = self.log_of(self.plain)["val"]
        for out in (self.sharded, sums):
            self.assert_same(self.plain, out)
            self.assertAlmostEqual(self.log_of(out)["val"], expected, places=4)

    def test_training_goes_on_from_a_checkpoint_in_any_world_size(self):
        whole = self.train("whole", 2, max_epochs=3)
        for name, ranks, resume, tolerance in (("again", 2, self.sharded, 0),
                                               ("one", 1, self.sharded, 1e-5),
                                               ("theirs", 2, self.plain, 1e-5)):
            with self.subTest(name):
                out = self.train(name, ranks, rows=8 // ranks, max_epochs=3,
                                 resume=str(resume / "end.ckpt"))
                self.assert_same(whole, out, tolerance)

    def test_what_is_not_supported_is_named(self):
        script = """
import lightning, torch, tessera
from tessera.integrations.lightning import TesseraStrategy
class Lit(lightning.LightningModule):
    def __init__(self, made):
        super().__init__()
        self.net, self.made = torch.nn.Linear(4, 1), made
    def training_step(self, x, number):
        return self.net(x).square().mean()
    def configure_optimizers(self):
        return self.made(self)
def fit(made, devices=1, **options):
    trainer = lightning.Trainer(strategy=TesseraStrategy(), accelerator="cpu", devices=devices,
                                logger=False, max_steps=1, **options)
    trainer.fit(Lit(made), torch.utils.data.DataLoader(torch.ones(4, 4)))
def ours(module):
    return tessera.AdamW(module)
for arguments, options in (
        ((ours, 2), {}),
        ((lambda module: torch.optim.AdamW(module.parameters()),), {}),
        ((lambda module: None,), {}),
        ((ours,), {"precision": "bf16-true"}),
        ((ours,), {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"})):
    try:
        fit(*arguments, **options)
    except tessera.TesseraError as error:
        print("said:", error)
"""
        process = self.run_ranks(0, "-c", script)
        said = [line for line in process.stdout.splitlines() if line.startswith("said: ")]
        for line, expected in zip(said, (
                "start its ranks by `tessera run -n 2`",
                "configure_optimizers() returned a torch.optim.adamw.AdamW",
                "return tessera.AdamW(self, ...)",
                "precision='bf16-true': one of 32-true", "tessera clips by the norm alone")):
            self.assertIn(expected, line)
        self.assertEqual((len(said), process.returncode), (5, 0), process.stdout)


class DcpTest(Case):
    def test_torchs_dcp_writes_and_reads_a_sharded_model(self):
        import torch.distributed.checkpoint as dcp
        torch.manual_seed(1)
        first, second, third = (self.shard(trainer.Net(), trainer.Block) for _ in range(3))
        opt = tessera.AdamW(first, lr=1e-2)
        opt.step(lambda: trainer.loss_of(first, trainer.data()).backward())
        expected = first.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Without a process group it says that it has none.
            dcp.save(expected, checkpoint_id=self.folder / "dcp")
            state = second.state_dict()
            dcp.load(state, checkpoint_id=self.folder / "dcp")
        second.load_state_dict(state)
        tessera.load_model(third, self.folder / "dcp")
        for name, value in expected.items():
            self.assertTrue(torch.equal(second.state_dict()[name], value), name)
            self.assertTrue(torch.equal(third.state_dict()[name], value), name)


class BatchesTest(Case):
    kind = "batches"

    @classmethod
    def setUpClass(cls):
        needs("torchdata")
        super().setUpClass()
        cls.whole = cls.train("whole", 2, steps=9)

    def test_a_loader_goes_on_in_the_middle_of_an_epoch(self):
        self.train("parts", 2, steps=6, save=6)
        self.assert_same(self.whole, self.train("parts", 2, steps=9), 0)

    def test_a_killed_rank_goes_on_with_the_batch_of_its_step(self):
        killed = self.train("killed", 2, steps=9, kill=6)
        self.assertTrue((killed / "killed").exists())
        self.assert_same(self.whole, killed, 0)

    def test_a_rank_that_is_killed_after_a_resume_goes_on(self):
        self.train("resumed", 2, steps=3, save=3)
        self.assert_same(self.whole, self.train("resumed", 2, steps=9, kill=6), 0)

    def test_a_loader_without_state_or_batches_is_named(self):
        model = self.shard(trainer.Net(), trainer.Block)
        tessera.SGD(model)
        self.assert_raises("DataLoader has no state_dict()", lambda: tessera.Batches(
            torch.utils.data.DataLoader(trainer.data()), model))

        class Empty(list):
            def state_dict(self):
                return {}
            load_state_dict = state_dict
        self.assert_raises("no batches", lambda: next(iter(tessera.Batches(Empty(), model))))


if __name__ == "__main__":
    unittest.main()
