"""Prometheus scrapes a cluster that trains: what it shows is there, and is what the programs say."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from run import run_suite

TOP = pathlib.Path(os.getcwd())
FILES = TOP / "deploy/monitoring"
PATIENCE_S = 60


def wait_for(what, look):
    """The first true value of `look()`."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.05)


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as reply:
        return reply.read().decode()


def metric_names(text):
    return set(re.findall(r"^# TYPE (\S+) ", text, re.M))


class Cluster:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.processes = []
        self.coordinator = self.start(
            "coordinator", "coordinator/tessera-coordinator", "--listen=127.0.0.1:0", "--ephemeral",
            f"--port-file={folder}/port", "--http-listen=127.0.0.1:0", "--worker-timeout=2s",
            "--heartbeat-interval=200ms", "--hang-after=1s")
        port_file = self.folder / "port"
        self.address = "127.0.0.1:" + wait_for(
            "the coordinator's port", lambda: port_file.exists() and port_file.read_text().strip())
        (self.folder / "sockets").mkdir(mode=0o700)
        self.worker = self.start(
            "worker", "worker/tessera-worker", f"--coordinator={self.address}", "--worker-id=node-1",
            "--devices=2", f"--socket-dir={folder}/sockets", "--keep-memory=0",
            "--http-listen=127.0.0.1:0")
        self.coordinator_port = self.http_port("coordinator")
        self.worker_port = self.http_port("worker")

    def start(self, name, program, *arguments):
        environment = dict(os.environ, XDG_CONFIG_HOME=str(self.folder), HOME=str(self.folder))
        with open(self.folder / f"{name}.log", "w") as log:
            process = subprocess.Popen([TOP / program, *arguments], stdout=log, stderr=log,
                                       env=environment)
        self.processes.append(process)
        return process

    def http_port(self, name):
        log = self.folder / f"{name}.log"
        found = wait_for(f"the HTTP port of the {name}",
                         lambda: re.search(r"over HTTP at port (\d+)", log.read_text()))
        return int(found.group(1))

    def train(self):
        return [
            self.start(f"trainer{rank}", "tests/fault/toy_trainer",
                       f"--coordinator={self.address}", f"--worker=unix:{self.folder}/sockets/worker.sock",
                       f"--rank={rank}", "--world-size=2", "--steps=1000000", "--report",
                       f"--save={self.folder}/model") for rank in range(2)
        ]

    def committed_step(self):
        found = re.search(r'^tessera_job_committed_step\{job_id="toy"\} (\d+)$',
                          get(self.coordinator_port, "/metrics"), re.M)
        return int(found.group(1)) if found else 0

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


