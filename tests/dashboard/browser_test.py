"""`tessera dashboard` in Debian's chromium, beside a coordinator, two workers and three trainers.

$DASHBOARD_SCREENSHOT: a file for a picture of a job's page.
$DASHBOARD_SECONDS: how soon the page has to show that a process was killed; without it the time is
only printed, since machines that test are busy.
"""

import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import run

try:
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    MISSING = None if shutil.which("chromium") and shutil.which("chromedriver") else \
        "chromium or chromium-driver"
except ImportError:
    MISSING = "python3-selenium"

WAIT_SECONDS = 60
RANKS = 3
STEPS = 1_000_000  # More than any test takes.
HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"

_prctl = ctypes.CDLL(None).prctl


def eventually(what, condition, seconds=WAIT_SECONDS):
    """What `condition` returns once it is true. Polls: another process makes it so."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.02)


def trained_with(*flags):
    """The trainers of this test get these flags too."""
    def mark(test):
        test.trainer_flags = flags
        return test
    return mark


class Cluster:
    """Real processes in a folder of their own."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="tessera-page-")
        self.folder = pathlib.Path(self._folder.name)
        self.processes = {}
        self.port = 0
        self.trainer_flags = ()
        self.hold_file, self.fail_file = self.folder / "hold", self.folder / "fail"

    def start(self, name, *command, **kwargs):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stderr=log,
                preexec_fn=lambda: _prctl(1, signal.SIGKILL), **{"stdout": log, **kwargs})
        return self.processes[name]

    def start_coordinator(self, *flags):
        ready = self.folder / "port"
        ready.unlink(missing_ok=True)
        self.start("coordinator", "coordinator/tessera-coordinator",
                   f"--listen=127.0.0.1:{self.port}", f"--port-file={ready}",
                   f"--journal={self.folder}/journal", *flags)
        self.port = int(eventually("the coordinator", lambda: ready.exists() and ready.read_text()))

    def sockets(self, worker):
        return self.folder / worker

    def start_worker(self, worker, devices):
        self.sockets(worker).mkdir(mode=0o700, exist_ok=True)
        self.start(worker, "worker/tessera-worker", f"--coordinator={self.coordinator}",
                   f"--worker-id={worker}", f"--devices={devices}", "--data-host=127.0.0.1",
                   f"--socket-dir={self.sockets(worker)}", "--keep-memory=0",
                   "--executor-binary=worker/tessera-executor")

    @property
    def coordinator(self):
        return f"127.0.0.1:{self.port}"

    def start_trainer(self, rank, hold=False):
        worker = "node-a" if rank < 2 else "node-b"
        self.start(f"rank{rank}", "tests/dashboard/reporting_trainer",
                   f"--coordinator={self.coordinator}",
                   f"--worker=unix:{self.sockets(worker)}/worker.sock", "--job=gpt",
                   f"--rank={rank}", f"--world-size={RANKS}", f"--steps={STEPS}",
                   *self.trainer_flags,
                   *([f"--hold-file={self.hold_file}", f"--fail-file={self.fail_file}"]
                     if hold else []))

    def start_dashboard(self, *flags):
        process = self.start("dashboard", "client/cli/tessera", "dashboard",
                             f"--coordinator={self.coordinator}", *flags,
                             stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        return line.split(" at ")[1].strip()

    def start_all(self):
        self.start_coordinator()
        self.start_worker("node-a", 2)
        self.start_worker("node-b", 1)
        for worker in ("node-a", "node-b"):
            eventually(worker, lambda log=self.folder / f"{worker}.log":
                       "connected to coordinator" in log.read_text())
        for rank in range(RANKS):
            self.start_trainer(rank, hold=rank == 1)
        return self.start_dashboard("--listen=127.0.0.1:0", f"--worker={self.sockets('node-a')}",
                                    f"--worker=unix:{self.sockets('node-b')}/worker.sock")

    def tessera(self, *args):
        return subprocess.run(["client/cli/tessera", *args, f"--coordinator={self.coordinator}"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                              check=False)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self):
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
            if process.stdout:
                process.stdout.close()
        self._folder.cleanup()

    def logs(self):
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
                         for path in sorted(self.folder.glob("*.log")))


