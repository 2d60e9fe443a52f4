#!/usr/bin/env bash
# Installs what is missing, builds, and runs all the tests. Root is needed for the packages and for the cluster tests.
# Usage: tests/run.sh [-L LABEL] [ctest options]      e.g. tests/run.sh -L unit
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  -h | --help)
    echo "Usage: tests/run.sh [ctest options]; labels: unit, integration, cluster, lint, tidy (tests/run.sh -L unit)"
    exit 0
    ;;
esac
examples/packages.sh build cluster corpus monitoring peers test

jobs=$(nproc)
# A clone in another folder finds what this one has compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
cmake --preset release
cmake --build --preset release -j "$jobs"
ctest --test-dir build/release --output-on-failure --no-tests=error -j "$jobs" "$@"
