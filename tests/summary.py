#!/usr/bin/env python3
"""Says what ctest's results (--output-junit) are: the ten slowest tests, the skipped ones, and the numbers of tests.

A test that is in several files counts with its last result.
--json prints one object with their number of passed ones, and the names of the others.
Usage: summary.py [--json] tests.xml [again.xml]
"""
import json
import sys
import xml.etree.ElementTree as ElementTree


def was_skipped(test):
    """Whether the test said so itself: ctest also does not run a test whose program is missing, or whose fixture failed."""
    skipped = test.find("skipped")
    return test.get("status") == "disabled" or (skipped is not None and skipped.get("message", "").startswith("SKIP_"))


def main():
    arguments = sys.argv[1:]
    as_json = "--json" in arguments
    tests = {}
    for file in arguments:
        if file != "--json":
            tests.update({test.get("name"): test for test in ElementTree.parse(file).iter("testcase")})
    passed = [name for name, test in tests.items() if test.get("status") == "run"]
    skipped = sorted(name for name, test in tests.items() if was_skipped(test))
    failed = sorted(set(tests) - set(passed) - set(skipped))
    if as_json:
        print(json.dumps({"passed": len(passed), "failed": failed, "skipped": skipped}))
        return
    print("The slowest tests, in seconds:")
    for test in sorted(tests.values(), key=lambda test: -float(test.get("time")))[:10]:
        print(f"{float(test.get('time')):8.1f}  {test.get('name')}")
    if skipped:
        print("Skipped:")
        for name in skipped:
            print(f"          {name}")
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")


main()