def open_browser(folder, preferences=None):
    """Everything that the browser reads and writes of its user is below `folder`."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--hide-scrollbars", "--window-size=1280,1120", f"--user-data-dir={folder}/profile"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", preferences or {})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(shutil.which("chromedriver"), env={**os.environ, "HOME": str(folder)})
    browser = webdriver.Chrome(service=service, options=options)
    browser.set_page_load_timeout(WAIT_SECONDS)
    return browser


@unittest.skipIf(MISSING, f"needs {MISSING}; tools/setup --with-operations installs it")
class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.profile = tempfile.TemporaryDirectory(prefix="tessera-browser-")
        cls.browser = open_browser(cls.profile.name)

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        cls.profile.cleanup()

    def setUp(self):
        self.cluster = Cluster()
        test = getattr(self, self._testMethodName)
        self.cluster.trainer_flags = getattr(test, "trainer_flags", ())
        self.addCleanup(self.cluster.stop)
        self.url = self.cluster.start_all()
        self.browser.get("about:blank")
        self.browser.get_log("browser")

    def tearDown(self):
        result = self._outcome.result  # Has what failed so far; unittest has no other way to tell.
        if any(test is self for test, _ in result.failures + result.errors):
            print(self.cluster.logs(), file=sys.stderr)

    def show(self, address):
        self.browser.get(self.url + address)

    def show_job(self):
        """Once there is one: a page of an unknown job is told so by errors."""
        self.show("#/")
        self.await_training()
        self.show("#/job/gpt")
        self.await_text("waits for its trainer")

    def text(self, selector="body"):
        """What a person reads there; empty: there is no such element."""
        return self.browser.execute_script(
            "const node = document.querySelector(arguments[0]); return node ? node.innerText : ''",
            selector)

    def await_text(self, wanted, selector="body", seconds=WAIT_SECONDS):
        try:
            eventually(wanted, lambda: wanted in self.text(selector), seconds)
        except AssertionError as error:
            raise AssertionError(f"{error} in {selector}; there is:\n{self.text()}") from None

    def count(self, selector):
        return len(self.browser.find_elements(By.CSS_SELECTOR, selector))

    def complaints(self, unless=()):
        return [entry["message"] for entry in self.browser.get_log("browser")
                if not any(known in entry["message"] for known in unless)]

    def await_training(self):
        self.await_text("RUNNING", "tr[data-job=gpt]")
        self.await_text(f"{RANKS} of {RANKS}", "tr[data-job=gpt]")
        eventually("a line of losses", lambda: self.count("tr[data-job=gpt] polyline"))

    def shown_after(self, what, condition):
        """Prints how long after now the page shows it."""
        begun = time.monotonic()
        eventually(what, condition)
        took = time.monotonic() - begun
        print(f"the page showed {what} after {took:.2f} s")
        if "DASHBOARD_SECONDS" in os.environ:
            self.assertLess(took, float(os.environ["DASHBOARD_SECONDS"]), what)

    def test_every_view_shows_a_cluster_that_trains(self):
        self.show("#/")
        self.await_training()
        self.await_text("live", "tr[data-worker=node-b] .state")
        self.assertIn("gpt: 0, 1", self.text("tr[data-worker=node-a]"))

        saved = self.cluster.tessera("save", "--job", "gpt", "--to",
                                     str(self.cluster.folder / "checkpoint"))
        self.assertEqual(saved.returncode, 0, saved.stderr)
        self.show("#/job/gpt")
        self.await_text("kept")
        self.assertIn(str(self.cluster.folder / "checkpoint"), self.text())
        self.assertEqual(self.count("tr[data-rank]"), RANKS)
        for name in ("loss", "bytes", "gradient norm", "steps per second"):
            eventually(f"a line of {name}",
                       lambda name=name: self.count(f"figure[data-chart='{name}'] polyline"))
        eventually("the part of the time that a trainer computes", lambda: self.count("tr[data-rank='0'] meter"))
        self.picture()
        self.await_text("FULL_SHARD", "tr[data-unit=root]")
        # 49,984 elements of 12 parameters, which begin on 16 bytes, of 3 ranks in fp32.
        for text in ("fp32", "49,984", "65.1 KiB", "130.3 KiB"):
            self.assertIn(text, self.text("tr[data-unit=block1]"))
        self.assertEqual(self.count("tr[data-unit]"), 3)
        self.assertIn("all units", self.text("#all-units"))

        self.browser.find_element(By.CSS_SELECTOR, "tr[data-rank='2'] a").click()
        self.await_text("rank 2", "h1")
        eventually("a time line", lambda: self.count("#timeline rect.op0"))
        self.assertIn("unshard root", self.text())
        link = self.browser.find_element(By.LINK_TEXT, "download for Perfetto")
        trace = self.browser.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "fetch(arguments[0]).then((reply) => reply.json()).then(done)", link.get_attribute("href"))
        self.assertTrue(trace["traceEvents"])

        self.browser.find_element(By.LINK_TEXT, "Cluster").click()
        self.await_text("data host")
        self.assertIn("127.0.0.1", self.text("tr[data-worker=node-b]"))
        self.assertEqual(self.complaints(), [])

    def picture(self):
        path = os.environ.get("DASHBOARD_SCREENSHOT")
        if not path:
            return
        eventually("a minute of training", lambda: "last 1 min" in self.text(), 120)
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.browser.save_screenshot(path)
        self.assertLess(os.path.getsize(path), 200_000)

    def test_colors_follow_the_browser(self):
        self.show("#/")
        self.await_training()
        backs = set()
        for scheme in ("light", "dark"):
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                "features": [{"name": "prefers-color-scheme", "value": scheme}]})
            backs.add(self.browser.execute_script(
                "return getComputedStyle(document.body).backgroundColor"))
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.assertEqual(len(backs), 2, backs)

    def test_a_killed_trainer_and_its_successor_are_shown(self):
        self.show_job()
        self.await_text(f"{RANKS} of {RANKS}", ".facts")
        epoch = self.text("#reason")
        self.cluster.kill("rank2")
        self.shown_after("a killed trainer", lambda: self.text("#reason") != epoch or
                         "no trainer" in self.text("tr[data-rank='2']"))
        self.await_text("no trainer", "tr[data-rank='2']")
        self.await_text("rank 2: no trainer", "#waits")
        self.assertEqual(self.count("tr.missing[data-rank='2']"), 1)
        self.cluster.start_trainer(2)
        self.await_text(f"{RANKS} of {RANKS}", ".facts")
        eventually("that nobody waits", lambda: self.count("tr.missing") == 0)
        self.assertEqual(self.complaints(), [])

    def test_a_killed_worker_is_shown(self):
        self.show("#/")
        self.await_training()
        self.cluster.kill("node-b")
        self.shown_after("a killed worker", lambda:
                         self.text("tr[data-worker=node-b] .state") != "live" or
                         "RUNNING" not in self.text("tr[data-job=gpt]"))
        self.await_text("LOST", "tr[data-worker=node-b]")
        self.await_text("live", "tr[data-worker=node-a] .state")  # It may be late for a moment.
        self.assertEqual(self.complaints(), [])

    def test_a_rank_that_stands_still_is_the_one_that_others_wait_for(self):
        self.show_job()
        self.cluster.hold_file.touch()
        self.await_text("waits for rank 1", "#waits")
        self.await_text("others wait for it", "tr.missing[data-rank='1']")
        for rank in (0, 2):
            self.await_text("waits for rank 1", f"tr.waits[data-rank='{rank}']")
        self.cluster.hold_file.unlink()
        eventually("that nobody waits", lambda: self.count("#waits") == 0)
        self.assertEqual(self.complaints(), [])

    @trained_with("--blocks=60", "--width=8")
    def test_of_many_units_the_largest_are_shown_and_asked_for_once(self):
        self.show("#/")
        self.browser.execute_script("performance.setResourceTimingBufferSize(1e5)")
        self.show_job()
        self.await_text("there are 11 more", "#more-units")
        self.assertEqual(self.count("tr[data-unit]"), 50)
        self.assertIn("all 61 units", self.text("#all-units"))
        self.assertEqual(self.count("tr[data-unit=root] + tr[data-unit=block0]"), 1)
        self.assertEqual(self.count("tr[data-unit=block48]"), 1)
        asked = self.asked("api/jobs")
        eventually("more polls", lambda: self.asked("api/jobs") > asked + 2)
        self.assertEqual(self.asked("api/memory"), 1)
        self.assertEqual(self.complaints(), [])

    def asked(self, path):
        """How often this page has asked for it."""
        return self.browser.execute_script(
            "return performance.getEntriesByType('resource')"
            ".filter((each) => each.name.includes(arguments[0])).length", path)

    @trained_with(f"--root-unit={HOSTILE}")
    def test_text_of_trainers_and_clients_is_text(self):
        self.show_job()
        saved = self.cluster.tessera("save", "--job", "gpt", "--to",
                                     str(self.cluster.folder / HOSTILE))
        self.await_text(HOSTILE)
        eventually("a unit's name", lambda: HOSTILE in self.browser.execute_script(
            "return [...document.querySelectorAll('tr[data-unit]')].map((row) => row.dataset.unit)"))
        self.assertEqual(saved.returncode == 0, "kept" in self.text(), saved.stderr)
        self.cluster.fail_file.write_text(HOSTILE)
        self.await_text(f"rank 1: {HOSTILE}")
        self.show("#/")
        self.await_text(f"rank 1: {HOSTILE}")
        self.assertEqual(self.count("main script, main img"), 0)
        self.assertEqual(self.browser.title, "Tessera")
        self.show("#/job/" + HOSTILE.replace("/", "%2F"))
        self.await_text("a job's id")
        self.assertEqual(self.count("main script, main img"), 0)
        self.assertEqual(self.browser.title, "Tessera")
        self.assertEqual(self.complaints(unless=["api/job?id="]), [])

    def test_what_was_known_stays_while_the_coordinator_is_away(self):
        self.show("#/")
        self.await_training()
        self.cluster.kill("coordinator")
        self.await_text("does not answer", "#trouble")
        self.assertIn(self.cluster.coordinator, self.text("#trouble"))
        self.assertIn("RUNNING", self.text("tr[data-job=gpt]"))
        self.assertEqual(self.count("body.stale"), 1)
        self.cluster.start_coordinator()
        eventually("an answer", lambda: self.count("body.stale") == 0)
        self.assertEqual(self.text("#trouble"), "")
        self.await_training()
        self.assertEqual(self.complaints(unless=["503 (Service Unavailable)"]), [])

    def test_a_dashboard_that_is_gone_is_said_so(self):
        self.show("#/")
        self.await_training()
        self.cluster.kill("dashboard")
        self.await_text("the dashboard's own process does not answer", "#trouble")
        self.assertIn("RUNNING", self.text("tr[data-job=gpt]"))


@unittest.skipIf(MISSING, f"needs {MISSING}; tools/setup --with-operations installs it")
@unittest.skipUnless(shutil.which("certutil") and shutil.which("pk12util"),
                     "needs libnss3-tools; tools/setup --with-operations installs it")
class MutualTlsTest(unittest.TestCase):
    """At an address that other nodes reach: with `tessera certs make`, as the guide says."""

    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.stop)
        self.folder = self.cluster.folder
        self.run_tool("client/cli/tessera", "certs", "make", self.folder / "certs",
                      "--coordinator", "127.0.0.1", "--reader", "alice")
        files = [f"--tls-{kind}={self.folder}/certs/{name}" for kind, name in (
            ("cert", "coordinator.pem"), ("key", "coordinator.key"), ("ca", "ca.pem"))]
        self.cluster.start_coordinator(*files)
        url = self.cluster.start_dashboard("--listen=0.0.0.0:0", *files)
        self.url = url.replace("//0.0.0.0:", "//127.0.0.1:")

    def run_tool(self, *command):
        done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
        self.assertEqual(done.returncode, 0, f"{command[0]}: {done.stdout}{done.stderr}")

    def page_of_browser(self, name, has_certificate):
        """What a browser shows that trusts the CA, in a home of its own."""
        home = self.folder / name
        database = f"sql:{home}/.pki/nssdb"
        (home / ".pki/nssdb").mkdir(parents=True)
        self.run_tool("certutil", "-d", database, "-N", "--empty-password")
        self.run_tool("certutil", "-d", database, "-A", "-n", "ca", "-t", "C,,",
                      "-i", self.folder / "certs/ca.pem")
        if has_certificate:
            reader, bundle = self.folder / "certs/reader-alice", home / "alice.p12"
            self.run_tool("openssl", "pkcs12", "-export", "-passout", "pass:", "-out", bundle,
                          "-in", f"{reader}.pem", "-inkey", f"{reader}.key")
            self.run_tool("pk12util", "-d", database, "-W", "", "-i", bundle)
        # A person would choose the certificate in a dialog.
        browser = open_browser(home, {"profile": {"content_settings": {"exceptions": {
            "auto_select_certificate": {
                f"{self.url.rstrip('/')},*": {"setting": {"filters": [{}]}}}}}}})
        try:
            browser.get(self.url)
            wanted = "no jobs" if has_certificate else "ERR_"
            read = "return document.body.innerText"
            eventually(f"{wanted} at {self.url}", lambda: wanted in browser.execute_script(read))
            return browser.title, browser.execute_script(read)
        except WebDriverException as error:
            if has_certificate or "net::ERR_" not in str(error):
                raise
            return "", str(error)
        finally:
            browser.quit()

    def test_a_browser_with_a_certificate_of_the_ca_shows_the_page_and_no_other_does(self):
        title, text = self.page_of_browser("alice", has_certificate=True)
        self.assertEqual(title, "Tessera")
        self.assertIn("no workers", text)
        title, text = self.page_of_browser("mallory", has_certificate=False)
        self.assertNotEqual(title, "Tessera")
        self.assertNotIn("no jobs", text)
        self.assertNotIn("ERR_CERT", text)  # It trusts the dashboard, which does not trust it.


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    result = unittest.TextTestRunner(verbosity=2, resultclass=run.Results).run(suite)
    if os.environ.get("XML_OUTPUT_FILE"):
        run.write_xml(os.environ["XML_OUTPUT_FILE"], result.all)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
