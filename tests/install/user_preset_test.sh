#!/usr/bin/env bash
# The preset `user`, which the quickstart and the packages build, configures and compiles: its translation units are larger
# than those of the tests, so two files that go together elsewhere may collide there. Nothing is optimised, to be quick.
# Usage: user_preset_test.sh SOURCE_DIR
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
if ! { cmake -S "$1" --preset user -B "$work" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 &&
  cmake --build "$work" -j 2 --target tools metered-fs; } >"$work/log" 2>&1; then
  tail -n 30 "$work/log" >&2
  exit 1
fi
"$work/bin/lockstep-plan" --version
