"""A headless Chromium, driven by the DevTools protocol over a pipe, without further packages.

https://chromedevtools.github.io/devtools-protocol: JSON objects, each ended by a zero byte, on descriptors 3 and 4.
"""

import fcntl
import json
import os
import shutil
import subprocess


def find_browser():
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    def __init__(self, program, profile):
        # Descriptors above 4, so that moving them to 3 and 4 overwrites none of them.
        (theirs_in, mine_out), (mine_in, theirs_out) = ([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in os.pipe()]
                                                        for _ in range(2))
        def move():
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)
        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             f"--user-data-dir={profile}", "about:blank"], preexec_fn=move, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.out, self.input = os.fdopen(mine_out, "wb", buffering=0), os.fdopen(mine_in, "rb")
        self.rest, self.number, self.session = b"", 0, None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def receive(self):
        while b"\0" not in self.rest:
            more = os.read(self.input.fileno(), 1 << 20)
            if not more:
                raise RuntimeError(f"the browser has ended ({self.process.wait()})")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        self.out.write(json.dumps(request).encode() + b"\0")
        while True:
            message = self.receive()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def open(self, url):
        """Loads a page; `events` then has its errors."""
        self.events = []
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.out.close()
        self.input.close()
