#!/usr/bin/env python3
"""lockstep-exporter as Prometheus, node_exporter and hostile clients see it.

  exporter_server_test.py build/release/bin
"""

import base64
import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

BIN = pathlib.Path(sys.argv.pop(1)).resolve()


def status_and_text(request, **options):
    try:
        with urllib.request.urlopen(request, timeout=20, **options) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def bcrypt(password, rounds=2**10):
    library = ctypes.CDLL("libcrypt.so.1")  # Python 3.13 has no module crypt
    library.crypt_gensalt.restype = library.crypt.restype = ctypes.c_char_p
    salt = library.crypt_gensalt(b"$2b$", ctypes.c_ulong(rounds.bit_length() - 1), None, 0)
    return library.crypt(password.encode(), salt).decode()


class ExporterServer(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "records").mkdir()

    def command(self, *options):
        return [BIN / "lockstep-exporter", "--records", self.folder / "records", "--node", "n1", *options]

    @contextlib.contextmanager
    def exporter(self, *options, log=None, **environment):
        """Yields the URL of a running exporter; in the end it must end by SIGTERM."""
        listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
        process = subprocess.Popen(self.command(*listen, "--json", *options), stdout=subprocess.PIPE, stderr=log, text=True,
                                   env={**os.environ, **environment})
        try:
            yield json.loads(process.stdout.readline())["url"]
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=20), 0)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def wait_until(self, condition):
        """Waits for the condition; the test fails if it does not hold within 20 s."""
        deadline = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def refused(self, *options, **environment):
        """The one line of a call that fails, with its exit status."""
        done = subprocess.run(self.command(*options), capture_output=True, text=True, timeout=20,
                              env={**os.environ, **environment})
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.returncode, done.stderr

    def test_serves_the_format_that_prometheus_knows(self):
        with self.exporter() as url, urllib.request.urlopen(url) as answer:
            self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
            self.assertIn('lockstep_exporter_ranks{node="n1"} 0\n', answer.read().decode())
            self.assertEqual(status_and_text(url + "/no")[0], 404)
            self.assertEqual(status_and_text(urllib.request.Request(url, data=b"x"))[0], 405)

    def test_listens_on_loopback_unless_told_otherwise(self):
        usage = subprocess.run([BIN / "lockstep-exporter", "--help"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(usage, r"--listen TEXT[ =\[]+127\.0\.0\.1:9753")

    def test_an_address_that_cannot_be_used_is_one_line(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            code, line = self.refused("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        self.assertEqual(code, 1)
        self.assertIn("check that the address belongs to this node and the port is free", line)
        self.assertEqual(self.refused("--listen", "9753")[0], 2)

    def test_values_that_would_be_something_else_are_refused(self):
        for options in (["--web.config.file", ""], ["--cache", ""], ["--textfile", ""], ["--listen", "127.0.0.1:75289"],
                        ["--listen", "127.0.0.1:"]):
            self.assertEqual(self.refused(*options)[0], 2, options)

    def test_a_port_alone_means_all_addresses(self):
        addresses = pathlib.Path("/proc/net/if_inet6")
        with self.exporter("--listen", ":0") as url:
            port = int(re.search(r":(\d+)/", url)[1])
            self.assertEqual(status_and_text(f"http://127.0.0.1:{port}/metrics")[0], 200)
            if addresses.exists() and f"{1:032} " in addresses.read_text():  # the loopback device has ::1
                self.assertEqual(status_and_text(f"http://[::1]:{port}/metrics")[0], 200)

    def certificate(self, name):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", self.folder / f"{name}.key",
                        "-out", self.folder / f"{name}.crt"], check=True, capture_output=True)

    def test_tls(self):
        self.certificate("n1")
        config = self.folder / "web.yml"
        config.write_text("tls_server_config:\n  cert_file: n1.crt\n  key_file: n1.key\n")
        trust = ssl.create_default_context(cafile=self.folder / "n1.crt")
        with self.exporter("--web.config.file", config) as url:
            self.assertTrue(url.startswith("https://"))
            status, page = status_and_text(url, context=trust)
            self.assertEqual((status, "lockstep_exporter_ranks" in page), (200, True))
            with self.assertRaises(OSError):
                status_and_text(url.replace("https", "http"))
            old = ssl.create_default_context(cafile=self.folder / "n1.crt")
            old.set_ciphers("DEFAULT:@SECLEVEL=0")
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with self.assertRaises(OSError):
                status_and_text(url, context=old)
        self.certificate("n2")
        config.write_text("tls_server_config:\n  cert_file: n1.crt\n  key_file: n2.key\n")
        self.assertIn("check that cert_file and key_file", self.refused("--web.config.file", config, "--listen", "127.0.0.1:0")[1])

    def test_a_renewed_certificate_is_used_without_a_restart(self):
        self.certificate("n1")
        config = self.folder / "web.yml"
        config.write_text("tls_server_config:\n  cert_file: n1.crt\n  key_file: n1.key\n")
        log = self.folder / "log"
        with log.open("w") as errors, self.exporter("--web.config.file", config, log=errors) as url:
            old = ssl.create_default_context(cafile=self.folder / "n1.crt")
            self.assertEqual(status_and_text(url, context=old)[0], 200)
            (self.folder / "n1.key").write_text("half a file")
            self.wait_until(lambda: "the one before stays in use" in log.read_text())
            self.assertEqual(status_and_text(url, context=old)[0], 200)
            self.certificate("n2")
            (self.folder / "n2.key").replace(self.folder / "n1.key")
            (self.folder / "n2.crt").replace(self.folder / "n1.crt")
            new = ssl.create_default_context(cafile=self.folder / "n1.crt")
            def is_renewed():
                with contextlib.suppress(OSError):
                    return status_and_text(url, context=new)[0] == 200
            self.wait_until(is_renewed)

    def test_client_certificates(self):
        for name in ("n1", "prometheus", "stranger"):
            self.certificate(name)
        config = self.folder / "web.yml"
        config.write_text("tls_server_config:\n  cert_file: n1.crt\n  key_file: n1.key\n"
                          "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: prometheus.crt\n")
        with self.exporter("--web.config.file", config) as url:
            def as_client(name):
                context = ssl.create_default_context(cafile=self.folder / "n1.crt")
                if name:
                    context.load_cert_chain(self.folder / f"{name}.crt", self.folder / f"{name}.key")
                return status_and_text(url, context=context)[0]
            self.assertEqual(as_client("prometheus"), 200)
            self.assertEqual(as_client(None), 403)
            self.assertEqual(as_client("stranger"), 403)

    def test_a_scrape_that_fails_is_a_500(self):
        (self.folder / "records").rmdir()
        (self.folder / "records").write_text("not a folder")
        with self.exporter() as url:
            status, text = status_and_text(url)
            self.assertEqual(status, 500)
            self.assertIn("cannot open the records folder", text)
            (self.folder / "records").unlink()
            self.assertIn('lockstep_exporter_errors_total{node="n1",what="scrape"} 1\n', status_and_text(url)[1])

    def test_basic_authentication(self):
        config = self.folder / "web.yml"
        config.write_text(f"basic_auth_users:\n  prometheus: {bcrypt('test')}\n")
        with self.exporter("--web.config.file", config) as url:
            def as_user(login):
                request = urllib.request.Request(url)
                request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
                return status_and_text(request)[0]
            # More than --max-requests: clients without a password do not use up Prometheus' requests.
            self.assertEqual({status_and_text(url)[0] for _ in range(40)}, {401})
            self.assertEqual(as_user("prometheus:test"), 200)
            seen = set()  # one password a second is tried, and the right one above was one
            self.wait_until(lambda: seen.add(as_user("prometheus:wrong")) or 401 in seen)
            self.assertEqual(seen, {401, 429})
            self.assertEqual(as_user("prometheus:test"), 200)  # others' guesses do not lock it out
        config.write_text("basic_auth_users:\n  prometheus: test\n")
        self.assertIn("is not a bcrypt hash", self.refused("--web.config.file", config)[1])

    def test_ends_while_a_password_is_hashed(self):
        config = self.folder / "web.yml"
        config.write_text(f"basic_auth_users:\n  prometheus: {bcrypt('test', rounds=2**13)}\n")
        with self.exporter("--web.config.file", config) as url, socket.create_connection(
                ("127.0.0.1", int(re.search(r":(\d+)/", url)[1]))) as client:
            login = base64.b64encode(b"prometheus:wrong")
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: n1\r\nAuthorization: Basic " + login + b"\r\n\r\n")
            # Another client is answered meanwhile.
            self.assertEqual(status_and_text(url)[0], 401)

    def test_clients_that_send_or_read_nothing_hold_nobody_up(self):
        with self.exporter() as url:
            port = int(re.search(r":(\d+)/", url)[1])
            slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
            for number, client in enumerate(slow):
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: n1\r\n" if number % 2 else b"GET /met")
            begin = time.monotonic()
            self.assertEqual(status_and_text(url)[0], 200)
            self.assertLess(time.monotonic() - begin, 5)  # the slow ones may stay for 10 s
            for client in slow:  # until the exporter closes them
                client.settimeout(30)
                client.recv(1000)
                client.close()

    def test_a_user_with_many_connections_and_addresses_keeps_nobody_out(self):
        with self.exporter("--listen", ":0") as url:
            url = re.sub(r"//.*:", "//127.0.0.1:", url)
            port = int(re.search(r":(\d+)/", url)[1])
            with contextlib.ExitStack() as hostile:
                for number in range(200):
                    hostile.enter_context(socket.create_connection(("127.0.0.1", port),
                                                                   source_address=(f"127.0.{number}.1", 0)))
                begin = time.monotonic()
                for _ in range(3):
                    self.assertEqual(status_and_text(url)[0], 200)
                self.assertLess(time.monotonic() - begin, 5)  # the others may stay for 10 s

    def test_a_client_with_few_connections_keeps_them(self):
        with self.exporter("--listen", ":0") as url, contextlib.ExitStack() as stack:
            port = int(re.search(r":(\d+)/", url)[1])
            prometheus = stack.enter_context(socket.create_connection((self.other_address(), port)))
            prometheus.sendall(b"GET /metrics HTTP/1.1\r\n")
            for number in range(200):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(f"127.0.{number}.1", 0)))
            prometheus.sendall(b"Host: n1\r\n\r\n")
            prometheus.settimeout(20)
            self.assertTrue(prometheus.recv(100).startswith(b"HTTP/1.1 200"))

    def test_of_clients_with_equally_many_connections_the_oldest_connection_ends(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        if os.environ.get("LOCKSTEP_TEST_NETWORK") != "own":
            again = subprocess.run(["unshare", "--net", sys.executable, "-B", __file__, BIN, self.id().removeprefix("__main__.")],
                                   env={**os.environ, "LOCKSTEP_TEST_NETWORK": "own"}, capture_output=True, text=True)
            if "Operation not permitted" in again.stderr:
                self.skipTest("needs network namespaces")
            return self.assertEqual(again.returncode, 0, again.stderr)
        for change in (["link", "set", "lo", "up"], ["addr", "add", "10.1.0.1/16", "dev", "lo"]):
            subprocess.run(["ip", *change], check=True)
        with self.exporter("--listen", ":0") as url, contextlib.ExitStack() as stack:
            port = int(re.search(r":(\d+)/", url)[1])
            clients = [stack.enter_context(socket.create_connection(("10.1.0.1", port), source_address=(f"10.1.0.{number}", 0)))
                       for number in range(100, 100 - 65, -1)]
            clients[0].settimeout(20)
            self.assertEqual(clients[0].recv(1), b"")
            lowest = clients[-1]
            lowest.sendall(b"GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n")
            lowest.settimeout(20)
            self.assertTrue(lowest.recv(100).startswith(b"HTTP/1.1 200"))

    def other_address(self):
        """An address of this machine outside 127.0.0.0/8."""
        try:
            with socket.socket(type=socket.SOCK_DGRAM) as probe:
                probe.connect(("192.0.2.1", 9))  # sends nothing
                return probe.getsockname()[0]
        except OSError:
            self.skipTest("needs a network")

    def test_more_requests_than_the_limit_are_answered_briefly(self):
        with self.exporter("--max-requests", "2") as url:
            answers = [status_and_text(url)[0] for _ in range(10)]
            self.assertEqual(answers[:2], [200, 200])
            self.assertIn(429, answers)
            self.wait_until(lambda: status_and_text(url)[0] == 200)

    def test_the_limit_of_requests_is_that_of_each_address(self):
        other = self.other_address()
        with self.exporter("--max-requests", "2", "--listen", ":0") as url:
            url = re.sub(r"//.*:", "//127.0.0.1:", url)
            answers = [status_and_text(url)[0] for _ in range(20)]
            self.assertIn(429, answers)
            self.assertEqual(status_and_text(url.replace("127.0.0.1", other))[0], 200)

    def test_a_textfile_for_node_exporter_goes_with_the_exporter(self):
        file = self.folder / "lockstep.prom"
        process = subprocess.Popen(self.command("--textfile", file, "--interval", "1"))
        self.wait_until(file.exists)
        self.assertIn("lockstep_exporter_ranks", file.read_text())
        self.assertEqual(file.stat().st_mode & 0o777, 0o644)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=20), 0)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["records"])
        code, line = self.refused("--textfile", self.folder / "lockstep.txt")
        self.assertEqual((code, "end in .prom" in line), (2, True))

    def test_targets_for_service_discovery(self):
        sinfo = self.folder / "sinfo"
        sinfo.write_text('#!/bin/sh\n[ "$*" = "--noheader --Node --all --format=%N %T" ] && echo >>"$0.calls" && '
                         'printf "n2 idle\\nn1 idle\\nn1 idle\\n"\n')
        sinfo.chmod(0o755)
        expected = [{"targets": ["n1:9000", "n2:9000"]}]
        path = f"{self.folder}:{os.environ['PATH']}"
        with self.exporter("--serve-targets", "--target-port", "9000", PATH=path) as url:
            for _ in range(3):
                self.assertEqual(json.loads(status_and_text(url.replace("metrics", "targets"))[1]), expected)
            self.assertEqual((self.folder / "sinfo.calls").read_text(), "\n")  # the answer is kept
        printed = subprocess.run(self.command("--print-targets", "--target-port", "9000"), env={**os.environ, "PATH": path},
                                 capture_output=True, check=True)
        self.assertEqual(json.loads(printed.stdout), expected)
        sinfo.write_text("#!/bin/sh\nexec sleep 5\n")
        with self.exporter("--serve-targets", PATH=path) as url:
            begin = time.monotonic()
            self.assertEqual(status_and_text(url.replace("metrics", "targets"))[0], 500)  # Prometheus keeps its list
            self.assertEqual(status_and_text(url)[0], 200)
            self.assertLess(time.monotonic() - begin, 4)
        sinfo.write_text("#!/bin/sh\necho 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1\n")
        code, line = self.refused("--print-targets", PATH=path)
        self.assertEqual(code, 1)
        self.assertIn("Unable to contact slurm controller", line)


if __name__ == "__main__":
    unittest.main()
