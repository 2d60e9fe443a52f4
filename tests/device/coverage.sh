#!/usr/bin/env bash
# Prints how many lines of runtime/comm/nccl, and of the files that treat devices other than the CPU (CMakeLists.txt), the
# tests on the simulated device run. Exits with 1 if it is less than 90 % of either.
# Usage: coverage.sh [--collected] [BUILD]     BUILD is build/release by default. --collected: the tests have run.
set -euo pipefail
cd "$(dirname "$0")/../.."
collected=no
if [ "${1:-}" = --collected ]; then collected=yes; shift; fi
build=${1:-build/release}
if [ $collected = no ]; then
  # The test prints the line; it needs the tests that run the code, so ctest runs these first.
  find "$build/tests/device" -name '*.gcda' -delete
  ctest --test-dir "$build" -R '^device.coverage$' --no-tests=error --verbose | sed -n 's/^[0-9]*: \(device branches:.*\)/\1/p'
  exit "${PIPESTATUS[0]}"
fi
find "$build"/tests/device/CMakeFiles/*_on_simulation.dir -name '*.gcno' -exec gcov --no-output {} + 2>/dev/null |
  awk -F"[':% ]+" '
    /^File/ { part = $2 !~ /runtime\/.*\.cpp$/ ? "" : $2 ~ /runtime\/comm\/nccl\// ? "runtime/comm/nccl" : "the files that treat devices" }
    /^Lines executed/ && part { run[part] += $3 * $5 / 100; lines[part] += $5; part = "" }
    END {
      for (part in lines) {
        all_run += run[part]
        all_lines += lines[part]
        if (run[part] >= 0.9 * lines[part]) continue
        printf "coverage.sh: the tests run less than 90 %% of %s (%d of %d lines)\n", part, run[part], lines[part] > "/dev/stderr"
        failed = 1
      }
      if (!all_lines) { print "coverage.sh: no counts: build the tests of tests/device and run them" > "/dev/stderr"; exit 1 }
      printf "device branches: %d %% of %d lines\n", 100 * all_run / all_lines, all_lines
      exit failed
    }'
