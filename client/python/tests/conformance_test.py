"""The trainings of the FSDP conformance suite from Python, by plain modules, FSDP2 and tessera.

conformance_cases has the table of cases, conformance_trainers what trains them, and
conformance_golden the trainings with whose record tests/conformance/fsdp compares.
"""

import functools
import os
import pathlib
import tempfile
import time
import unittest

import torch

from tessera import _cluster
from tessera._daemons import Daemons

import conformance_cases
import conformance_golden
import conformance_ranks
import conformance_trainers

_SECONDS = 700.0  # For all trainings.
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")  # Those of fully_shard_training_test.cc.
_results: dict[str, list] = {}


def name_of(case):
    return f"{case.topic}: {case.name}, {case.ranks} ranks"


def golden_runs():
    """(name, run, strategy) of each golden training."""
    for strategy in _STRATEGIES:
        for run in conformance_golden.runs("fully_shard_training"):
            yield f"{run['optimizer']}-{run['world_size']}, {strategy}", run, strategy
    for number, run in enumerate(conformance_golden.runs("training_variants")):
        yield f"{run['topic']} {number}: {run['api']}, {run['strategy']}", run, run["strategy"]


def works(folder):
    """Of all cases and golden trainings. folder: every rank's, for checkpoints."""
    for case in conformance_cases.cases():
        yield conformance_ranks.Work(name_of(case), case.ranks, functools.partial(
            conformance_trainers.train, case, folder=folder))
    for name, run, strategy in golden_runs():
        yield conformance_ranks.Work(name, run["world_size"], functools.partial(
            conformance_golden.train, run, strategy))
        if "api" in run:
            yield conformance_ranks.Work(f"{name}, there", run["world_size"], functools.partial(
                conformance_golden.train_as_there, run))


def setUpModule():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder = tempfile.TemporaryDirectory(prefix="tessera-test-")
    unittest.addModuleCleanup(folder.cleanup)
    top, deadline = pathlib.Path(folder.name), time.monotonic() + _SECONDS
    (top / "checkpoints").mkdir()
    everything = list(works(top / "checkpoints"))
    one, two = one_worker(top), two_workers(top)
    # In this order: the larger families load what the smaller ones save.
    for ranks in (1, 2, 3, 4):
        _results.update(conformance_ranks.run_family(
            [work for work in everything if work.ranks == ranks],
            two if ranks == 4 else one * ranks, top / f"ranks-{ranks}", deadline))


def one_worker(top):
    """Addresses of one that has a place for three ranks of two jobs."""
    folder = top / "one"
    folder.mkdir()
    cluster = _cluster.Cluster(folder, 6)
    unittest.addModuleCleanup(cluster.stop)
    return [cluster.addresses()]


def two_workers(top):
    """Addresses of each of four ranks, two of them on a worker: a hybrid strategy's group."""
    (top / "first").mkdir()
    (top / "second").mkdir()
    first, second = Daemons(top / "first"), Daemons(top / "second")
    unittest.addModuleCleanup(first.stop)
    unittest.addModuleCleanup(second.stop)
    listen = f"unix:{first.folder}/coordinator.sock"
    first.start_coordinator(first.folder / "coordinator.sock", "--listen", listen)
    first.start_worker(listen, "first", 2, "--data-host", "127.0.0.1")
    second.start_worker(listen, "second", 2, "--data-host", "127.0.0.1")
    return [{"TESSERA_COORDINATOR": listen, "TESSERA_WORKER": worker.worker_address}
            for worker in (first, first, second, second)]


class Case(unittest.TestCase):
    def results_of(self, name):
        """By rank; fails with what went wrong."""
        found = _results[name]
        wrong = [f"rank {rank}: {of_rank}" for rank, of_rank in enumerate(found)
                 if isinstance(of_rank, str)]
        if wrong:
            self.fail("\n".join(wrong))
        return found

    def assert_close(self, actual, expected, tolerance, what):
        """Numbers, tensors, and lists and dicts of them. tolerance: absolute; 0: to the bit."""
        if isinstance(expected, dict):
            self.assertEqual(set(actual), set(expected), what)
            for key, value in expected.items():
                self.assert_close(actual[key], value, tolerance, f"{what}, {key}")
        elif isinstance(expected, list):
            self.assertEqual(len(actual), len(expected), what)
            self.assert_close(torch.tensor(actual, dtype=torch.float64),
                              torch.tensor(expected, dtype=torch.float64), tolerance, what)
        else:
            torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance, equal_nan=True,
                                       msg=lambda text: f"{what}: {text}")