class Prometheus:
    """With the files of deploy/monitoring, but for addresses, and for times that are waited for."""

    def __init__(self, cluster):
        folder = cluster.folder / "prometheus"
        folder.mkdir()
        config = (FILES / "prometheus.yml").read_text()
        config = config.replace("127.0.0.1:7071", f"127.0.0.1:{cluster.coordinator_port}")
        config = config.replace("127.0.0.1:7072", f"127.0.0.1:{cluster.worker_port}")
        (folder / "prometheus.yml").write_text(config.replace("_interval: 15s", "_interval: 200ms"))
        rules = (FILES / "alerts.yml").read_text()
        (folder / "alerts.yml").write_text(re.sub(r"for: \S+", "for: 0s", rules))
        with open(folder / "log", "w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml",
                 f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0"],
                stdout=subprocess.DEVNULL, stderr=log)
        self.port = int(wait_for("Prometheus' port", lambda: re.search(
            r'"Listening on" address=127.0.0.1:(\d+)', (folder / "log").read_text())).group(1))
        wait_for("Prometheus to be ready", self.is_ready)

    def is_ready(self):
        try:
            return get(self.port, "/-/ready")
        except urllib.error.URLError:
            return False

    def query(self, expression):
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            return json.loads(get(self.port, path))["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error

    def firing(self):
        return {alert["metric"]["alertname"] for alert in self.query('ALERTS{alertstate="firing"}')}

    def stop(self):
        self.process.kill()
        self.process.wait()


class MonitoringTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp(prefix="monitoring-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.cluster = Cluster(folder)
        self.addCleanup(self.cluster.stop)

    def metrics_of_training(self):
        self.cluster.train()
        wait_for("some steps", lambda: self.cluster.committed_step() > 50)
        wait_for("a heartbeat", lambda: 'tessera_job_ranks_attached{job_id="toy"} 2\n' in get(
            self.cluster.coordinator_port, "/metrics"))
        return get(self.cluster.coordinator_port, "/metrics"), get(self.cluster.worker_port,
                                                                   "/metrics")

    def test_boards_and_alerts_name_metrics_that_there_are(self):
        there_are = set.union(*map(metric_names, self.metrics_of_training()))
        for file in ["alerts.yml", "grafana.json"]:
            named = set(re.findall(r"tessera_[a-z_]+(?=[\[{ )])", (FILES / file).read_text()))
            named = {re.sub("_bucket$", "", name) for name in named}
            self.assertTrue(named)
            self.assertEqual(named - there_are, set(), file)

    def test_counts_are_those_of_the_training(self):
        coordinator, worker = self.metrics_of_training()
        step = int(re.search(r'tessera_rank_step\{job_id="toy",rank="1"\} (\d+)', worker).group(1))
        self.assertGreater(step, 50)
        steps = re.search(r'tessera_operations_total\{job_id="toy",rank="0",op="step"\} (\d+)', worker)
        # Rank 1 has done `step` - 1. Rank 0 took part in all of these and may be counting the last.
        self.assertGreaterEqual(int(steps.group(1)), step - 2)
        reduced = re.search(
            r'tessera_bytes_total\{job_id="toy",rank="0",op="reduce",via="shm"\} (\d+)', worker)
        self.assertGreater(int(reduced.group(1)), 0)
        reported = re.search(
            r'tessera_training_value\{job_id="toy",rank="0",name="number"\} (\d+)', worker)
        self.assertGreater(int(reported.group(1)), 0)
        self.assertIn('tessera_jobs{state="running"} 1\n', coordinator)
        self.assertIn('tessera_workers{state="present"} 1\n', coordinator)
        self.assertRegex(coordinator, r'tessera_grpc_handled_total\{method="CreateJob",code="OK"\} 2')

    def test_checkpoints_are_counted_with_what_each_rank_wrote(self):
        self.metrics_of_training()

        def counted(rank):
            text = get(self.cluster.worker_port, "/metrics")
            labels = rf'{{job_id="toy",rank="{rank}"}}'
            return [float(re.search(rf"^tessera_checkpoint_{name}{labels} (\S+)$", text, re.M).group(1))
                    for name in ["seconds_count", "seconds_sum", "bytes_total"]]

        self.assertEqual([counted(0), counted(1)], [[0, 0, 0], [0, 0, 0]])
        saved = subprocess.run(
            [TOP / "client/cli/tessera", "save", "--job", "toy", "--to",
             self.cluster.folder / "checkpoint", f"--coordinator={self.cluster.address}"],
            capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(saved.returncode, 0, saved.stderr)
        # The coordinator may hear of the first rank's end before the other rank says its own.
        wait_for("the end on both ranks", lambda: counted(0)[0] == 1 and counted(1)[0] == 1)
        on_disk = sum(file.stat().st_size for file in (self.cluster.folder / "checkpoint").rglob("*"))
        written = [counted(rank)[2] for rank in range(2)]
        self.assertTrue(all(bytes > 0 for bytes in written), written)
        self.assertLess(sum(written), on_disk)  # Headers and the manifest are no rank's.
        self.assertGreater(sum(written), on_disk / 4)

    def test_each_metric_is_in_the_documents_and_no_other(self):
        there_are = set.union(*map(metric_names, self.metrics_of_training()))
        there_are = {name for name in there_are if name.startswith("tessera_")}
        page = (TOP / "docs/operations/monitoring.md").read_text()
        named = set(re.findall(r"`(tessera_[a-z_]+)", page))
        self.assertEqual(there_are - named, set())
        self.assertEqual(named - there_are, set(), "they are in the page and not shown")

    def test_counts_outlive_executors(self):
        trainers = self.cluster.train()
        wait_for("some steps", lambda: self.cluster.committed_step() > 50)
        trainers[1].kill()
        trainers[1].wait()

        def metrics():
            return get(self.cluster.worker_port, "/metrics")

        wait_for("the death",
                 lambda: 'tessera_trainer_deaths_total{job_id="toy",rank="1"} 1\n' in metrics())
        steps = re.search(r'tessera_operations_total\{job_id="toy",rank="1",op="step"\} (\d+)', metrics())
        self.assertGreater(int(steps.group(1)), 50)

    def test_health_is_of_the_process_and_readiness_of_what_it_needs(self):
        for port in [self.cluster.coordinator_port, self.cluster.worker_port]:
            self.assertEqual(get(port, "/healthz"), "ok\n")
        wait_for("the worker to be ready", lambda: self.is_ready())
        self.cluster.coordinator.kill()
        self.cluster.coordinator.wait()
        wait_for("the worker not to be ready", lambda: not self.is_ready())
        self.assertEqual(get(self.cluster.worker_port, "/healthz"), "ok\n")

    def is_ready(self):
        try:
            return get(self.cluster.worker_port, "/readyz") == "ok\n"
        except urllib.error.HTTPError as error:
            self.assertEqual((error.code, error.read()), (503, b"no coordinator\n"))
            return False

    @unittest.skipUnless(shutil.which("promtool"), "no promtool (tools/setup --with-operations)")
    def test_promtool_finds_no_fault(self):
        for text in self.metrics_of_training():
            check = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                                   capture_output=True)
            self.assertEqual((check.returncode, check.stdout, check.stderr), (0, "", ""))
        subprocess.run(["promtool", "check", "config", FILES / "prometheus.yml"], check=True,
                       capture_output=True)

    @unittest.skipUnless(shutil.which("prometheus"), "no prometheus (tools/setup --with-operations)")
    def test_prometheus_scrapes_and_tells_of_a_missing_rank_and_of_a_lost_worker(self):
        trainers = self.cluster.train()
        prometheus = Prometheus(self.cluster)
        self.addCleanup(prometheus.stop)
        wait_for("a rate of steps",
                 lambda: [float(found["value"][1]) for found in prometheus.query(
                     'rate(tessera_job_committed_step{job_id="toy"}[5s])')
                          if float(found["value"][1]) > 0])
        # Without the time for which it must be so, a job that just began seems to stand still.
        self.assertEqual(prometheus.firing() - {"TesseraJobStandsStill"}, set())
        trainers[1].send_signal(signal.SIGSTOP)
        wait_for("the alert of the missing rank",
                 lambda: "TesseraRankMissing" in prometheus.firing())
        self.assertEqual([found["metric"]["rank"] for found in prometheus.query(
            "tessera_rank_missing == 1")], ["1"])
        trainers[1].send_signal(signal.SIGCONT)
        wait_for("the end of that alert",
                 lambda: "TesseraRankMissing" not in prometheus.firing())
        os.kill(self.cluster.worker.pid, signal.SIGSTOP)
        wait_for("the alert of the lost worker", lambda: "TesseraWorkerLost" in prometheus.firing())


if __name__ == "__main__":
    sys.exit(run_suite(unittest.defaultTestLoader.loadTestsFromTestCase(MonitoringTest)))
