"""Counts test cases from Bazel's build events and the test.xml files that they name.

Prints the failed cases, the skipped ones with their number, and as the last line
"N passed, N failed". Exits non-zero when a case failed, when no test ran, or when Bazel failed.
A target that ended badly without a failed case in its XML (a crash, a time-out, a target that did
not build) counts as one failure. Counts are those of this run: XML left behind by targets that are
gone, or by another configuration, is not read.
"""

import argparse
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def read_events(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    yield json.loads(line)
                except ValueError:
                    return  # The last line of a killed run.
    except FileNotFoundError:
        return


def collect(events):
    """Returns {label: {"status": str, "xml": {(run, shard): path}}}; the last attempt wins."""
    tests = {}
    for event in events:
        event_id = event.get("id", {})
        if "testResult" in event and "testResult" in event_id:
            key = event_id["testResult"]
            entry = tests.setdefault(key["label"], {"status": "NO_STATUS", "xml": {}})
            for output in event["testResult"].get("testActionOutput", []):
                if output.get("name") == "test.xml" and output.get("uri", "").startswith("file:"):
                    path = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
                    entry["xml"][(key.get("run", 1), key.get("shard", 1))] = path
        elif "testSummary" in event_id:
            label = event_id["testSummary"]["label"]
            entry = tests.setdefault(label, {"status": "NO_STATUS", "xml": {}})
            # An aborted summary (the target did not build) has no "testSummary" in the event.
            entry["status"] = event.get("testSummary", {}).get("overallStatus", "NO_STATUS")
    return tests


def count_xml(path):
    """Returns (passed, names of failed, skipped) of one test.xml."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return 0, [], 0
    passed, failed, skipped = 0, [], 0
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(".".join(filter(None, [case.get("classname"), case.get("name")])))
        elif case.find("skipped") is not None or case.get("result") == "skipped":
            skipped += 1
        elif case.get("status") != "notrun":
            passed += 1
    return passed, failed, skipped


def count(tests):
    passed, failed, skipped = 0, [], 0
    for label, entry in sorted(tests.items()):
        cases_failed = []
        for path in entry["xml"].values():
            ok, bad, left_out = count_xml(path)
            passed += ok
            skipped += left_out
            cases_failed += bad
        failed += [f"{label} {name}" for name in cases_failed]
        if entry["status"] not in ("PASSED", "FLAKY") and not cases_failed:
            failed.append(f"{label} ({entry['status'].lower().replace('_', ' ')})")
    return passed, failed, skipped


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", action="append", default=[], metavar="NAME:passed|failed",
                        help="a check run beside Bazel that counts as one case")
    parser.add_argument("--bazel-status", type=int, default=0)
    parser.add_argument("events")
    args = parser.parse_args(argv)

    passed, failed, skipped = count(collect(read_events(args.events)))
    ran = passed + len(failed)
    for extra in args.extra:
        name, result = extra.rsplit(":", 1)
        if result == "passed":
            passed += 1
        else:
            failed.append(name)
    # Bazel exits 4 when the targets hold no test at all.
    if args.bazel_status not in (0, 4) and not failed:
        failed.append(f"bazel (exit status {args.bazel_status})")
    for name in failed:
        print(f"FAILED {name}")
    if skipped:
        print(f"{skipped} skipped (each says what it lacked)")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
