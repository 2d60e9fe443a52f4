#!/usr/bin/env bash
# Installs missing packages, builds, and runs the tests. Without ctest options it leaves out clang-tidy (-L tidy), which
# takes longer than all others together, the fuzzers (-L fuzz), which have a separate build, and tests that need an idle
# machine (-L quiet). Up to three tests that fail run once more, alone: on a busy machine a limit in seconds can be missed.
# Those that pass then are listed as unstable, and each needs a repair. At the end it prints the ten slowest tests, and
# those that were skipped. The packages and the cluster tests need root. With --torch=pip it builds everything that links
# LibTorch against the PyTorch wheel that examples/pip_torch.sh fetches, in build/release-pip, and runs the unit and
# integration tests; those that need a GPU are skipped on a machine without one.
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
  set -- -LE 'lint|tidy|quiet|fuzz|peers|cluster' -E '^(failure|planner|control|pack|common)_test\.' "$@"
fi

[ $# -gt 0 ] || set -- -LE 'tidy|quiet|fuzz'
jobs=$(nproc)
# Tests wait more than they compute.
test_jobs=$((jobs + (jobs + 1) / 2))
# A clone in another folder finds what this one has compiled: for that, __FILE__ must not name the folder either.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
# The first build in a folder compiles many files as one, in half the time. For development, where few files change at a
# time, configure with -DCMAKE_UNITY_BUILD=OFF once; the folder remembers it.
unity=()
[ -e build/$preset/CMakeCache.txt ] ||
  unity=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8 -DLOCKSTEP_RELATIVE_PATHS=ON)
begin=$SECONDS
# Warnings are errors here only: a newer compiler than those of the tests may have other ones.
cmake --preset $preset -DLOCKSTEP_WERROR=ON "${unity[@]}"
cmake --build --preset $preset -j "$jobs"
built=$SECONDS
reports=("$PWD/build/$preset/tests.xml")
rm -f build/$preset/tests*.xml
status=0
ctest --test-dir build/$preset --output-on-failure --no-tests=error --output-junit "${reports[0]}" -j "$test_jobs" "$@" || status=$?
failures=build/$preset/Testing/Temporary/LastTestsFailed.log
if [ $status -ne 0 ] && [ -s $failures ] && [ "$(wc -l <$failures)" -le 3 ]; then
  names=$(cut -d: -f2 $failures)
  reports+=("$PWD/build/$preset/tests-again.xml")
  if ctest --test-dir build/$preset --output-on-failure --output-junit "${reports[1]}" -j 1 "$@" --rerun-failed; then
    status=0
    while read -r name; do echo "UNSTABLE: $name failed beside other tests and passed alone"; done <<<"$names"
  fi
fi
[ ! -e "${reports[0]}" ] || tests/summary.py "${reports[@]}"
echo "Build: $((built - begin)) s, tests: $((SECONDS - built)) s"
exit $status
