#!/usr/bin/env bash
# A job that gets Slurm's signal saves a checkpoint, goes back into the queue, and continues where it was. The last lines
# of the job script are those of the example.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

own_cluster --nodes 2
mkdir "$shared/requeue"
token_packs "$shared/requeue"
home_program text_lm .

says() { job_output "$job" | grep -q "$1"; }
queued_again() { on_head scontrol --oneliner show job "$job" | grep -q 'JobState=PENDING .*Restarts=1 '; }

test_case "a job that is signalled is queued again and continues from its checkpoint"
job=$({
  printf '%s\n' '#!/bin/bash' 'export LOCKSTEP_DATA=/mnt/shared/requeue MINUTES=0.5 OMP_NUM_THREADS=1'
  sed -n '/^srun/,$p' "$source_root/examples/text_lm/text_lm.sbatch"
} | submit -N2 -n2 --requeue)
assert_within 120 says '^step '
on_head scancel --signal=USR1 "$job"
assert_within 60 queued_again
# Slurm starts a job that was queued again only after two minutes. In the second in which the first run ended, the nodes
# would still refuse the job, and it would fail.
as_root scontrol update job "$job" StartTime=now+3
await_job "$job" 400
assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$(job_output "$job" | tail -n 30)"
assert_contains "$(job_output "$job")" "resumed from checkpoints/$job: "
assert_contains "$(job_output "$job")" "perplexity on held-out pages"
