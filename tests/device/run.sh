#!/usr/bin/env bash
# Runs a program with the simulated CUDA runtime, NCCL and NVML instead of the real ones, and with LibTorch's simulated device.
# Usage: run.sh PROGRAM [ARGS]     under mpirun: mpirun -np 2 tests/device/run.sh PROGRAM
# BUILD=build/release is the build tree; SIMULATED_DEVICES=8 and SIMULATED_SEED=1 can be set.
set -euo pipefail
if [ $# = 0 ]; then
  sed -n '2,4s/^# //p' "$0"
  exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
libraries=${BUILD:-$root/build/release}/lib/simulated
cudart=$(find "$libraries" -name 'libcudart.so.*' 2>/dev/null | head -n 1)
if [ -z "$cudart" ]; then
  echo "run.sh: $libraries does not have the simulated libraries: build the target simulated_nccl (the build needs the headers of CUDA and NCCL), or set BUILD" >&2
  exit 1
fi
backend=$libraries/libsimulated_torch.so.1
[ -e "$backend" ] || backend=
LD_PRELOAD=$cudart:$libraries/libnccl.so.2:$libraries/libnvidia-ml.so.1${backend:+:$backend}${LD_PRELOAD:+:$LD_PRELOAD} exec "$@"
