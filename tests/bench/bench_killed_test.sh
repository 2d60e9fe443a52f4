#!/usr/bin/env bash
# A benchmark that is killed in the middle of a copy leaves no mount and no process: bench_killed_test.sh PROGRAMS
set -uo pipefail
bench=$1/bench_stage
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
within() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.05
  done
}
processes() { pgrep -af "$folder" | grep -v -e bench_killed_test -e pgrep; }
copies() { pgrep -f "^$1 .*$folder" >/dev/null; }
nothing_left() { ! grep -q "$folder" /proc/mounts && [ -z "$(processes)" ]; }

if [ ! -e /dev/fuse ] || [ ! -x "$1/metered-fs" ] || ! command -v rsync >/dev/null; then
  echo "skipped: needs /dev/fuse, metered-fs and rsync"
  exit 77
fi
for signal in TERM INT KILL; do
  # So many files that none of the copies ends soon.
  "$bench" --quick --peers --cases small_files --latency-ms 20 --files 100 --folder "$folder" >"$folder.out" 2>&1 &
  pid=$!
  within 60 copies rsync || fail "rsync does not run; the benchmark said: $(cat "$folder.out")"
  kill -$signal $pid
  within 60 nothing_left || fail "after SIG$signal: $(processes) $(grep "$folder" /proc/mounts)"
  wait $pid 2>/dev/null
  [ $signal = KILL ] || [ -z "$(ls -A "$folder")" ] || fail "after SIG$signal files are left: $(ls "$folder")"
  rm -rf "${folder:?}"/* "$folder.out"
done