class TrainingTest(Case):
    def check_topic(self, topic, num_cases):
        cases = [case for case in conformance_cases.cases() if case.topic == topic]
        self.assertEqual(len(cases), num_cases)
        for case in cases:
            with self.subTest(name_of(case)):
                self.check(case)

    def check(self, case):
        found = self.results_of(name_of(case))
        for rank, of_rank in enumerate(found):
            ours, references = of_rank["tessera"], {"plain": found[0]["plain"]}
            if case.fsdp2:
                references["fsdp2"] = of_rank["fsdp2"]
            for name, reference in references.items():
                self.check_result(case, ours, reference, rank,
                                  0.0 if name in case.exact_to else case.tolerance,
                                  f"rank {rank}, compared with {name}")
            self.assert_close(ours["parameters"], found[0]["tessera"]["parameters"], 0.0,
                              f"rank {rank}, compared with rank 0")
            if "moved" in ours:
                given, taken = ours["moved"]
                self.assert_close(taken, given, 0.0, f"rank {rank}, what one gave the other")

    def check_result(self, case, ours, reference, rank, tolerance, what):
        losses = ours["losses"][rank]
        self.assertEqual(len(losses), case.steps // 2 if case.loads or len(case.legs) > 1
                         else case.steps)
        self.assert_close(losses, reference["losses"][rank][-len(losses):], tolerance,
                          f"{what}: losses")
        self.assert_close(ours["evaluated"][rank], reference["evaluated"][rank], tolerance,
                          f"{what}: losses in evaluation")
        # A norm is a sum over all elements, in another order, in fp32.
        for mine, theirs in zip(ours["norms"], reference["norms"], strict=True):
            self.assertAlmostEqual(mine / theirs, 1.0, delta=1e-6, msg=f"{what}: norms")
        self.assertEqual(ours["rates"], reference["rates"], what)
        self.assertEqual(ours["scale"], reference["scale"], what)
        self.assertEqual(list(ours["parameters"]), list(reference["parameters"]), what)
        self.assert_close(ours["parameters"], reference["parameters"], tolerance, what)
        self.assert_close(ours["optimizer"], reference["optimizer"], tolerance, what)

    def test_each_strategy_trains_as_there(self):
        self.check_topic("strategies", 5)

    def test_sizes_that_ranks_do_not_divide(self):
        self.check_topic("sizes", 10)

    def test_low_precision_and_scaled_losses(self):
        self.check_topic("precision", 13)

    def test_gradients_are_accumulated_whether_reduced_or_not(self):
        self.check_topic("accumulation", 9)

    def test_gradients_are_clipped_by_every_norm(self):
        self.check_topic("clipping", 6)

    def test_frozen_unused_and_tied_parameters(self):
        self.check_topic("parameters", 12)

    def test_activation_checkpointing(self):
        self.check_topic("recomputation", 4)

    def test_optimizers_with_groups_and_schedules(self):
        self.check_topic("optimizers", 12)

    def test_states_go_from_each_to_each_and_training_goes_on(self):
        self.check_topic("states", 32)

    def test_torchs_checkpoints_of_model_and_optimizer_go_both_ways_to_any_number_of_ranks(self):
        self.check_topic("dcp", 44)


class GoldenTest(Case):
    """What PyTorch's FSDP once said, with the tolerances of the C++ suite: on another processor,
    and with another libtorch, the last bits are others."""

    def check_runs(self, topics, num_runs):
        runs = [(name, run) for name, run, _ in golden_runs() if run.get("topic") in topics]
        self.assertEqual(len(runs), num_runs)
        for name, run in runs:
            with self.subTest(name):
                self.check(name, run)
                if "api" in run:
                    self.check(f"{name}, there", run)

    def check(self, name, run):
        of_losses, of_parameters = conformance_golden.tolerances(run)
        found = self.results_of(name)
        self.assertEqual(len(found), run["world_size"])
        for rank, of_rank in enumerate(found):
            self.assert_close(of_rank["losses"], run["losses"][rank], of_losses, f"rank {rank}")
            self.assert_close(of_rank["norms"], run["norms"], of_losses, f"rank {rank}")
            self.assert_close(of_rank["parameters"], run["parameters"], of_parameters,
                              f"rank {rank}")

    def test_losses_and_parameters_are_those_of_fully_shard(self):
        self.check_runs([None], 4 * len(_STRATEGIES))

    def test_every_strategy_trains_as_that_of_fsdp1_and_fsdp2(self):
        self.check_runs(["strategies"], 9)

    def test_low_precision_clipping_and_accumulation(self):
        self.check_runs(["precision", "clipping", "accumulation"], 18)


if __name__ == "__main__":
    unittest.main()
