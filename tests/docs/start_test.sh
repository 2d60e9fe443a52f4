#!/usr/bin/env bash
# The program that docs/start/cpp.md prints learns, on two ranks.
# Usage: start_test.sh PROGRAM LOCKSTEP_PACK
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - "$work/tokens" <<'PYTHON'
import pathlib, struct, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
for i in range(2000):  # each token tells the next one
    (folder / f"{i}.tok").write_bytes(b"".join(struct.pack("<H", (3 * i + t) % 50) for t in range(20 + i % 40)))
PYTHON
"$2" create "$work/tokens" --token-bytes 2 --out "$work/pack" >/dev/null
code=0
error=$("$1" 2>&1) || code=$?
[[ $code = 2 && $error = usage:* ]] || { echo "without an argument: exit code $code, '$error'"; exit 1; }
LOCKSTEP_RECORD=$work "$(dirname "$0")/../integration/mpirun.sh" --allow-run-as-root --oversubscribe --bind-to none -np 2 \
  "$1" "$work/pack" | tee "$work/out"
losses=$(sed -nE 's/^step [0-9]+: loss ([0-9.]+)$/\1/p' "$work/out")
awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR > 2 && last < first - 0.5) }' <<<"$losses"
