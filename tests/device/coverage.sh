#!/usr/bin/env bash
# Prints how many lines of runtime/comm/nccl the tests on the simulated device run. Exits with 1 below 90 %.
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
find "$build/tests/device/CMakeFiles/nccl_on_simulation.dir" -name '*.gcda' -exec gcov --no-output {} + |
  awk -F"[':% ]+" '
    /^File/ { wanted = $2 ~ /runtime\/comm\/nccl\/[^\/]*\.cpp$/ }
    /^Lines executed/ && wanted { run += $3 * $5 / 100; lines += $5; wanted = 0 }
    END {
      if (!lines) { print "coverage.sh: no counts: build the tests of tests/device and run them" > "/dev/stderr"; exit 1 }
      printf "device branches: %d %% of %d lines\n", 100 * run / lines, lines
      exit run < 0.9 * lines
    }'
