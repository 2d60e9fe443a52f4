#!/usr/bin/env bash
# Builds the fuzzers (preset fuzz) and lets each search for inputs that break its parser. Inputs that take a new path
# through the code are kept in build/fuzz/found/NAME. With --keep, the smallest set of inputs that takes all known paths
# replaces that of NAME in tests/fuzz/corpus.tar.xz. Exits 77 if there is no clang with libFuzzer.
# Usage: run.sh [--keep] [SECONDS [NAME...]]      SECONDS for each fuzzer, by default 20; the target `nightly` uses 600
# Up to 20 seconds the search is the same each time, so that a test fails because of a change and not by chance.
set -euo pipefail
cd "$(dirname "$0")/../.."

keep=no
if [ "${1:-}" = --keep ]; then keep=yes; shift; fi
seconds=${1:-20}
[ $# -eq 0 ] || shift
seed=$([ "$seconds" -le 20 ] && echo 1 || echo 0)  # 0: random

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$probe/probe.cpp"
if ! clang++ -fsanitize=fuzzer,address,undefined "$probe/probe.cpp" -o "$probe/probe" 2>"$probe/error"; then
  echo "run.sh: skipped: clang++ cannot build fuzzers ($(head -n 1 "$probe/error")); install clang and libclang-rt-14-dev"
  exit 77
fi

# With these settings ccache also finds the objects of clones in other folders.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
if ! { cmake --preset fuzz && cmake --build --preset fuzz -j "$(nproc)"; } >"$probe/log" 2>&1; then
  tail -n 40 "$probe/log" >&2
  exit 1
fi

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for source in tests/fuzz/fuzz_*.cpp; do
    name=$(basename "$source" .cpp)
    # A fuzzer is not built if the packages of its library are missing.
    if [ -x "build/fuzz/bin/$name" ]; then names+=("${name#fuzz_}"); else echo "$name: skipped: not built"; fi
  done
fi

rm -rf build/fuzz/corpus
cmake -E chdir build/fuzz cmake -E tar xf "$PWD/tests/fuzz/corpus.tar.xz"
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0
# Runs one fuzzer. Its output is in $probe/NAME.output; if it fails, $probe/NAME.failed exists.
fuzz() {
  local name=$1 found=build/fuzz/found/$1 corpus=build/fuzz/corpus/$1
  mkdir -p "$found" "$corpus" "build/fuzz/crashes/$name"
  if ! nice build/fuzz/bin/"fuzz_$name" -seed="$seed" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=65536 \
      -artifact_prefix="build/fuzz/crashes/$name/" -print_final_stats=1 "$found" "$corpus" >"$probe/$name" 2>&1; then
    touch "$probe/$name.failed"
    grep -E -A 30 'ERROR|runtime error|terminate' "$probe/$name" || tail -n 40 "$probe/$name"
    echo "run.sh: fuzz_$name failed; the input is in build/fuzz/crashes/$name"
    return
  fi
  echo "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$probe/$name") inputs in $seconds s, no failure"
  if [ $keep = yes ]; then
    mkdir "$probe/$name.kept"
    build/fuzz/bin/"fuzz_$name" -merge=1 -max_len=16384 "$probe/$name.kept" "$corpus" "$found" >/dev/null 2>&1
    rm -f "$corpus"/*
    cp "$probe/$name.kept"/* "$corpus"/
  fi
}

# Runs one on each core, and ends them when this script ends.
end_all() {
  local job
  for job in $(jobs -p); do pkill -P "$job" || true; done
  rm -rf "$probe"
}
trap end_all EXIT
for name in "${names[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
  fuzz "$name" >"$probe/$name.output" 2>&1 &
done
wait
status=0
for name in "${names[@]}"; do
  if [ -e "$probe/$name.failed" ]; then
    status=1
    cat "$probe/$name.output" >&2
  else
    cat "$probe/$name.output"
  fi
done
[ $keep = no ] || cmake -E chdir build/fuzz cmake -E tar cJf "$PWD/tests/fuzz/corpus.tar.xz" corpus
exit $status
