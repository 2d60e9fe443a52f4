#!/usr/bin/env bash
# Compiles for arm64 what needs neither LibTorch nor MPI, with a cross compiler and the libraries of Debian's arm64, and runs
# its unit tests under qemu's user emulation. It installs all this, so it runs in a root of its own:
#   tests/platforms/run.sh arm64 [ctest options]
set -euo pipefail
cd "$(dirname "$0")/../.."

dpkg --add-architecture arm64
apt-get update
native=(crossbuild-essential-arm64 cmake ninja-build ccache pkg-config git ca-certificates nlohmann-json3-dev libcli11-dev python3 qemu-user)
mapfile -t foreign < <(examples/packages.sh --list tools | grep -E '^(lib|prometheus-cpp).*-dev$' |
  grep -vE 'cli11|benchmark' | sed 's/$/:arm64/')
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${native[@]}" "${foreign[@]}"

unity=()
[ -e build/arm64/CMakeCache.txt ] || unity=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8)
cmake --preset release -B build/arm64 "${unity[@]}" -DLOCKSTEP_WERROR=ON -DCMAKE_SYSTEM_NAME=Linux \
  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu -DPKG_CONFIG_EXECUTABLE=/usr/bin/aarch64-linux-gnu-pkg-config \
  -DCMAKE_CROSSCOMPILING_EMULATOR=/usr/bin/qemu-aarch64 -DLOCKSTEP_BUILD_PLUGIN=ON -DLOCKSTEP_BUILD_STAGING=ON \
  -DLOCKSTEP_BUILD_EXPORTERS=ON -DLOCKSTEP_BUILD_COMM=OFF -DLOCKSTEP_BUILD_RUNTIME=OFF -DLOCKSTEP_BUILD_BENCHMARKS=OFF
cmake --build build/arm64 -j "$(nproc)" -- -k 0

# Tests start tools, which the kernel must give to the emulator too.
handlers=/proc/sys/fs/binfmt_misc
[ -e $handlers/register ] || mount -t binfmt_misc binfmt_misc $handlers || true
if [ -e $handlers/register ] && [ ! -e $handlers/lockstep-arm64 ]; then
  magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  echo ":lockstep-arm64:M::$magic:$mask:/usr/bin/qemu-aarch64:F" >$handlers/register # run.sh removes it
fi
[ $# -gt 0 ] || set -- -L unit
ctest --test-dir build/arm64 --output-on-failure --no-tests=error --output-junit "$PWD/build/arm64/tests.xml" -j "$(nproc)" "$@" || status=$?
tests/summary.py build/arm64/tests.xml
exit "${status:-0}"
