#!/usr/bin/env bash
# What CI adds on another release of Slurm: builds plugin, staging and tools, and runs tests of the plugin on a real cluster of
# that release. Without LibTorch and MPI, so that it takes minutes. It installs what it needs, so it runs in a root:
#   tests/platforms/run.sh trixie --exec tests/platforms/plugin.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

examples/packages.sh tools cluster pip
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
cmake --preset release -B build/plugin -DLOCKSTEP_WERROR=ON -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8 \
  -DLOCKSTEP_RELATIVE_PATHS=ON -DLOCKSTEP_BUILD_PLUGIN=ON -DLOCKSTEP_BUILD_STAGING=ON -DLOCKSTEP_BUILD_EXPORTERS=ON -DLOCKSTEP_BUILD_COMM=OFF \
  -DLOCKSTEP_BUILD_RUNTIME=OFF -DLOCKSTEP_BUILD_BENCHMARKS=OFF
cmake --build build/plugin -j "$(nproc)" --target tools metered-fs lockstep_failing neighbour
tests='callbacks|cancel|cooperative|fallback|faults|lease|munge|options|pin|staging|steps'
ctest --test-dir build/plugin --output-on-failure --no-tests=error -j "$(nproc)" -R "^cluster\.plugin_($tests)$"
