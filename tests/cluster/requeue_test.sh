#!/usr/bin/env bash
# A job that gets Slurm's signal saves a checkpoint, goes back into the queue, and continues where it was. The last lines
# of the job script are those of the example.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

own_cluster --nodes 2
raw=$(mktemp -d)
mkdir -p "$shared/requeue"
for pack in manpages manpages-heldout; do
  python3 - "$raw/$pack" <<'PYTHON'
import pathlib, struct, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
for i in range(300):
    (folder / f"{i}.tokens").write_bytes(b"".join(struct.pack("<H", (3 * i + t) % 50) for t in range(20 + i % 40)))
PYTHON
  "$build/bin/lockstep-pack" create "$raw/$pack" --token-bytes 2 --out "$shared/requeue/$pack" >/dev/null || fail "cannot make $pack"
done
rm -rf "$raw"
on_head bash -c 'cat >text_lm && chmod +x text_lm' <"$build/bin/text_lm"

says() { job_output "$job" | grep -q "$1"; }
restarted() { on_head scontrol --oneliner show job "$job" | grep -q 'Restarts=1 '; }

test_case "a job that is signalled is queued again and continues from its checkpoint"
job=$({
  printf '%s\n' '#!/bin/bash' 'export LOCKSTEP_DATA=/mnt/shared/requeue MINUTES=0.5 OMP_NUM_THREADS=1'
  sed -n '/^srun/,$p' "$source_root/examples/text_lm/text_lm.sbatch"
} | submit -N2 -n2 --requeue)
assert_within 120 says '^step '
on_head scancel --signal=USR1 "$job"
assert_within 60 restarted
await_job "$job" 400
assert_equal "COMPLETED 0:0" "$(job_state "$job")"
assert_contains "$(job_output "$job")" "resumed from checkpoints/$job: "
assert_contains "$(job_output "$job")" "perplexity on held-out pages"
