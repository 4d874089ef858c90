"""One rank: training code as people write it, beside the plain module that it was copied from."""

import copy
import io
import os
import pathlib
import subprocess
import tempfile
import time
import types
import unittest

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

import tessera
from tessera import _cluster, _sharded

# With TESSERA_TEST_GPU=1 all of it runs on GPU 0.
ON_GPU = os.environ.get("TESSERA_TEST_GPU") == "1"
DEVICE = torch.device("cuda:0" if ON_GPU else "cpu")

_folder = tempfile.TemporaryDirectory(prefix="tessera-test-")
_jobs = iter(range(1, 1_000_000))


def setUpModule():
    # One device for each job: a job keeps its own after its trainers left.
    folder = pathlib.Path(_folder.name) / "cluster"
    folder.mkdir()
    cluster = _cluster.Cluster(folder, 64, 0 if ON_GPU else None)
    if ON_GPU:
        torch.set_default_device(DEVICE)
    unittest.addModuleCleanup(cluster.stop)
    found = cluster.addresses()
    tessera.init(coordinator=found["TESSERA_COORDINATOR"], worker=found["TESSERA_WORKER"])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, width=8, blocks=3):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batches(count, rows=6, width=4):
    generator = torch.Generator("cpu").manual_seed(7)
    return [torch.randn(rows, width, generator=generator, device="cpu").to(DEVICE)
            for _ in range(count)]


def loss_of(model, x):
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.models = []

    def tearDown(self):
        for model in self.models:
            model.tessera.detach()

    def shard(self, model, units=Block, **kwargs):
        tessera.shard(model, units, job=f"job{next(_jobs)}", **kwargs)
        self.models.append(model)
        return model

    def pair(self, model=None, units=Block, **kwargs):
        plain = model or Model()
        return plain, self.shard(copy.deepcopy(plain), units, **kwargs)

    def train(self, plain, sharded, theirs, ours, step=None, count=4):
        for x in batches(count):
            theirs.zero_grad()
            (step or (lambda model: loss_of(model, x).backward()))(plain)
            theirs.step()
            (step or (lambda model: loss_of(model, x).backward()))(sharded)
            ours.step()

    def assert_same(self, plain, sharded, tolerance=1e-5):
        expected, actual = plain.state_dict(), sharded.state_dict()
        self.assertEqual(list(expected), list(actual))
        for name, value in expected.items():
            torch.testing.assert_close(actual[name].cpu(), value.cpu(), rtol=tolerance, atol=tolerance,
                                       msg=lambda text, name=name: f"{name}: {text}")


