#!/usr/bin/env bash
# Builds the fuzzers (preset fuzz) and lets each look for inputs that break its parser. What it finds of new ways
# through the code is kept in build/fuzz/found/NAME; with --keep the smallest set of inputs that goes all known ways
# becomes tests/fuzz/corpus/NAME. Exits 77 where there is no clang with libFuzzer.
# Usage: run.sh [--keep] [SECONDS [NAME...]]      20 seconds each unless given; a night: run.sh 600
set -euo pipefail
cd "$(dirname "$0")/../.."

keep=no
if [ "${1:-}" = --keep ]; then keep=yes; shift; fi
seconds=${1:-20}
[ $# -eq 0 ] || shift

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$probe/probe.cpp"
if ! clang++ -fsanitize=fuzzer,address,undefined "$probe/probe.cpp" -o "$probe/probe" 2>"$probe/error"; then
  echo "run.sh: skipped: clang++ cannot build fuzzers ($(head -n 1 "$probe/error")); install clang and libclang-rt-14-dev"
  exit 77
fi

if ! { cmake --preset fuzz && cmake --build --preset fuzz -j "$(nproc)"; } >"$probe/log" 2>&1; then
  tail -n 40 "$probe/log" >&2
  exit 1
fi

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for program in build/fuzz/bin/fuzz_*; do
    name=$(basename "$program")
    names+=("${name#fuzz_}")
  done
fi

export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0
failed=()
for name in "${names[@]}"; do
  found=build/fuzz/found/$name
  mkdir -p "$found" "build/fuzz/crashes/$name"
  corpus=tests/fuzz/corpus/$name
  if ! nice build/fuzz/bin/"fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=65536 \
      -artifact_prefix="build/fuzz/crashes/$name/" -print_final_stats=1 "$found" "$corpus" >"$probe/$name" 2>&1; then
    grep -E -A 30 'ERROR|runtime error|terminate' "$probe/$name" >&2 || tail -n 40 "$probe/$name" >&2
    echo "run.sh: fuzz_$name failed; the input is in build/fuzz/crashes/$name" >&2
    failed+=("$name")
    continue
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$probe/$name")
  echo "fuzz_$name: $runs inputs in $seconds s, nothing found"
  if [ $keep = yes ]; then
    mkdir "$probe/kept"
    build/fuzz/bin/"fuzz_$name" -merge=1 -max_len=16384 "$probe/kept" "$corpus" "$found" >/dev/null 2>&1
    rm -f "$corpus"/*
    cp "$probe/kept"/* "$corpus"/
    rm -r "$probe/kept"
  fi
done
[ ${#failed[@]} -eq 0 ]
