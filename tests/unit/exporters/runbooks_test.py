#!/usr/bin/env python3
"""Every alert has a runbook paragraph, and its annotation leads there.

  runbooks_test.py RULES.yml RUNBOOKS.md
"""

import pathlib
import re
import sys

rules, runbooks = (pathlib.Path(path).read_text() for path in sys.argv[1:3])
sections = {title: text for title, text in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", runbooks, re.M | re.S)}
alerts = re.split(r"^      - alert: ", rules, flags=re.M)[1:]
problems = []
for alert in alerts:
    name = re.match(r"\w+", alert)[0]
    if f'runbook_url: "file:///usr/share/doc/lockstep/docs/admins/runbooks.md#{name.lower()}"' not in alert:
        problems.append(f"{name} has no annotation `runbook_url`, or that of another alert")
    if len(sections.pop(name, "").split()) < 30:
        problems.append(f"{name} has no paragraph in {sys.argv[2]}")
problems += [f"{title} in {sys.argv[2]} is not an alert" for title in sections]
print("\n".join(problems))
sys.exit(1 if problems or len(alerts) < 7 else 0)