class TrainingTest(Case):
    def test_adamw_trains_as_torchs(self):
        plain, sharded = self.pair()
        self.train(plain, sharded, torch.optim.AdamW(plain.parameters(), lr=1e-2),
                   tessera.AdamW(sharded, lr=1e-2))
        self.assert_same(plain, sharded)

    def test_adam_with_weight_decay_trains_as_torchs(self):
        plain, sharded = self.pair()
        self.train(plain, sharded, torch.optim.Adam(plain.parameters(), lr=1e-2, weight_decay=0.1),
                   tessera.Adam(sharded, lr=1e-2, weight_decay=0.1))
        self.assert_same(plain, sharded)

    def test_sgd_with_momentum_trains_as_torchs(self):
        plain, sharded = self.pair()
        self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-2, momentum=0.9),
                   tessera.SGD(sharded, lr=1e-2, momentum=0.9))
        self.assert_same(plain, sharded)

    def test_each_strategy_trains_as_the_plain_module(self):
        for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
            with self.subTest(strategy):
                torch.manual_seed(1)
                plain, sharded = self.pair(strategy=strategy)
                self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-2),
                           tessera.SGD(sharded, lr=1e-2))
                self.assert_same(plain, sharded)

    def test_closure_returns_its_loss(self):
        _, sharded = self.pair()
        opt = tessera.SGD(sharded, lr=1e-2)
        losses = []
        for x in batches(20):
            def closure(x=x):
                loss = loss_of(sharded, x)
                loss.backward()
                return loss
            losses.append(opt.step(closure).item())
        self.assertLess(losses[-1], losses[0])
        self.assertEqual(sharded.tessera.next_step, 21)

    def test_schedulers_of_torch_change_the_rate(self):
        plain, sharded = self.pair()
        theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
        ours = tessera.SGD(sharded, lr=0.1)
        schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (theirs, ours)]
        for x in batches(4):
            for model, opt, schedule in zip((plain, sharded), (theirs, ours), schedules):
                opt.zero_grad()
                loss_of(model, x).backward()
                opt.step()
                schedule.step()
        self.assert_same(plain, sharded)

    def test_a_schedule_that_begins_again_where_the_job_continues_is_an_error(self):
        plain = Model()
        job = f"job{next(_jobs)}"

        def step_lr(opt):
            return torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.5)

        def sequential_lr(opt):
            constant = torch.optim.lr_scheduler.ConstantLR(opt, 1.0)
            return torch.optim.lr_scheduler.SequentialLR(opt, [constant, step_lr(opt)], [2])

        def attach(brings, make=step_lr):
            _sharded._names.clear()  # As in another process.
            model = tessera.shard(copy.deepcopy(plain), Block, job=job)
            opt = tessera.AdamW(model, lr=1e-2)
            schedule = make(opt)
            if brings:
                for _ in range(model.tessera.next_step - 1):
                    schedule.step()
            return model, opt, schedule

        for steps in (1, 3, 2):  # After one the rate is still the same; then the program is another.
            model, opt, schedule = attach(brings=True)
            for x in batches(6)[model.tessera.next_step - 1:][:steps]:
                loss_of(model, x).backward()
                opt.step()
                schedule.step()
            self.models.append(model)
            if steps != 2:
                model.tessera.detach()
        theirs = torch.optim.AdamW(plain.parameters(), lr=1e-2)
        schedule = step_lr(theirs)
        for x in batches(6):
            theirs.zero_grad()
            loss_of(plain, x).backward()
            theirs.step()
            schedule.step()
        self.assert_same(plain, model)

        for make in (step_lr, sequential_lr):
            model.tessera.detach()
            model, opt, schedule = attach(brings=False, make=make)
            self.models.append(model)
            for use in (lambda body: (body(), opt.step()), opt.step):
                with self.assertRaisesRegex(
                        tessera.TesseraError, r"continues at step 7, and \w+LR at its beginning: "
                        r"learning rates \[0.01\], and the step before had \[0.0025\]"):
                    use(lambda: loss_of(model, batches(1)[0]).backward())
        model.tessera.continues_job = False
        loss_of(model, batches(1)[0]).backward()
        opt.step()

    def test_a_schedule_may_begin_where_this_program_goes_on_with_a_job(self):
        job = f"job{next(_jobs)}"
        for rate in (0.1, 0.05):
            model = tessera.shard(Model(), Block, job=job)
            self.models.append(model)
            opt = tessera.AdamW(model, lr=0.1)
            schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step, rate=rate: rate / (1 + step))
            for x in batches(2):
                loss_of(model, x).backward()
                opt.step()
                schedule.step()
            model.tessera.detach()

    def test_a_rate_that_was_reduced_on_a_plateau_is_taken_over(self):
        job = f"job{next(_jobs)}"
        for expected in (0.1, 0.05):
            _sharded._names.clear()  # As in another process.
            model = tessera.shard(Model(), Block, job=job)
            self.models.append(model)
            opt = tessera.AdamW(model, lr=0.1)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
            for x in batches(3):
                loss_of(model, x).backward()
                opt.step()
                self.assertEqual(opt.param_groups[0]["lr"], expected)
                if model.tessera.next_step < 4:
                    schedule.step(1.0)
                    expected = opt.param_groups[0]["lr"]
            model.tessera.detach()

    def test_schedulers_find_the_momentum_and_change_it(self):
        for make in (lambda kind, model: kind.SGD(model, lr=0.1, momentum=0.9),
                     lambda kind, model: kind.AdamW(model, lr=0.1)):
            torch.manual_seed(1)
            plain, sharded = self.pair()
            theirs, ours = make(torch.optim, plain.parameters()), make(tessera, sharded)
            schedules = [torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=6)
                         for o in (theirs, ours)]
            for x in batches(5):
                for model, opt, schedule in zip((plain, sharded), (theirs, ours), schedules):
                    opt.zero_grad()
                    loss_of(model, x).backward()
                    opt.step()
                    schedule.step()
            self.assert_same(plain, sharded)

    def test_param_groups_have_their_own_numbers(self):
        plain, sharded = self.pair()
        def groups(model):
            biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
            others = [p for n, p in model.named_parameters() if not n.endswith("bias")]
            return [{"params": [(f"{id(p)}", p) for p in others], "weight_decay": 0.3},
                    {"params": [(f"{id(p)}", p) for p in biases], "lr": 0.05}]
        self.train(plain, sharded, torch.optim.AdamW(groups(plain), lr=1e-2, weight_decay=0.0),
                   tessera.AdamW(sharded, lr=1e-2, weight_decay=0.0, param_groups=groups(sharded)))
        self.assert_same(plain, sharded)

    def test_clipping_gives_the_norm_and_clips(self):
        plain, sharded = self.pair()
        theirs, ours = torch.optim.SGD(plain.parameters(), lr=0.1), tessera.SGD(sharded, lr=0.1)
        for x in batches(3):
            theirs.zero_grad()
            loss_of(plain, x).backward()
            expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
            theirs.step()
            loss_of(sharded, x).backward()
            self.assertAlmostEqual(ours.clip_grad_norm_(0.05), expected.item(), places=5)
            ours.step()
        self.assert_same(plain, sharded)

    def test_clipping_to_a_norm_of_zero_leaves_no_gradient(self):
        for kind in ("SGD", "AdamW"):
            with self.subTest(kind):
                plain, sharded = self.pair()
                theirs = getattr(torch.optim, kind)(plain.parameters(), lr=0.1)
                ours = getattr(tessera, kind)(sharded, lr=0.1)
                for max_norm, x in zip((1.0, 0, 0.0, 1.0), batches(4)):
                    theirs.zero_grad()
                    loss_of(plain, x).backward()
                    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
                    theirs.step()
                    loss_of(sharded, x).backward()
                    self.assertAlmostEqual(ours.clip_grad_norm_(max_norm), expected.item(), places=4)
                    ours.step()
                self.assert_same(plain, sharded)

    def test_a_copy_of_a_sharded_model_is_refused_with_what_to_do(self):
        plain, sharded = self.pair()
        tessera.SGD(sharded, lr=0.1)
        with self.assertRaisesRegex(tessera.TesseraError, "Copy the model before shard"):
            copy.deepcopy(sharded)
        other = copy.deepcopy(plain)
        other.load_state_dict(sharded.state_dict())
        self.assert_same(other, sharded)

    def test_a_sharded_model_is_not_pickled_but_says_what_is(self):
        _, sharded = self.pair()
        with self.assertRaisesRegex(tessera.TesseraError, "Save model.state_dict"):
            torch.save(sharded, io.BytesIO())

    def test_a_state_that_cannot_be_saved_fails_the_requested_save_alone(self):
        class Broken:
            def state_dict(self):
                raise ValueError("no state today")

            def load_state_dict(self, state):
                pass

        _, sharded = self.pair()
        opt = tessera.SGD(sharded, lr=0.1)
        tessera.register_state("broken", Broken(), sharded)
        command = [os.path.join(os.environ["TESSERA_PROGRAMS"], "tessera"), "save", "--to",
                   pathlib.Path(_folder.name) / "never", "--job", sharded.tessera.job_id(),
                   "--coordinator", sharded.tessera._context.coordinator]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as save:
            deadline = time.monotonic() + 60
            while save.poll() is None:
                self.assertLess(time.monotonic(), deadline)
                loss_of(sharded, batches(1)[0]).backward()
                opt.step()
            self.assertIn("ValueError: no state today", save.stderr.read())
            self.assertNotEqual(save.returncode, 0)

    def test_a_scaled_loss_trains_as_the_unscaled(self):
        for as_closure in (True, False):
            with self.subTest(as_closure=as_closure):
                plain, sharded = self.pair()
                theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
                ours = tessera.SGD(sharded, lr=0.1)
                scaler = tessera.GradScaler(ours, init_scale=1024.0, growth_interval=2)
                for x in batches(5):
                    theirs.zero_grad()
                    loss_of(plain, x).backward()
                    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
                    theirs.step()

                    def closure(x=x, expected=expected):
                        loss = loss_of(sharded, x)
                        scaler.scale(loss).backward()
                        scaler.unscale_(ours)
                        self.assertAlmostEqual(ours.clip_grad_norm_(0.05), expected.item(), places=5)
                        return loss
                    scaler.step(ours, closure) if as_closure else (closure(), scaler.step(ours))
                    scaler.update()
                self.assert_same(plain, sharded)
                self.assertEqual(scaler.get_scale(), 4096.0)

    def test_an_overflow_skips_the_step_and_lowers_the_scale(self):
        _, sharded = self.pair()
        ours = tessera.SGD(sharded, lr=0.1)
        scaler = tessera.GradScaler(ours, init_scale=8.0, growth_interval=2)
        scales = []
        for number, x in enumerate(batches(4)):
            before = sharded.state_dict()
            scaler.scale(loss_of(sharded, x) * (float("inf") if number == 1 else 1.0)).backward()
            scaler.step(ours)
            scaler.update()
            scales.append(scaler.get_scale())
            changed = not all(torch.equal(v, before[n]) for n, v in sharded.state_dict().items())
            self.assertEqual(changed, number != 1)
        self.assertEqual(scales, [8.0, 4.0, 4.0, 8.0])
        scaler.scale(loss_of(sharded, x)).backward()
        with self.assertRaisesRegex(tessera.TesseraError, "scaler.unscale_"):
            ours.clip_grad_norm_(1.0)
        scaler.unscale_(ours)
        ours.clip_grad_norm_(1.0)
        scaler.step(ours)
        again = tessera.GradScaler(ours)
        again.load_state_dict(torch.amp.GradScaler("cpu", init_scale=3.0).state_dict()
                              | {"scale": 3.0, "_growth_tracker": 1})
        self.assertEqual(again.get_scale(), 3.0)

    def test_linear_layers_that_attention_computes_with_itself_are_no_units(self):
        plain = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        _, sharded = self.pair(plain, units=nn.Linear)
        x = batches(1, rows=6, width=8)[0].view(2, 3, 8)
        self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=0.1),
                   tessera.SGD(sharded, lr=0.1),
                   step=lambda model: model(x).square().mean().backward())
        self.assert_same(plain, sharded)

    def test_accumulation_adds_up(self):
        for sync in (True, False):
            with self.subTest(sync=sync):
                plain, sharded = self.pair(config={"gradient_slots": 0})
                theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
                ours = tessera.SGD(sharded, lr=0.1)
                for x in batches(4):
                    loss_of(plain, x).backward()
                    if sync:
                        loss_of(sharded, x).backward()
                    else:
                        with sharded.tessera.no_sync():
                            loss_of(sharded, x).backward()
                theirs.step()
                ours.step()
                self.assert_same(plain, sharded)

    def test_frozen_and_unused_parameters_stay(self):
        plain = Model()
        for p in plain.blocks[1].parameters():
            p.requires_grad_(False)
        plain.unused = nn.Linear(3, 3)
        plain, sharded = self.pair(plain)
        self.train(plain, sharded, torch.optim.AdamW(plain.parameters(), lr=1e-2),
                   tessera.AdamW(sharded, lr=1e-2))
        self.assert_same(plain, sharded)

    def test_parameters_of_no_dimension_and_of_no_element(self):
        class Scaled(Model):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.tensor(1.5))
                self.nothing = nn.Parameter(torch.zeros(0, 4))
            def forward(self, x):
                return super().forward(x) * self.scale + self.nothing.sum()
        plain, sharded = self.pair(Scaled())
        self.train(plain, sharded, torch.optim.AdamW(plain.parameters(), lr=1e-2),
                   tessera.AdamW(sharded, lr=1e-2))
        self.assert_same(plain, sharded)

    def test_tied_weights_of_two_units_stay_tied(self):
        plain = Model()
        plain.blocks[2].up.weight = plain.blocks[0].up.weight
        plain, sharded = self.pair(plain)
        self.assertIs(sharded.blocks[2].up.weight, sharded.blocks[0].up.weight)
        self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-2),
                   tessera.SGD(sharded, lr=1e-2))
        self.assert_same(plain, sharded)

    def test_units_are_driven_one_by_one(self):
        plain, sharded = self.pair(config={"gradient_slots": 0})
        ours = tessera.SGD(sharded, lr=1e-2)
        job, blocks = sharded.tessera, sharded.blocks
        job.set_reshard_after_forward(False, blocks[2])
        job.set_modules_to_forward_prefetch(blocks[0], [blocks[1], blocks[2]])
        job.set_modules_to_backward_prefetch(blocks[2], [blocks[1]])
        job.set_requires_gradient_sync(False, blocks[1])
        self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-2), ours)
        self.assert_same(plain, sharded)
        with self.assertRaisesRegex(tessera.TesseraError, "ReLU is not the module of a unit"):
            job.set_reshard_after_forward(False, nn.ReLU())

    def test_batch_norm_keeps_its_statistics(self):
        plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        plain, sharded = self.pair(plain, units=nn.Linear)
        self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-2),
                   tessera.SGD(sharded, lr=1e-2))
        self.assert_same(plain, sharded)
        plain.eval(), sharded.eval()
        with torch.no_grad():
            x = batches(1)[0]
            torch.testing.assert_close(plain(x), sharded(x))

    def test_checkpointed_blocks_are_computed_again(self):
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                torch.manual_seed(1)
                plain, sharded = self.pair()
                def step(model, x):
                    hidden = model.embed(x)
                    for block in model.blocks:
                        hidden = checkpoint(block, hidden, use_reentrant=reentrant)
                    return model.head(hidden)
                class Whole(nn.Module):
                    def __init__(self, inner):
                        super().__init__()
                        self.inner = inner
                    def forward(self, x):
                        return step(self.inner, x)
                theirs = torch.optim.SGD(plain.parameters(), lr=1e-2)
                plain_whole = Whole(plain)
                sharded = Whole(copy.deepcopy(plain))
                self.shard(sharded, Block)
                ours = tessera.SGD(sharded, lr=1e-2)
                for x in batches(3):
                    theirs.zero_grad()
                    loss_of(plain_whole, x).backward()
                    theirs.step()
                    loss_of(sharded, x).backward()
                    ours.step()
                self.assert_same(plain_whole, sharded)

    def test_a_view_that_is_changed_in_place_trains(self):
        class Viewing(Block):
            def forward(self, x):
                return super().forward(x).view(-1)
        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.block, self.head = nn.Linear(4, 8), Viewing(8), nn.Linear(8, 1)
            def forward(self, x):
                y = self.block(self.embed(x))
                y.masked_fill_(y > 0.5, 0.5)
                return self.head(y.view(-1, 8))
        plain, sharded = self.pair(Outer())
        self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-2),
                   tessera.SGD(sharded, lr=1e-2))
        self.assert_same(plain, sharded)

    def test_two_backwards_through_one_forward(self):
        plain, sharded = self.pair()
        def step(model):
            out = model(batches(1)[0])
            out.sum().backward(retain_graph=True)
            out.square().sum().backward()
        self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-3),
                   tessera.SGD(sharded, lr=1e-3), step)
        self.assert_same(plain, sharded)

    def test_outputs_that_are_not_found_in_what_the_model_returns(self):
        class Hidden(Model):
            def forward(self, x):
                return types.SimpleNamespace(out=super().forward(x))
        plain, sharded = self.pair(Hidden())
        def step(model):
            for x in batches(2):
                model(x).out.sum().backward()
        self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-3),
                   tessera.SGD(sharded, lr=1e-3), step)
        self.assert_same(plain, sharded)

    def test_a_backward_that_follows_a_failed_one_is_whole(self):
        plain, sharded = self.pair()
        theirs, ours = torch.optim.SGD(plain.parameters(), lr=1e-2), tessera.SGD(sharded, lr=1e-2)
        failing, following = batches(2)
        plain(following).sum().backward()
        theirs.step()
        first, second = sharded(failing), sharded(following)
        def fail(_):
            raise ValueError("mine")
        first.grad_fn.register_prehook(fail)
        with self.assertRaisesRegex(ValueError, "mine"):
            first.sum().backward()
        second.sum().backward()
        ours.step()
        self.assert_same(plain, sharded)

    def test_a_gradient_that_was_set_by_hand_is_not_ignored(self):
        _, sharded = self.pair()
        ours = tessera.SGD(sharded, lr=1e-2)
        sharded(batches(1)[0]).sum().backward()
        ours.step()
        sharded.head.weight.grad = torch.ones_like(sharded.head.weight)
        with self.assertRaisesRegex(tessera.TesseraError, "'head.weight' is not the job's"):
            ours.step()

    def test_a_unit_that_runs_twice(self):
        class Twice(Model):
            def forward(self, x):
                x = self.embed(x)
                for block in self.blocks:
                    x = block(block(x))
                return self.head(x)
        plain, sharded = self.pair(Twice())
        self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-3),
                   tessera.SGD(sharded, lr=1e-3))
        self.assert_same(plain, sharded)

    def test_large_gradients_are_the_jobs_before_their_unit_is_through(self):
        given = []

        class Watched(Block):
            def forward(self, x):
                hidden = torch.relu(self.up(x))
                if hidden.requires_grad:  # down's gradients come before that of its input.
                    hidden.register_hook(lambda _: given.append(self.down.weight.grad is None))
                return x + self.down(hidden)

        for width in (8, 160):
            model = self.shard(nn.Sequential(Watched(width), nn.Linear(width, 1)), Watched)
            tessera.SGD(model)
            model(torch.randn(2, width)).sum().backward()
        self.assertEqual(given, [False, not ON_GPU])

        class Wide(Model):
            def forward(self, x):
                x = self.embed(x)
                for block in self.blocks:
                    x = checkpoint(block, block(x), use_reentrant=self.training)
                return self.head(x)

        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                plain, sharded = self.pair(Wide(width=160).train(reentrant))
                def step(model):
                    for x in batches(2):
                        loss_of(model, x).backward()
                self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-3),
                           tessera.SGD(sharded, lr=1e-3), step)
                self.assert_same(plain, sharded)

    def test_an_exception_in_backward_is_survived(self):
        plain, sharded = self.pair()
        ours = tessera.SGD(sharded, lr=1e-2)
        x = batches(1)[0]
        hidden = sharded(x)
        hidden.register_hook(lambda g: (_ for _ in ()).throw(ValueError("mine")))
        with self.assertRaisesRegex(ValueError, "mine"):
            hidden.sum().backward()
        ours.zero_grad()
        theirs = torch.optim.SGD(plain.parameters(), lr=1e-2)
        self.train(plain, sharded, theirs, ours)
        self.assert_same(plain, sharded)

    def test_an_exception_in_forward_is_survived(self):
        plain, sharded = self.pair()
        ours = tessera.SGD(sharded, lr=1e-2)
        with self.assertRaises(RuntimeError):
            sharded(torch.zeros(2, 99))
        self.train(plain, sharded, torch.optim.SGD(plain.parameters(), lr=1e-2), ours)
        self.assert_same(plain, sharded)

    def test_bf16_computes_in_bf16_and_keeps_fp32(self):
        _, sharded = self.pair(precision=tessera.Precision(torch.bfloat16))
        opt = tessera.AdamW(sharded, lr=1e-2)
        seen = []
        sharded.blocks[0].register_forward_hook(lambda m, a, out: seen.append(out.dtype))
        first = last = None
        for x in batches(1) * 20:
            loss = (sharded(x).float() - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            opt.step()
            first = first or loss.item()
            last = loss.item()
        self.assertEqual(set(seen), {torch.bfloat16})
        self.assertLess(last, first)
        self.assertEqual(sharded.state_dict()["head.weight"].dtype, torch.float32)

    def test_local_optimizer_is_any_of_torchs(self):
        plain, sharded = self.pair()
        self.train(plain, sharded, torch.optim.RMSprop(plain.parameters(), lr=1e-3),
                   tessera.LocalOptimizer(sharded, lambda s: torch.optim.RMSprop(s, lr=1e-3)))
        self.assert_same(plain, sharded)

    def test_local_optimizer_is_not_one_that_needs_whole_parameters(self):
        for kind in (torch.optim.Adafactor, torch.optim.LBFGS):
            with self.assertRaisesRegex(tessera.TesseraError, f"LocalOptimizer with {kind.__name__}"):
                tessera.LocalOptimizer(self.shard(Model()), kind)

    def test_meta_device_models_are_initialised_here(self):
        with torch.device("meta"):
            model = Model()
        self.shard(model)
        torch.manual_seed(3)
        opt = tessera.SGD(model, lr=1e-2)
        self.assertFalse(any(p.is_meta for p in model.parameters()))
        values = model.state_dict()
        self.assertGreater(values["embed.weight"].abs().sum().item(), 0)
        loss_of(model, batches(1)[0]).backward()
        opt.step()

    def test_models_get_their_values_after_shard_as_with_torch(self):
        def to_empty(model):
            model.to_empty(device=DEVICE)
            torch.manual_seed(3)
            for module in model.modules():
                if isinstance(module, nn.Linear):
                    module.reset_parameters()

        torch.manual_seed(3)
        values = Model().state_dict()
        for fill in (to_empty, lambda model: model.load_state_dict(values, assign=True)):
            plain = Model()
            plain.load_state_dict(values)
            with torch.device("meta"):
                model = Model()
            fill(self.shard(model))
            self.train(plain, model, torch.optim.AdamW(plain.parameters(), lr=1e-2),
                       tessera.AdamW(model, lr=1e-2))
            self.assert_same(plain, model)

    def test_models_that_change_after_shard_are_errors_where_the_job_would_not_train_them(self):
        def add(model):
            model.extra = nn.Linear(2, 2)

        def replace(model):
            model.blocks[2] = Block(8)

        def tie(model):
            model.blocks[1].up.weight = model.blocks[0].up.weight

        def untie(model):
            model.blocks[1].down.weight = nn.Parameter(model.blocks[1].down.weight.detach().clone())

        def remove(model):
            del model.blocks[2]

        changes = [(add, "'extra.weight' was added"), (untie, "'blocks.1.down.weight' was untied from"), (replace, "'blocks.2.up.weight' was moved"),
                   (tie, "'blocks.[01].up.weight' was moved or tied"),
                   (remove, "'blocks.2.up.weight' was removed")]
        for change, message in changes:
            for attach in (tessera.AdamW, lambda model: loss_of(model, batches(1)[0])):
                model = Model()
                model.blocks[1].down.weight = model.blocks[0].down.weight
                self.shard(model)
                change(model)
                with self.assertRaisesRegex(tessera.TesseraError, f"{message}.*after shard"):
                    attach(model)

    def test_modules_of_the_roots_unit_may_be_replaced_before_the_optimizer_is_made(self):
        plain, sharded = self.pair()
        plain.head = nn.Linear(8, 2)
        sharded.head = copy.deepcopy(plain.head)
        self.train(plain, sharded, torch.optim.AdamW(plain.parameters(), lr=1e-2),
                   tessera.AdamW(sharded, lr=1e-2))
        self.assert_same(plain, sharded)

    def test_modules_whose_parameters_are_all_tied_stay_units_without_any(self):
        class Lm(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.body = nn.Embedding(8, 8), nn.Linear(8, 8)
                self.head = nn.Linear(8, 8, bias=False)
                self.head.weight = self.embed.weight

            def forward(self, x):
                return self.head(self.body(self.embed(x)))

        plain, sharded = self.pair(nn.Sequential(Lm()), units=[Lm, nn.Embedding])
        theirs, ours = torch.optim.SGD(plain.parameters(), lr=0.1), tessera.SGD(sharded, lr=0.1)
        tokens = torch.arange(8, device=DEVICE)
        for model, opt in ((plain, theirs), (sharded, ours)):
            for _ in range(3):
                opt.zero_grad()
                model(tokens).square().mean().backward()
                opt.step()
        self.assert_same(plain, sharded)

    def test_ignored_modules_may_be_an_iterator(self):
        model = Model()
        self.shard(model, ignored_modules=model.head.modules())
        tessera.SGD(model, lr=1e-2)

    def test_parameters_in_half_precision_are_told_how_to_compute_in_it(self):
        with self.assertRaisesRegex(tessera.TesseraError,
                                    r"'embed.weight' is of torch.bfloat16.*model.float\(\)"):
            tessera.shard(Model().bfloat16(), Block)

    def test_gradients_can_be_read(self):
        plain, sharded = self.pair()
        tessera.SGD(sharded, lr=1e-2)
        x = batches(1)[0]
        loss_of(plain, x).backward()
        loss_of(sharded, x).backward()
        found = sharded.tessera.gradients()
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad.cpu())


class ModelsTest(Case):
    """Kinds of models, precisions and wrappers, each beside the plain module."""

    def compare(self, plain, sharded, batch_of, tolerance=1e-5, loss=None):
        loss = loss or (lambda model, x: model(x).square().mean())
        theirs, ours = torch.optim.SGD(plain.parameters(), lr=1e-2), tessera.SGD(sharded, lr=1e-2)
        for step in range(4):
            for model, optimizer in ((plain, theirs), (sharded, ours)):
                optimizer.zero_grad()
                loss(model, batch_of(step)).backward()
                optimizer.step()
        self.assert_same(plain, sharded, tolerance)

    def test_fp64_parameters_are_computed_and_kept_in_fp64(self):
        plain, sharded = self.pair(Model().double())
        self.compare(plain, sharded, lambda step: batches(4)[step].double(), 1e-12)
        self.assertEqual({p.dtype for p in sharded.parameters()}, {torch.float64})

    def test_shards_in_host_memory(self):
        plain, sharded = self.pair(cpu_offload=True)
        self.compare(plain, sharded, lambda step: batches(4)[step])

    def test_ignored_modules_are_the_users(self):
        plain = Model()
        sharded = copy.deepcopy(plain)
        self.shard(sharded, Block, ignored_modules=[sharded.head])
        theirs = torch.optim.SGD(plain.parameters(), lr=1e-2)
        ours = tessera.SGD(sharded, lr=1e-2)
        of_head = torch.optim.SGD(sharded.head.parameters(), lr=1e-2)
        for x in batches(4):
            for optimizer in (theirs, of_head):
                optimizer.zero_grad()
            for model in (plain, sharded):
                loss_of(model, x).backward()
            for optimizer in (theirs, ours, of_head):
                optimizer.step()
        self.assert_same(plain, sharded)

    def test_compiled_blocks(self):
        for backend in ("aot_eager", "inductor"):
            with self.subTest(backend):
                plain, sharded = self.pair()
                for block in sharded.blocks:
                    block.compile(backend=backend)
                self.compare(plain, sharded, lambda step: batches(4)[step])

    def test_what_was_compiled_for_a_plain_model_is_not_run_for_a_sharded_one(self):
        plain, sharded = self.pair()
        compiled = {model: torch.compile(model, backend="aot_eager") for model in (plain, sharded)}
        self.compare(plain, sharded, lambda step: batches(4)[step],
                     loss=lambda model, x: compiled[model](x).square().mean())

    def test_backward_inside_of_a_compiled_function(self):
        plain, sharded = self.pair()
        theirs, ours = torch.optim.SGD(plain.parameters(), lr=1e-2), tessera.SGD(sharded, lr=1e-2)
        for model, optimizer in ((plain, theirs), (sharded, ours)):
            @torch.compile(backend="aot_eager")
            def accumulate(x, model=model):
                loss_of(model, x).backward()
            for first, second in zip(batches(4), batches(8)[4:]):
                optimizer.zero_grad()
                accumulate(first)
                accumulate(second)
                optimizer.step()
        self.assert_same(plain, sharded)

    def test_autocast(self):
        def loss(model, x):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                return loss_of(model, x)
        self.compare(*self.pair(), lambda step: batches(4)[step], loss=loss)

    def test_convolutions_with_channels_last(self):
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
        plain, sharded = self.pair(model.to(memory_format=torch.channels_last), nn.Conv2d)
        self.compare(plain, sharded, lambda step: batches(4, 4, 192)[step].view(4, 3, 8, 8), 1e-4)

    def test_recurrent_layers(self):
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers, self.head = nn.LSTM(4, 8, 2, batch_first=True), nn.Linear(8, 1)
            def forward(self, x):
                return self.head(self.layers(x)[0])
        plain, sharded = self.pair(Recurrent(), nn.LSTM)
        self.compare(plain, sharded, lambda step: batches(4)[step].view(2, 3, 4), 1e-4)

    def test_sparse_gradients_of_an_embedding(self):
        class Tokens(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(20, 8, sparse=True)
                self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
                self.head = nn.Linear(8, 1)
            def forward(self, x):
                return self.head(self.layer(self.embed(x)))
        plain, sharded = self.pair(Tokens(), nn.TransformerEncoderLayer)
        self.compare(plain, sharded, lambda step: torch.arange(12).view(2, 6) % (7 + step), 1e-4)


class StateTest(Case):
    def step(self, model, opt, count=2):
        for x in batches(count):
            loss_of(model, x).backward()
            opt.step()

    def test_state_dict_is_loaded(self):
        plain, sharded = self.pair()
        tessera.SGD(sharded)
        other = Model()
        sharded.load_state_dict(other.state_dict())
        self.assert_same(other, sharded)
        with self.assertRaisesRegex(RuntimeError, "Missing key"):
            sharded.load_state_dict({})
        self.assert_same(other, sharded)

    def test_optimizer_state_goes_to_torch_and_back(self):
        plain, sharded = self.pair()
        ours = tessera.AdamW(sharded, lr=1e-2)
        self.step(sharded, ours)
        saved = ours.state_dict()
        plain.load_state_dict(sharded.state_dict())
        theirs = torch.optim.AdamW(plain.parameters(), lr=1e-2)
        theirs.load_state_dict({"state": saved["state"],
                                "param_groups": theirs.state_dict()["param_groups"]})
        x = batches(3)[2]
        loss_of(plain, x).backward()
        theirs.step()
        loss_of(sharded, x).backward()
        ours.step()
        self.assert_same(plain, sharded)
        other = self.shard(Model())
        again = tessera.AdamW(other, lr=1e-2)
        again.load_state_dict(saved)
        for number, entry in again.state_dict()["state"].items():
            torch.testing.assert_close(entry["exp_avg"], saved["state"][number]["exp_avg"])
            self.assertEqual(entry["step"], saved["state"][number]["step"])

    def test_optimizer_state_of_each_kind_is_taken_by_torchs_as_it_is(self):
        for kind, options in (("SGD", {"lr": 0.1, "momentum": 0.9}), ("SGD", {"lr": 0.1}),
                              ("Adam", {"lr": 0.1, "weight_decay": 0.1}), ("AdamW", {"lr": 0.1})):
            with self.subTest(kind, **options):
                plain, sharded = self.pair()
                ours = getattr(tessera, kind)(sharded, **options)
                self.step(sharded, ours)
                plain.load_state_dict(sharded.state_dict())
                theirs = getattr(torch.optim, kind)(plain.parameters(), **options)
                own = theirs.state_dict()
                theirs.load_state_dict(ours.state_dict())
                self.assertEqual(theirs.state_dict()["param_groups"], own["param_groups"])
                for model, optimizer in ((plain, theirs), (sharded, ours)):
                    optimizer.zero_grad()
                    loss_of(model, batches(3)[2]).backward()
                    optimizer.step()
                self.assert_same(plain, sharded)
                self.assertEqual({number: set(entry) for number, entry in
                                  ours.state_dict()["state"].items()},
                                 {number: {key for key, value in entry.items() if value is not None}
                                  for number, entry in theirs.state_dict()["state"].items()})

    def test_torchs_functions_for_state_dicts_work_and_take_no_step(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        plain, sharded = self.pair()
        theirs = torch.optim.AdamW(plain.parameters(), lr=1e-2)
        ours = tessera.AdamW(sharded, lr=1.0)
        # What dcp.load() reads into.
        for name, entry in get_state_dict(sharded, ours)[1]["state"].items():
            self.assertEqual(set(entry), {"exp_avg", "exp_avg_sq", "step"}, name)
            self.assertFalse(any(value.any() for value in entry.values()), name)
        self.assertEqual(len(get_state_dict(sharded, ours)[1]["state"]),
                         len(list(sharded.parameters())))
        self.assertEqual(sharded.tessera.next_step, 1)
        self.step(plain, theirs)
        theirs.zero_grad()
        model_state, optimizer_state = get_state_dict(plain, theirs)
        set_state_dict(sharded, ours, model_state_dict=model_state,
                       optim_state_dict=optimizer_state)
        self.assertEqual(sharded.tessera.next_step, 3)
        for model, optimizer in ((plain, theirs), (sharded, ours)):
            loss_of(model, batches(3)[2]).backward()
            optimizer.step()
        self.assert_same(plain, sharded)
        expected, actual = (get_state_dict(*of)[1] for of in ((plain, theirs), (sharded, ours)))
        self.assertEqual(list(expected["state"]), list(actual["state"]))
        for name, entry in expected["state"].items():
            # A job's state is in host memory.
            torch.testing.assert_close(actual["state"][name], entry, check_device=False)

    def test_names_are_those_of_state_dict_in_checkpoint_wrappers_too(self):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
            apply_activation_checkpointing)
        plain = Model()
        plain.blocks[0].register_buffer("seen", torch.tensor([3]))
        sharded = copy.deepcopy(plain)
        apply_activation_checkpointing(sharded, check_fn=lambda m: isinstance(m, Block))
        self.shard(sharded)
        self.step(plain, torch.optim.SGD(plain.parameters(), lr=1e-2), 1)
        self.step(sharded, tessera.SGD(sharded, lr=1e-2), 1)
        self.assert_same(plain, sharded)
        with tempfile.TemporaryDirectory() as folder:
            tessera.save_model(sharded, f"{folder}/m.safetensors")
            other = self.shard(Model())
            tessera.SGD(other)
            found = tessera.load_model(other, f"{folder}/m.safetensors", strict=False)
        self.assertEqual(found, {"missing": [], "unexpected": ["blocks.0.seen"]})
        for name, parameter in other.named_parameters():
            self.assertTrue(torch.equal(other.state_dict()[name], sharded.state_dict()[name]))
        sharded.load_state_dict(Model().state_dict(), strict=False)

    def test_numbers_that_the_job_has_no_formula_for_are_refused(self):
        for kind, flag, value in ((tessera.SGD, "nesterov", True), (tessera.SGD, "dampening", 0.5),
                                  (tessera.AdamW, "amsgrad", True),
                                  (tessera.Adam, "decoupled_weight_decay", True)):
            with self.subTest(flag):
                _, sharded = self.pair()
                group = {"params": list(sharded.parameters()), flag: value}
                with self.assertRaisesRegex(tessera.TesseraError, f"no formula for {flag}"):
                    kind(sharded, param_groups=[group])
                ours = kind(sharded)
                saved = ours.state_dict()
                saved["param_groups"][0][flag] = value
                with self.assertRaisesRegex(tessera.TesseraError, f"no formula for {flag}"):
                    ours.load_state_dict(saved)

    def test_optimizer_state_of_torch_continues_here(self):
        plain, sharded = self.pair()
        theirs, ours = torch.optim.AdamW(plain.parameters(), lr=1e-2), tessera.AdamW(sharded, lr=1e-2)
        self.step(plain, theirs)
        theirs.zero_grad()
        sharded.load_state_dict(plain.state_dict())
        ours.load_state_dict(theirs.state_dict())
        x = batches(3)[2]
        for model, optimizer in ((plain, theirs), (sharded, ours)):
            loss_of(model, x).backward()
            optimizer.step()
        self.assert_same(plain, sharded)

    def test_optimizer_state_of_other_parameters_is_refused_by_name(self):
        _, sharded = self.pair()
        ours = tessera.AdamW(sharded, lr=1e-2)
        self.step(sharded, ours)
        saved = ours.state_dict()
        saved["state"][0], saved["state"][1] = saved["state"][1], saved["state"][0]
        with self.assertRaisesRegex(tessera.TesseraError, "exp_avg of parameter 'embed.weight'"):
            ours.load_state_dict(saved)

    def test_checkpoint_has_the_random_state(self):
        with tempfile.TemporaryDirectory() as folder:
            _, sharded = self.pair()
            tessera.SGD(sharded)
            tessera.save(sharded, f"{folder}/c")
            expected = torch.rand(4)
            torch.manual_seed(99)
            tessera.load(sharded, f"{folder}/c")
            self.assertTrue(torch.equal(torch.rand(4), expected))

    def test_checkpoint_continues_to_the_bit(self):
        class Position:
            def __init__(self):
                self.at = 0
            def state_dict(self):
                return {"at": self.at}
            def load_state_dict(self, state):
                self.at = state["at"]
        with tempfile.TemporaryDirectory() as folder:
            first = self.shard(Model())
            opt = tessera.AdamW(first, lr=1e-2)
            position = Position()
            tessera.register_state("data", position, first)
            self.step(first, opt)
            position.at = 12
            tessera.save(first, f"{folder}/two")
            self.step(first, opt)
            second = self.shard(Model())
            opt2 = tessera.AdamW(second, lr=1.0)
            there = Position()
            tessera.register_state("data", there, second)
            loaded = tessera.load(second, f"{folder}/two")
            self.assertEqual((loaded["step"], there.at, opt2.param_groups[0]["lr"]), (2, 12, 1e-2))
            third = self.shard(Model())
            tessera.AdamW(third, lr=1.0)
            tessera.load(third, f"{folder}/two")
            late = Position()
            tessera.register_state("data", late, third)
            self.assertEqual(late.at, 12)
            self.step(second, opt2)
            for name, value in first.state_dict().items():
                self.assertTrue(torch.equal(value, second.state_dict()[name]), name)

    def test_leaving_waits_for_a_save_that_would_end_with_this_process(self):
        with tempfile.TemporaryDirectory() as folder:
            first = self.shard(Model(), executor_in_process=True)
            self.step(first, tessera.SGD(first, lr=1e-2))
            expected = first.state_dict()
            tessera.save(first, f"{folder}/c", in_background=True)
            first.tessera.detach()
            second = self.shard(Model())
            tessera.SGD(second)
            self.assertEqual(tessera.load(second, f"{folder}/c")["step"], 2)
            for name, value in second.state_dict().items():
                self.assertTrue(torch.equal(value, expected[name]), name)

    def test_model_files_are_safetensors_with_buffers(self):
        from safetensors.torch import load_file
        plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        plain, sharded = self.pair(plain, units=nn.Linear)
        tessera.SGD(sharded)
        with tempfile.TemporaryDirectory() as folder:
            tessera.save_model(sharded, f"{folder}/m.safetensors")
            read = load_file(f"{folder}/m.safetensors")
            for name, value in plain.state_dict().items():
                torch.testing.assert_close(read[name], value.cpu())
            other = self.shard(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Linear)
            other[1].running_mean.fill_(5.0)
            tessera.SGD(other)
            self.assertEqual(tessera.load_model(other, f"{folder}/m.safetensors"),
                             {"missing": [], "unexpected": []})
            self.assert_same(plain, other)

    def test_summoned_parameters_are_written_back(self):
        _, sharded = self.pair()
        tessera.SGD(sharded)
        with sharded.tessera.summon_full_params():
            with torch.no_grad():
                sharded.head.bias.fill_(4.0)
        self.assertEqual(sharded.state_dict()["head.bias"].item(), 4.0)
        other = Model().state_dict()
        with sharded.tessera.summon_full_params():
            sharded.load_state_dict(other)
        torch.testing.assert_close(sharded.state_dict()["head.weight"], other["head.weight"])

    def test_a_forward_of_summoned_parameters_runs_inside_of_one_that_has_windows(self):
        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.seen = Model(), []

            def forward(self, x, depth=0):
                if depth == 0:
                    with torch.no_grad(), self.tessera.summon_full_params(writeback=False):
                        self.seen.append(self(x, 1))
                return self.inner(x)

        plain = Model()
        sharded = self.shard(Outer())
        sharded.inner.load_state_dict(plain.state_dict())
        theirs, ours = torch.optim.SGD(plain.parameters(), lr=0.1), tessera.SGD(sharded, lr=0.1)
        for x in batches(3):
            with torch.no_grad():
                expected = plain(x)
            loss_of(plain, x).backward()
            loss_of(sharded, x).backward()
            torch.testing.assert_close(sharded.seen[-1], expected)
            theirs.step()
            theirs.zero_grad()
            ours.step()
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(sharded.state_dict()[f"inner.{name}"], value)

    def test_summoned_models_run_forward_without_gradients_and_train_on_after_it(self):
        plain, sharded = self.pair(precision=tessera.Precision(torch.bfloat16))
        theirs, ours = (torch.optim.SGD(plain.parameters(), lr=0.1), tessera.SGD(sharded, lr=0.1))
        x = batches(1)[0]
        plain.load_state_dict(sharded.state_dict())
        with torch.no_grad(), sharded.tessera.summon_full_params(writeback=False):
            for _ in range(2):
                # In full precision.
                self.assertTrue(torch.equal(sharded(x), plain(x)))
            self.assertTrue(torch.equal(sharded.blocks[1](x @ x.new_ones(4, 8)),
                                        plain.blocks[1](x @ x.new_ones(4, 8))))
        with sharded.tessera.summon_full_params():
            for forward in (sharded, sharded.blocks[1]):
                with self.assertRaisesRegex(tessera.TesseraError, "with gradients inside of summon"):
                    forward(x if forward is sharded else x.new_ones(2, 8))
            with self.assertRaisesRegex(tessera.TesseraError, "inside of summon_full_params"):
                with sharded.tessera.summon_full_params():
                    pass
        with torch.autocast(x.device.type, torch.bfloat16):
            loss_of(plain, x).backward()
        loss_of(sharded, x).backward()
        theirs.step()
        ours.step()
        self.assert_same(plain, sharded, tolerance=2e-2)


    def test_folders_above_a_save_are_made(self):
        _, sharded = self.pair()
        sharded.tessera.attach()
        folder = pathlib.Path(_folder.name) / "runs"
        tessera.save(sharded, folder / "a" / "step-1")
        tessera.save_model(sharded, folder / "b" / "model.safetensors")
        self.assertEqual(sorted(str(p.relative_to(folder)) for p in folder.glob("*/*")),
                         ["a/step-1", "b/model.safetensors"])
        with self.assertRaisesRegex(tessera.TesseraError, "Not a directory|exists"):
            tessera.save(sharded, folder / "b" / "model.safetensors" / "step-1")


class LiveTest(Case):
    def test_another_process_reads_what_the_job_has(self):
        plain = Model()
        plain.blocks[2].up.weight = plain.blocks[0].up.weight
        plain.register_buffer("count", torch.tensor([3, 4]))
        _, sharded = self.pair(plain)
        opt = tessera.AdamW(sharded, lr=1e-2)
        for x in batches(3):
            loss_of(sharded, x).backward()
            opt.step()
        job = sharded.tessera.job_id()
        where = {"coordinator": sharded.tessera._context.coordinator}
        found = tessera.live.read(job, **where)
        self.assertEqual(found.step, 3)
        expected = sharded.state_dict()
        self.assertEqual(set(found.tensors), set(expected))
        for name, value in expected.items():
            self.assertTrue(torch.equal(found.tensors[name], value.cpu()), name)
        halves = tessera.live.read(job, ["head.*"], ["*.bias"], dtype=torch.bfloat16, moments=True,
                                   buffers=False, **where).tensors
        self.assertEqual(set(halves), {"head.weight", "state.head.weight.exp_avg",
                                       "state.head.weight.exp_avg_sq"})
        self.assertTrue(torch.equal(halves["head.weight"], expected["head.weight"].bfloat16().cpu()))

    def test_what_is_not_there_is_named(self):
        _, sharded = self.pair()
        where = {"coordinator": _cluster.context().coordinator}
        for job, include, said in (("nobody", [], "nobody"), (None, [], "TESSERA_JOB")):
            with self.assertRaisesRegex(tessera.TesseraError, said):
                tessera.live.read(job, include, **where)
        tessera.SGD(sharded)
        with self.assertRaisesRegex(tessera.TesseraError, "no parameter.s name matches"):
            tessera.live.read(sharded.tessera.job_id(), ["nothing.at.all"], **where)


class ProfilerTest(Case):
    def test_units_are_ranges_of_torchs_profiler(self):
        model = self.shard(Model())
        opt = tessera.SGD(model, lr=0.1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            loss_of(model, batches(1)[0]).backward()
            opt.step()
        names = {event.key for event in profile.key_averages()}
        for what in ("pre_forward", "post_forward", "pre_backward", "post_backward", "reduce"):
            self.assertIn(f"tessera::{what} (blocks.1)", names)
        self.assertIn("tessera::step (all units)", names)
        self.assertIn("Optimizer.step#SGD.step", names)

    def test_hooks_of_steps_run_around_them(self):
        model = self.shard(Model())
        opt = tessera.SGD(model, lr=0.1)
        seen = []

        def take():
            loss_of(model, batches(1)[0]).backward()
            opt.step()

        before = opt.register_step_pre_hook(
            lambda *_: seen.append(("before", model.tessera.next_step)))
        after = opt.register_step_post_hook(
            lambda *_: seen.append(("after", model.tessera.next_step)))
        take()
        self.assertEqual(seen, [("before", 1), ("after", 2)])
        before.remove()
        after.remove()
        of_all = register_optimizer_step_post_hook(lambda optimizer, *_: seen.append(optimizer))
        self.addCleanup(of_all.remove)
        take()
        self.assertIs(seen[-1], opt)


class ReportTest(Case):
    def test_reports_take_numbers_and_name_what_they_do_not(self):
        sharded = self.shard(Model())
        with self.assertRaisesRegex(tessera.TesseraError, "not attached"):
            sharded.tessera.report(loss=1.0)
        tessera.SGD(sharded)
        sharded.tessera.report(loss=torch.tensor(0.5, requires_grad=True), tokens=4096)
        with self.assertRaisesRegex(tessera.TesseraError, "'the loss'"):
            sharded.tessera.report(**{"the loss": 1.0})
        with self.assertRaisesRegex(tessera.TesseraError, "33 values"):
            sharded.tessera.report(**{f"v{i}": i for i in range(33)})


class MisuseTest(Case):
    def test_a_forked_child_is_refused_and_leaves_the_session_alone(self):
        plain, sharded = self.pair()
        theirs, opt = torch.optim.SGD(plain.parameters(), lr=1e-2), tessera.SGD(sharded, lr=1e-2)
        self.train(plain, sharded, theirs, opt)
        x = batches(1)[0]
        for use in (sharded.state_dict, lambda: sharded(x), opt.step, opt.zero_grad,
                    lambda: sharded.tessera.report(loss=1.0)):
            theirs.zero_grad()
            loss_of(plain, x).backward()
            loss_of(sharded, x).backward()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    use()
                    sharded.tessera.detach()
                except tessera.TesseraError as error:
                    sharded.tessera.detach()  # Its own: the parent stays attached.
                    status = 0 if "a forked child cannot use" in str(error) else 2
                finally:
                    os._exit(status)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            theirs.step()
            opt.step()
        self.assert_same(plain, sharded)

    def test_state_of_the_jobs_optimizer_is_not_cleared_silently(self):
        plain, sharded = self.pair()
        theirs, opt = torch.optim.Adam(plain.parameters()), tessera.Adam(sharded)
        self.train(plain, sharded, theirs, opt)
        with self.assertRaisesRegex(tessera.TesseraError, "'state': {}"):
            opt.state.clear()
        opt.load_state_dict({**opt.state_dict(), "state": {}})
        theirs.state.clear()
        self.train(plain, sharded, theirs, opt)
        self.assert_same(plain, sharded)

    @unittest.skipIf(ON_GPU, "pages of a GPU cannot be protected")
    def test_a_read_outside_its_window_is_an_exception_with_the_name(self):
        _, sharded = self.pair()
        opt = tessera.SGD(sharded, lr=1e-2)
        with self.assertRaisesRegex(tessera.OutsideWindowError, "blocks.1.up.weight.*state_dict"):
            sharded.blocks[1].up.weight.norm()
            str(0)
        loss_of(sharded, batches(1)[0]).backward()
        opt.step()

    @unittest.skipIf(ON_GPU, "pages of a GPU cannot be protected")
    def test_an_optimizer_of_torch_is_told_which_ones_there_are(self):
        model = Model()
        made_before = torch.optim.AdamW(model.parameters())
        self.shard(model)
        for opt in (made_before, torch.optim.SGD(model.parameters(), lr=1e-2)):
            loss_of(model, batches(1)[0]).backward()
            with self.assertRaisesRegex(tessera.TesseraError, "tessera.AdamW"):
                opt.step()

        def closure():
            sharded.blocks[0].up.weight.norm()
            str(0)

        _, sharded = self.pair()
        opt = tessera.SGD(sharded, lr=1e-2)
        torch.optim.lr_scheduler.StepLR(opt, 1)
        with self.assertRaisesRegex(tessera.OutsideWindowError, "state_dict"):
            opt.step(closure)

    @unittest.skipIf(ON_GPU, "pages of a GPU cannot be protected")
    def test_a_write_is_an_exception_and_changes_nothing(self):
        _, sharded = self.pair()
        opt = tessera.SGD(sharded, lr=1e-2)
        before = sharded.state_dict()
        with self.assertRaisesRegex(tessera.OutsideWindowError, "blocks.1.up.weight"):
            with torch.no_grad():
                sharded.blocks[1].up.weight.add_(1.0)
                str(0)
        def write(module, args):
            with torch.no_grad():
                module.up.weight.mul_(2.0)
                str(0)
        hook = sharded.blocks[0].register_forward_pre_hook(write)
        with self.assertRaisesRegex(tessera.OutsideWindowError, "only read parameters"):
            sharded(batches(1)[0])
        hook.remove()
        for name, value in sharded.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)
        loss_of(sharded, batches(1)[0]).backward()
        opt.step()

    @unittest.skipIf(ON_GPU, "parameters of a GPU are where their windows are")
    def test_a_parameter_that_is_given_other_memory_is_an_error_of_the_step(self):
        _, sharded = self.pair()
        opt = tessera.SGD(sharded, lr=1e-2)
        bias = sharded.blocks[1].up.bias
        kept = bias.data
        for give in (lambda: setattr(bias, "data", torch.ones(16)),
                     lambda: torch.no_grad()(bias.set_)(torch.ones(16))):
            bias.data = kept
            loss_of(sharded, batches(1)[0]).backward()
            give()
            with self.assertRaisesRegex(tessera.TesseraError, "'blocks.1.up.bias' was given other"):
                opt.step()
            opt.zero_grad()

    def test_what_would_take_the_jobs_values_for_summoned_ones_is_refused(self):
        _, sharded = self.pair()
        opt = tessera.SGD(sharded, lr=1e-2)
        x = batches(1)[0]
        loss = loss_of(sharded, x)
        with tempfile.TemporaryDirectory() as folder, sharded.tessera.summon_full_params():
            for call, said in (
                    (opt.step, "a step"), (lambda: opt.step(lambda: loss), "a step"),
                    (sharded.tessera.detach, "detach()"), (loss.backward, "a backward"),
                    (lambda: sharded.head(x.new_ones(2, 8)).sum().backward(), "a backward"),
                    (lambda: tessera.save(sharded, folder), "save()"),
                    (lambda: tessera.load(sharded, folder), "load()"),
                    (lambda: tessera.save_model(sharded, f"{folder}/m"), "save_model()"),
                    (lambda: tessera.load_model(sharded, f"{folder}/m"), "load_model()")):
                with self.assertRaises(tessera.TesseraError) as raised:
                    call()
                self.assertIn(f"{said} inside of summon_full_params()", str(raised.exception))
        loss_of(sharded, x).backward()
        opt.step()

    def test_an_optimizer_that_is_given_parameters_says_what_it_takes(self):
        _, sharded = self.pair()
        with self.assertRaisesRegex(tessera.TesseraError, "takes the sharded model.*generator"):
            tessera.AdamW(sharded.parameters(), lr=1e-3)

    def test_gradients_that_the_job_has_are_not_torchs(self):
        _, sharded = self.pair()
        opt = tessera.SGD(sharded, lr=1e-2)
        loss_of(sharded, batches(1)[0]).backward()
        with self.assertRaisesRegex(tessera.TesseraError, "clip_grad_norm_"):
            torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)
        with self.assertRaisesRegex(tessera.TesseraError, "the job has taken it"):
            torch.optim.SGD(sharded.parameters(), lr=1.0).step()
        gradient = sharded.head.weight.grad
        self.assertEqual(gradient.shape, sharded.head.weight.shape)
        for use in (lambda: gradient.data, gradient.detach, gradient.tolist, gradient.numpy,
                    gradient.clone, lambda: gradient[0, 0], lambda: gradient * 2,
                    lambda: gradient.mul_(0.5), lambda: float(gradient.sum())):
            with self.assertRaisesRegex(tessera.TesseraError, "the job has taken it"):
                use()
        sharded.head.weight.grad = None
        with self.assertRaisesRegex(tessera.TesseraError, "head.weight"):
            opt.step()
        opt.zero_grad()
        loss_of(sharded, batches(1)[0]).backward()
        opt.step()

    def test_an_attached_model_stays_where_it_is_and_what_it_is(self):
        _, sharded = self.pair()
        optimizer = tessera.SGD(sharded, lr=0.1)
        loss_of(sharded, batches(1)[0]).backward()
        self.assertIs(sharded.to(DEVICE), sharded)
        self.assertIs(sharded.float(), sharded)
        with self.assertRaisesRegex(tessera.TesseraError, "not to torch.float64"):
            sharded.double()
        optimizer.step()

    def test_what_would_silently_not_train_is_named(self):
        plain = Model()
        plain.head.bias.requires_grad_(False)
        for steps in (0, 2):
            _, thawed = self.pair(plain)
            grown = self.shard(Model())
            of_grown = tessera.LocalOptimizer(grown, lambda p: torch.optim.SGD(p, lr=1e-2))
            for model, opt in ((thawed, tessera.SGD(thawed, lr=1e-2)), (grown, of_grown)):
                for x in batches(steps):
                    loss_of(model, x).backward()
                    opt.step()
                loss_of(model, batches(1)[0]).backward()
                if model is thawed:
                    model.head.bias.requires_grad_(True)
                else:
                    model.late = nn.Linear(2, 2)
                with self.assertRaisesRegex(tessera.TesseraError, "head.bias|late.weight"):
                    opt.step()

    def test_what_a_closure_may_not_do_is_named(self):
        _, sharded = self.pair()
        opt = tessera.SGD(sharded)
        with self.assertRaisesRegex(tessera.TesseraError, "detach.. within a step"):
            opt.step(sharded.tessera.detach)
        with self.assertRaisesRegex(tessera.TesseraError, "a step within a step"):
            opt.step(lambda: opt.step(lambda: None))
        loss_of(sharded, batches(1)[0]).backward()
        opt.step()
        sharded.tessera.detach()
        with self.assertRaisesRegex(tessera.TesseraError, "not attached"):
            opt.step()
        with self.assertRaisesRegex(tessera.TesseraError, "before detach"):
            sharded.state_dict()
        for forward in (sharded, sharded.blocks[0]):
            with self.assertRaisesRegex(tessera.TesseraError, "forward of .* after detach"):
                forward(batches(1)[0])

    def test_zero_grad_of_the_module_drops_what_the_job_has(self):
        plain, sharded = self.pair()
        opt = tessera.SGD(sharded, lr=1e-2)
        x, y = batches(2)
        loss_of(sharded, x).backward()
        sharded.zero_grad()
        loss_of(sharded, y).backward()
        opt.step()
        loss_of(plain, y).backward()
        torch.optim.SGD(plain.parameters(), lr=1e-2).step()
        self.assert_same(plain, sharded)

    def test_losses_of_gradients_train_as_torchs(self):
        class Smooth(Block):
            def forward(self, x):
                return x + self.down(torch.tanh(self.up(x)))

        class Field(Model):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList(Smooth(8) for _ in range(3))

        def slope_of(value, at):
            return torch.autograd.grad(value.sum(), at, create_graph=True)[0]

        def penalty(model, x):  # As of WGAN-GP.
            out = model(x)
            (out.mean() + (slope_of(out, x).norm(dim=1) - 1).square().mean()).backward()

        def equation(model, x):  # As of a network that solves one, with a forward on the boundary.
            value = model(x)
            bend = slope_of(slope_of(value, x)[:, 0], x)[:, 0]
            ((bend + value).square().mean() + model(x.detach() * 0).square().mean()).backward()

        def forces(model, x):  # As of a potential, in two batches.
            for half in (x[:3], x[3:]):
                (slope_of(model(half), half) - 1).square().mean().backward()

        def flatness(model, x):  # By gradients of parameters.
            loss = loss_of(model, x)
            slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            (loss + sum(slope.square().sum() for slope in slopes)).backward()

        class Potential(Field):  # Returns the forces of it.
            def forward(self, x):
                return slope_of(super().forward(x), x)

        def potential(model, x):
            (model(x) - 1).square().mean().backward()

        def between(model, x):  # Other things happen between the two backwards.
            loss = slope_of(model(x), x).square().mean()
            with torch.no_grad():
                model(x)
            model.zero_grad()
            loss.backward()

        class Hidden(Field):  # What its forward takes needs no gradient.
            def forward(self, x):
                x = self.at = self.embed(x)
                for block in self.blocks:
                    x = block(x)
                return self.head(x)

        def hidden(model, x):
            loss = loss_of(model, x.detach())
            (loss + slope_of(loss, model.at).square().sum()).backward()

        cases = [(loss, Field) for loss in (penalty, equation, forces, flatness, between)]
        for loss, kind in cases + [(potential, Potential), (hidden, Hidden)]:
            for strategy in ("FULL_SHARD", "SHARD_GRAD_OP"):
                with self.subTest(loss=loss.__name__, strategy=strategy):
                    plain, sharded = self.pair(kind(), Smooth, strategy=strategy)
                    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-2)
                    ours = tessera.AdamW(sharded, lr=1e-2)
                    for x in batches(4):
                        theirs.zero_grad()
                        loss(plain, x.clone().requires_grad_())
                        theirs.step()
                        loss(sharded, x.clone().requires_grad_())
                        ours.step()
                    self.assert_same(plain, sharded, 1e-4)

    def test_create_graph_is_refused_by_name(self):
        _, sharded = self.pair()
        tessera.SGD(sharded)
        with self.assertRaisesRegex(tessera.TesseraError, "create_graph"):
            loss_of(sharded, batches(1)[0]).backward(create_graph=True)

    def test_a_gradient_that_is_no_number_is_an_error_and_dropped(self):
        _, sharded = self.pair()
        opt = tessera.SGD(sharded, lr=1e-2)
        (loss_of(sharded, batches(1)[0]) * float("nan")).backward()
        with self.assertRaisesRegex(tessera.TesseraError, "(?i)nan|inf"):
            opt.step()
        loss_of(sharded, batches(1)[0]).backward()
        opt.step()
        self.assertEqual(sharded.tessera.next_step, 2)

    def test_what_cannot_be_sharded_is_named(self):
        complex_model = nn.Module()
        complex_model.w = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        for model, units, said in ((complex_model, None, "'w'.*complex64"),
                                   (Model(), nn.Conv2d, "no module"),
                                   (nn.ReLU(), None, "no parameters"), ("text", None, "str")):
            with self.assertRaisesRegex(tessera.TesseraError, said):
                tessera.shard(model, units)
        with self.assertRaisesRegex(tessera.TesseraError, "FULL_SHARD"):
            tessera.shard(Model(), strategy="full")
        with self.assertRaisesRegex(tessera.TesseraError, "learning_rat"):
            tessera.SGD(self.shard(Model(), config={"learning_rat": 1}))
        with self.assertRaisesRegex(tessera.TesseraError, "shard\\(model\\)"):
            tessera.AdamW(Model())

    def test_a_second_model_does_not_take_the_values_of_the_first_unasked(self):
        first, second, third = Model(), Model(), Model()
        tessera.SGD(tessera.shard(first), lr=0.1)
        self.models.append(first)
        job = first.tessera.job_id()
        loss_of(first, batches(1)[0]).backward()
        first.tessera.optimizer.step()
        with self.assertRaisesRegex(tessera.TesseraError, f"job '{job}' is that of another model"):
            tessera.SGD(tessera.shard(second), lr=0.1)
        with self.assertRaisesRegex(tessera.TesseraError, "after detach\\(\\) of the other"):
            tessera.SGD(tessera.shard(Model(), job=job), lr=0.1)  # At once: it would wait for itself.
        trained = first.state_dict()
        first.tessera.detach()
        with self.assertRaisesRegex(tessera.TesseraError, "a job of its own"):
            tessera.SGD(second, lr=0.1)
        tessera.SGD(tessera.shard(third, job=job), lr=0.1)
        self.models.append(third)
        self.assertEqual(third.tessera.next_step, 2)
        for name, value in third.state_dict().items():
            self.assertTrue(torch.equal(value, trained[name]), name)

    def two_models(self):
        made = [tessera.shard(torch.nn.Linear(4, 4), job=f"job{next(_jobs)}") for _ in range(2)]
        self.models += made
        return [*made, *(tessera.SGD(model, lr=0.1) for model in made)]

    def test_a_closure_of_another_model_within_a_closure_is_an_error(self):
        _, second, first_opt, second_opt = self.two_models()
        with self.assertRaisesRegex(tessera.TesseraError, "a step within a step"):
            first_opt.step(lambda: second_opt.step(lambda: second(torch.ones(1, 4)).sum().backward()))

    def test_a_closure_is_run_again_after_other_batches_only_if_it_drops_them(self):
        plain, sharded = self.pair()
        theirs, opt = torch.optim.SGD(plain.parameters(), lr=0.1), tessera.SGD(sharded, lr=0.1)
        first, second = batches(2)

        def step(drops):
            tries = []

            def closure():
                if drops:
                    opt.zero_grad()
                loss_of(sharded, second).backward()
                tries.append(1)
                if len(tries) == 1:
                    raise tessera.StepUndone("as if a process had died", "ABORTED")
            loss_of(sharded, first).backward()
            opt.step(closure)
            return len(tries)
        with self.assertRaisesRegex(tessera.StepUndone, "the batches before this closure went"):
            step(drops=False)
        self.assertEqual(sharded.tessera.next_step, 1)
        self.assertEqual(step(drops=True), 2)
        loss_of(plain, second).backward()
        theirs.step()
        self.assert_same(plain, sharded)
        loss_of(sharded, first).backward()
        opt.step(lambda: loss_of(sharded, second).backward())
        theirs.zero_grad()
        for x in (first, second):
            loss_of(plain, x).backward()
        theirs.step()
        self.assert_same(plain, sharded)

    def test_gradients_that_another_models_closure_undid_are_missed_by_their_step(self):
        encoder, head, encoder_opt, head_opt = self.two_models()
        encoder(torch.ones(1, 4)).sum().backward()
        tries = []

        def closure():
            head(encoder(torch.ones(1, 4))).sum().backward()
            tries.append(len(tries))
            if len(tries) == 1:
                raise tessera.StepUndone("as if a process had died", "ABORTED")
        head_opt.step(closure)
        self.assertEqual((len(tries), head.tessera.next_step), (2, 2))
        with self.assertRaisesRegex(tessera.StepUndone, "are gone"):
            encoder_opt.step()
        encoder_opt.zero_grad()
        encoder(torch.ones(1, 4)).sum().backward()
        encoder_opt.step()
        self.assertEqual(encoder.tessera.next_step, 2)

    def test_an_optimizer_before_a_forward_and_only_one(self):
        _, sharded = self.pair()
        tessera.SGD(sharded)
        with self.assertRaisesRegex(tessera.TesseraError, "has an optimizer"):
            tessera.SGD(sharded)
        _, other = self.pair()
        other(batches(1)[0])
        with self.assertRaisesRegex(tessera.TesseraError, "before the first forward"):
            tessera.SGD(other)


if __name__ == "__main__":
    unittest.main()
