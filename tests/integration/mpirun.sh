#!/usr/bin/env bash
# mpirun for the tests, with the same arguments and exit code. Open MPI 4.1's mpirun sometimes waits for ever in
# PMIx_server_finalize after all ranks have ended (docs/contributors/facts.md). When all its children have been dead for
# 5 s, this script kills it, and exits with 0 if all ranks did, else with 1.
set -u
mpirun "$@" &
launcher=$!
trap 'kill -TERM $launcher 2>/dev/null' TERM INT
trap 'kill -USR1 $launcher 2>/dev/null' USR1
result=$(mktemp)

watch_ranks() {
  local pid state code alive dead=0
  while ! read -rt 1 <> <(:); do
    alive=no
    : >"$result.new"
    for pid in $(pgrep -P $launcher); do
      # The fields after the name: the state, ..., the exit code.
      read -r state code < <(sed -E 's/.*\) (.) .* ([0-9]+)$/\1 \2/' "/proc/$pid/stat" 2>/dev/null)
      [ "$state" = Z ] || alive=yes
      echo "$code" >>"$result.new"
    done
    if [ -s "$result.new" ] && [ $alive = no ]; then dead=$((dead + 1)); else dead=0; fi
    [ $dead -ge 5 ] || continue
    if grep -qv '^0$' "$result.new"; then echo 1 >"$result"; else echo 0 >"$result"; fi
    echo "mpirun.sh: all ranks have ended, but mpirun hangs: killed" >&2
    kill -KILL $launcher
  done
}
watch_ranks &
watcher=$!
disown $watcher

wait $launcher
code=$?
# A signal ends the first wait early.
if kill -0 $launcher 2>/dev/null; then wait $launcher; code=$?; fi
kill $watcher 2>/dev/null
[ ! -s "$result" ] || code=$(cat "$result")
rm -f "$result" "$result.new"
exit "$code"
