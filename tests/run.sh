#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests; without ctest options all but clang-tidy, which takes longer than
# the others together (-L tidy), the search for inputs that break a parser, which has a build of its own (-L fuzz), and tests
# that need a machine on which nothing else runs (-L quiet). Root is needed for the packages and the cluster tests.
# With --torch=pip all that links LibTorch is built against the PyTorch wheel that examples/pip_torch.sh fetches, in
# build/release-pip, and the unit and integration tests are run; those that need a GPU are skipped where there is none.
# Usage: tests/run.sh [--torch=pip] [ctest options]      e.g. tests/run.sh -L unit
set -euo pipefail
cd "$(dirname "$0")/.."

preset=release
case "${1:-}" in
  -h | --help)
    echo "Usage: tests/run.sh [--torch=pip] [ctest options]; labels: unit, integration, install, cluster, peers, fuzz, lint, quiet, tidy (tests/run.sh -L unit)"
    exit 0
    ;;
  --torch=pip)
    preset=release-pip
    shift
    ;;
  --torch=*)
    echo "tests/run.sh: ${1} is unknown; there is --torch=pip, and Debian's LibTorch without it" >&2
    exit 2
    ;;
esac

if [ $preset = release ]; then
  examples/packages.sh build cluster corpus monitoring package test peers pip
  # Without a package index these tests are skipped.
  if peers=$(tests/peers/packages.sh); then export PYTHONPATH=$peers${PYTHONPATH:+:$PYTHONPATH}; fi
  if docs=$(tests/docs/packages.sh); then export LOCKSTEP_DOCS_PYTHON=$docs; fi
else
  examples/packages.sh build cluster
  python3 -m pip --version >/dev/null 2>&1 || examples/packages.sh pip
  gpu=()
  if [ -e /dev/nvidiactl ]; then gpu=(--gpu); fi
  LOCKSTEP_TORCH_WHEEL=${LOCKSTEP_TORCH_WHEEL:-$(examples/pip_torch.sh "${gpu[@]}")}
  export LOCKSTEP_TORCH_WHEEL
  # These tests do not depend on LibTorch; the cluster tests need the plugin, which is not built here.
  set -- -LE 'lint|tidy|quiet|fuzz|peers|cluster' "$@"
fi

[ $# -gt 0 ] || set -- -LE 'tidy|quiet|fuzz'
jobs=$(nproc)
# A clone in another folder finds what this one has compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
# The first build in a folder compiles many files as one, in half the time. For development, where few files change at a
# time, configure with -DCMAKE_UNITY_BUILD=OFF once; the folder remembers it.
unity=()
[ -e build/$preset/CMakeCache.txt ] || unity=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8)
cmake --preset $preset "${unity[@]}"
cmake --build --preset $preset -j "$jobs"
ctest --test-dir build/$preset --output-on-failure --no-tests=error -j "$jobs" "$@"
