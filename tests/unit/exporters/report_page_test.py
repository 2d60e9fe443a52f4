#!/usr/bin/env python3
"""The page of lockstep-report in a real browser: on a phone, in light and dark, and its numbers. Exits 77 where there is
no Chromium.

  [SCREENSHOTS=FOLDER] report_page_test.py build/release/bin
"""

import base64
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from browser import Browser, find_browser

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
SCREENSHOTS = os.environ.get("SCREENSHOTS")

# Texts whose contrast with their background is too low: at least 4.5, as WCAG 2.1 AA has it.
LOW_CONTRAST = """(() => {
  const parse = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(e).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  let seen = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || ["title", "style"].includes(element.tagName.toLowerCase())) continue;
    const style = getComputedStyle(element);
    const colour = parse(element.namespaceURI.endsWith("svg") ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(colour), light(background(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    ++seen;
    if (contrast < 4.5) found.push(`${texts.currentNode.data}: ${contrast.toFixed(2)}`);
  }
  return { seen, found };
})()"""

# Parts that are wider than the screen and cannot be scrolled into view.
OVERFLOW = """(() => {
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (element.parentElement.closest(".scroll")) continue;
    if (element.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5) found.push(element.outerHTML.slice(0, 80));
  }
  const { scrollWidth, clientWidth } = document.documentElement;  // without a vertical scrollbar
  return { inner: window.innerWidth, over: scrollWidth - clientWidth, found };
})()"""

PHASES = ("data_wait", "host_to_device", "forward", "backward", "comm_exposed", "optimizer", "checkpoint", "other")

TABLE = """[...document.querySelectorAll("#numbers tr")].map((row) => [...row.children].map((cell) => cell.textContent))"""


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        folder = pathlib.Path(cls.temporary.name)
        # The longest names that a record can have.
        subprocess.run([BIN / "simulated_job", folder / "records", "--ranks", "8", "--steps", "60", "--step-ms", "4", "--slow", "5",
                        "--data-wait", "0.3", "--program", "a_program_with_a_name_that_is_as_long_as_a_record_can_hold_it_63b"],
                       check=True)
        (folder / "records/rank-000007.record").write_bytes(b"half")
        cls.json = json.loads(subprocess.run([BIN / "lockstep-report", folder / "records", "--json", "--out", folder / "report.html"],
                                             check=True, capture_output=True).stdout)
        cls.url = (folder / "report.html").as_uri()
        cls.browser = Browser(find_browser(), folder / "profile")
        cls.addClassCleanup(cls.browser.close)
        for domain in ("Page", "Runtime", "Log", "Network"):
            cls.browser.call(f"{domain}.enable")

    def show(self, width, height, scheme):
        self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.browser.open(self.url)
        if SCREENSHOTS:
            picture = self.browser.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            (pathlib.Path(SCREENSHOTS) / f"report-{width}-{scheme}.png").write_bytes(base64.b64decode(picture))

    def test_nothing_is_wider_than_a_phone(self):
        for width in (360, 1280):
            self.show(width, 740, "light")
            seen = self.browser.evaluate(OVERFLOW)
            self.assertEqual((seen["inner"], seen["over"], seen["found"]), (width, 0, []))
        self.show(360, 740, "light")
        # The pictures keep a readable size, and can be scrolled.
        scrolls = self.browser.evaluate("[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth > e.clientWidth)")
        self.assertGreaterEqual(scrolls.count(True), 3)
        # Headers break between words only.
        tallest = self.browser.evaluate("Math.max(...[...document.querySelectorAll('th')].map(e => e.offsetHeight))")
        self.assertLess(tallest, 150)
        # A phone has no pointer to hover with: it says how to see the rest, and the rank stays beside its numbers.
        self.assertIn("swipe them sideways", self.browser.evaluate("document.body.innerText"))
        rank_left = """(() => { const table = document.getElementById("numbers");
            table.parentElement.scrollLeft = 200; return table.rows[1].cells[0].getBoundingClientRect().left -
            table.parentElement.getBoundingClientRect().left; })()"""
        self.assertAlmostEqual(self.browser.evaluate(rank_left), 0, delta=1)
        self.show(1280, 740, "light")
        self.assertNotIn("swipe them sideways", self.browser.evaluate("document.body.innerText"))

    def test_texts_can_be_read_in_light_and_dark(self):
        backgrounds = set()
        for scheme in ("light", "dark"):
            for width in (360, 1280):
                self.show(width, 740, scheme)
                seen = self.browser.evaluate(LOW_CONTRAST)
                self.assertEqual(seen["found"], [], scheme)
                self.assertGreater(seen["seen"], 100)
            backgrounds.add(self.browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(len(backgrounds), 2, "the dark page is not dark")

    def test_the_browser_reports_no_error_and_asks_for_no_other_file(self):
        self.show(1280, 740, "light")
        self.browser.evaluate("0")  # the page's events come before this answer
        errors = [event for event in self.browser.events
                  if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")]
        self.assertEqual(errors, [])
        asked = [event["params"]["request"]["url"] for event in self.browser.events
                 if event["method"] == "Network.requestWillBeSent"]
        self.assertEqual(asked, [self.url])

    def test_its_numbers_are_those_of_the_json(self):
        self.show(1280, 740, "light")
        head, *rows = self.browser.evaluate(TABLE)
        self.assertEqual(len(rows), 7)
        for cells, rank in zip(rows, self.json["ranks"]):
            row = dict(zip(head, cells))
            self.assertEqual((row["rank"], row["node"], row["steps"]), (str(rank["rank"]), rank["node"], str(rank["steps"])))
            # The phases have the order of the record, which the JSON sorts by name.
            phases = [rank["phases_ms"][name] for name in PHASES]
            for name, cell, value in zip(head[3:], cells[3:], [rank["step_ms"], *phases, rank["comm_wait_ms"]]):
                self.assertAlmostEqual(float(cell), value, delta=0.005001, msg=name)
            speed = row["tokens per second"]
            self.assertAlmostEqual(float(speed.rstrip(" kMG")), rank["tokens_per_second"] / 1000 ** " kMG".index(speed[-1]), delta=0.5)
        text = self.browser.evaluate("document.body.textContent")
        self.assertRegex(self.json["started"], r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$")
        for known in (self.json["started"], f"user {self.json['user']}", f"lockstep {self.json['version']}"):
            self.assertIn(known, text)
        self.assertRegex(text, r"· lasted [\d.]+ m?s ·")
        self.assertNotIn("_", "".join(head))
        for line in [*self.json["advice"], *self.json["notes"], self.json["program"]]:
            self.assertIn(line, text)
        # Each bar of a rank is as long as its share of the longest step.
        widths = self.browser.evaluate("""[...document.querySelectorAll('svg')[0].querySelectorAll('rect[fill] title')]
            .map(t => [t.textContent, t.parentElement.getBoundingClientRect().width])""")
        longest = max(rank["step_ms"] for rank in self.json["ranks"])
        per_ms = max(sum(width for title, width in widths if title.startswith(f"rank {rank['rank']} ")) / rank["step_ms"]
                     for rank in self.json["ranks"])
        for rank in self.json["ranks"]:
            for title, width in widths:
                if title.startswith(f"rank {rank['rank']} ") and ": forward " in title:
                    self.assertAlmostEqual(width, rank["phases_ms"]["forward"] * per_ms, delta=0.01 * longest * per_ms)


if __name__ == "__main__":
    if find_browser() is None:
        print("report_page_test.py: skipped: there is no Chromium; install chromium-headless-shell")
        sys.exit(77)
    unittest.main()
