#!/usr/bin/env bash
# Builds the fuzzers (preset fuzz) and lets each look for inputs that break its parser. What it finds of new ways
# through the code is kept in build/fuzz/found/NAME; with --keep the smallest set of inputs that goes all known ways
# becomes tests/fuzz/corpus/NAME. Exits 77 where there is no clang with libFuzzer.
# Usage: run.sh [--keep] [SECONDS [NAME...]]      20 seconds each unless given; a night: run.sh 600, the target `nightly`
# Up to 20 seconds it searches in the same way each time, so that a test fails for what was changed and not by chance.
set -euo pipefail
cd "$(dirname "$0")/../.."

keep=no
if [ "${1:-}" = --keep ]; then keep=yes; shift; fi
seconds=${1:-20}
[ $# -eq 0 ] || shift
seed=$([ "$seconds" -le 20 ] && echo 1 || echo 0)  # 0: by chance

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$probe/probe.cpp"
if ! clang++ -fsanitize=fuzzer,address,undefined "$probe/probe.cpp" -o "$probe/probe" 2>"$probe/error"; then
  echo "run.sh: skipped: clang++ cannot build fuzzers ($(head -n 1 "$probe/error")); install clang and libclang-rt-14-dev"
  exit 77
fi

# A clone in another folder finds what this one has compiled.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
if ! { cmake --preset fuzz && cmake --build --preset fuzz -j "$(nproc)"; } >"$probe/log" 2>&1; then
  tail -n 40 "$probe/log" >&2
  exit 1
fi

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for source in tests/fuzz/fuzz_*.cpp; do
    name=$(basename "$source" .cpp)
    # Without its library's packages it is not built.
    if [ -x "build/fuzz/bin/$name" ]; then names+=("${name#fuzz_}"); else echo "$name: skipped: not built"; fi
  done
fi

export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0
# One fuzzer: what it says is in $probe/NAME.said, and $probe/NAME.failed is there where it failed.
fuzz() {
  local name=$1 found=build/fuzz/found/$1 corpus=tests/fuzz/corpus/$1
  mkdir -p "$found" "build/fuzz/crashes/$name"
  if ! nice build/fuzz/bin/"fuzz_$name" -seed="$seed" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=65536 \
      -artifact_prefix="build/fuzz/crashes/$name/" -print_final_stats=1 "$found" "$corpus" >"$probe/$name" 2>&1; then
    touch "$probe/$name.failed"
    grep -E -A 30 'ERROR|runtime error|terminate' "$probe/$name" || tail -n 40 "$probe/$name"
    echo "run.sh: fuzz_$name failed; the input is in build/fuzz/crashes/$name"
    return
  fi
  echo "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$probe/$name") inputs in $seconds s, nothing found"
  if [ $keep = yes ]; then
    mkdir "$probe/$name.kept"
    build/fuzz/bin/"fuzz_$name" -merge=1 -max_len=16384 "$probe/$name.kept" "$corpus" "$found" >/dev/null 2>&1
    rm -f "$corpus"/*
    cp "$probe/$name.kept"/* "$corpus"/
  fi
}

# One on each core; whatever ends this script ends them.
end_all() {
  local job
  for job in $(jobs -p); do pkill -P "$job" || true; done
  rm -rf "$probe"
}
trap end_all EXIT
for name in "${names[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
  fuzz "$name" >"$probe/$name.said" 2>&1 &
done
wait
status=0
for name in "${names[@]}"; do
  if [ -e "$probe/$name.failed" ]; then
    status=1
    cat "$probe/$name.said" >&2
  else
    cat "$probe/$name.said"
  fi
done
exit $status
