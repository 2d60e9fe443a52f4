#!/usr/bin/env bash
# lockstep-run starts a step again after a failure, without the node that failed, and leaves everything else to Slurm.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

tools=$(mktemp -d)
mkdir "$tools/bin" && cp "$build/bin/lockstep-run" "$tools/bin" || fail "no lockstep-run"
chmod 755 "$tools"
# Slurm would wait KillWait for a rank that does not end; a restart must not.
own_cluster --nodes 3 --cpus 2 --kill-wait 30 --prefix "$tools"
trap 'cluster down; rm -rf "$state" "$tools"' EXIT

# A rank notes that it runs. `hold`: the first start does not end, whatever signal comes. `peers`: it ends when another
# rank ends, as those of a training do. Later starts end with 0.
on_head tee rank >/dev/null <<'PROGRAM'
#!/bin/bash
echo "$SLURM_STEP_ID $SLURM_PROCID/$SLURM_NTASKS $(hostname) $$" >>"ranks-$SLURM_JOB_ID"
case $1 in
  exit) exit "$2" ;;
  save) trap 'sleep 4; echo >>"saved-$SLURM_JOB_ID"; exit 75' TERM; while :; do sleep 0.1; done ;;
  usr1) trap 'exit 75' USR1; echo waiting; while :; do sleep 0.1; done ;;
esac
[ "$SLURM_STEP_ID" = 0 ] || exit 0
[ "$1" != hold ] || { trap '' TERM; exec sleep 1000; }
[ "$1" != progress ] || { [ "$SLURM_PROCID" = 0 ] || exec sleep 1000; printf '45%% ' >&2 && kill -KILL $$; }
mine() { grep "^$SLURM_STEP_ID " "ranks-$SLURM_JOB_ID"; }
until [ "$(mine | wc -l)" = "$SLURM_NTASKS" ]; do sleep 0.1; done
while mine | { while read -r _ _ _ pid; do kill -0 "$pid" || exit 1; done; }; do sleep 0.1; done
exit 1
PROGRAM
on_head chmod +x rank

# start [OPTIONS OF SBATCH] -- COMMAND: submits a job of 1 rank per node with this last command; its number is in $job.
start() {
  local options=()
  while [ "$1" != -- ]; do options+=("$1") && shift; done
  shift
  job=$(printf '#!/bin/bash\nexec %s\n' "$*" | submit --no-kill -N3 --ntasks-per-node=1 "${options[@]}")
}
ranks() { on_head cat "ranks-$job" 2>/dev/null; }
ranks_of_step() { ranks | grep -c "^$1 "; }
running() { [ "$(ranks_of_step "$1")" = "$2" ]; }
rank_of() { ranks | awk -v node="$2" -v step="$1" '$1 == step && $3 == node { print $4 }'; }
# ended EXIT: the job ended with this state and exit code.
ended() {
  await_job "$job"
  assert_equal "$1" "$(job_state "$job")" "$(job_output "$job")"
}

test_case "exit codes pass through, and only failures that a restart can mend are started again"
start -- lockstep-run ./rank exit 0
ended "COMPLETED 0:0"
assert_equal 3 "$(ranks | wc -l)" "ranks"
for code in 2 75 127; do
  start -- lockstep-run ./rank exit $code
  ended "FAILED $code:0"
  assert_equal 3 "$(ranks | wc -l)" "ranks of exit code $code"
done
start -- lockstep-run --restarts 1 --pause 0 ./rank exit 3
ended "FAILED 3:0"
assert_equal 6 "$(ranks | wc -l)" "ranks"
assert_contains "$(job_output "$job")" "restart 1 of 1 after n"
assert_contains "$(job_output "$job")" "not started again: --restarts 1 is used up"

test_case "the job script of the page works as printed"
on_head cp rank train
sed -n '/^```sh$/,/^```$/{/^```/d;p}' "$source_root/docs/users/recovery.md" >"$state/script"
job=$(submit <"$state/script")
assert_within 20 running 0 4
root_on_node n2 kill -9 "$(rank_of 0 n2 | head -n 1)"
ended "COMPLETED 0:0"
assert_contains "$(job_output "$job")" ", on n1,n2"
assert_contains "$(on_head cat "report-$job/restarts-$job.jsonl")" '"end": 137'

test_case "a killed rank costs less than five seconds, though the other ranks do not end"
start -- lockstep-run ./rank hold
assert_within 20 running 0 3
begin=$(date +%s%N)
root_on_node n2 kill -9 "$(rank_of 0 n2)"
assert_within 15 running 1 3
took=$((($(date +%s%N) - begin) / 1000000))
echo "   $took ms to the next start"
ended "COMPLETED 0:0"
assert_at_most 5000 $took "milliseconds"
assert_contains "$(job_output "$job")" "restart 1 of 10 after n2: task 1: Killed, on n1,n2,n3"

test_case "--exclude-slow leaves out a node that is slower than the others, by the ranks' records"
cp "$build/bin/lockstep-report" "$tools/bin" || fail "no lockstep-report"
on_head tee lockstep.py >/dev/null <"$source_root/exporters/python/lockstep.py"
on_head tee train.py >/dev/null <<'PROGRAM'
import glob, os, socket, sys, time
step = os.environ["SLURM_JOB_ID"] + "." + os.environ["SLURM_STEP_ID"]
os.environ["LOCKSTEP_RECORD"] = f"/dev/shm/lockstep-{os.getuid()}/records/{step}"  # where the plugin's folder is not
os.makedirs(os.environ["LOCKSTEP_RECORD"], exist_ok=True)
import lockstep
for step in range(60):
    lockstep.begin_step()
    time.sleep(0.05 if socket.gethostname() == "n2" else 0.01)
    lockstep.end_step(tokens=1)
open(f"trained-{step}-{os.environ['SLURM_PROCID']}", "w").close()
while len(glob.glob(f"trained-{step}-*")) < int(os.environ["SLURM_NTASKS"]):
    time.sleep(0.05)
sys.exit(1 if os.environ["SLURM_STEP_ID"] == "0" else 0)
PROGRAM
start -- lockstep-run --exclude-slow 1.3 python3 train.py
ended "COMPLETED 0:0"
assert_contains "$(job_output "$job")" "leaving out n2: its own work takes 5"
assert_contains "$(job_output "$job")" ", on n1,n3, without n2"

test_case "options that srun refuses are not tried again"
start -- lockstep-run --no-such-option ./rank exit 0
await_job "$job"
assert_contains "$(job_state "$job")" FAILED
assert_contains "$(job_output "$job")" "lockstep-run: not started again: srun ended with"

test_case "ranks that save their state after scancel have the time that Slurm gives them"
start -- lockstep-run ./rank save
assert_within 20 running 0 3
on_head scancel "$job"
await_job "$job"
assert_equal 3 "$(on_head sh -c "cat saved-$job" | wc -l)" "ranks that saved their state"

test_case "signals reach the ranks"
start -- lockstep-run ./rank usr1
says() { job_output "$job" | grep -q "$1"; }
assert_within 20 says waiting
on_head scancel --batch --signal=USR1 "$job"
ended "FAILED 75:0"
start -- lockstep-run ./rank save
assert_within 20 running 0 3
on_head scancel --batch --signal=TERM "$job"
ended "FAILED 75:0"
assert_equal 3 "$(on_head sh -c "cat saved-$job" | wc -l)" "ranks that saved their state"

test_case "a failure is seen after a line without an end, and in a step whose name is the user's"
start -- lockstep-run --job-name=mine ./rank progress
ended "COMPLETED 0:0"
assert_contains "$(job_output "$job")" "restart 1 of 10 after n1: task 0: Killed"

test_case "scancel and the time limit are not failures"
start -- lockstep-run ./rank peers
assert_within 20 running 0 3
on_head scancel "$job"
await_job "$job"
assert_equal 3 "$(ranks | wc -l)" "ranks ($(job_output "$job"))"
assert_contains "$(job_state "$job")" CANCELLED
start -- lockstep-run ./rank peers
assert_within 20 running 0 3
as_root scontrol update job "$job" EndTime=now+1
await_job "$job" 90
assert_contains "$(job_state "$job")" TIMEOUT
assert_equal 3 "$(ranks | wc -l)" "ranks ($(job_output "$job"))"
start -- lockstep-run ./rank peers
assert_within 20 running 0 3
on_head scancel --signal=TERM "$job.0"
await_job "$job"
assert_equal 3 "$(ranks | wc -l)" "ranks ($(job_output "$job"))"
assert_contains "$(job_output "$job")" "not started again: the step was asked to end (SIGTERM)"

test_case "a spare takes the place of a lost node, and Slurm's own timeout does not count"
start -- lockstep-run --spares 1 ./rank peers
assert_within 20 running 0 2
begin=$(date +%s%N)
cluster kill n2 --all
assert_within 20 running 1 2
took=$((($(date +%s%N) - begin) / 1000000))
echo "   $took ms to the next start"
ended "COMPLETED 0:0"
assert_contains "$(job_output "$job")" ", on n1,n3, without n2"
assert_equal "n1 n3" "$(ranks | awk '$1 == 1 { print $3 }' | sort | xargs)"
assert_equal "" "$(root_on_node n3 pgrep -f "rank peers" | xargs)" "ranks that still run"

test_case "without a spare fewer ranks go on, and --min-nodes ends that"
cluster restart n2
assert_all_idle 60
start -- lockstep-run ./rank peers
assert_within 20 running 0 3
cluster kill n3 --all
assert_within 20 running 1 2
ended "COMPLETED 0:0"
assert_contains "$(job_output "$job")" ", on n1,n2, without n3"
cluster restart n3
assert_all_idle 60
start -- lockstep-run --min-nodes 3 ./rank peers
assert_within 20 running 0 3
cluster kill n3 --all
await_job "$job"
assert_contains "$(job_state "$job")" FAILED
assert_contains "$(job_output "$job")" "not started again: 2 of 3 nodes are left, and --min-nodes is 3"
assert_equal 3 "$(ranks | wc -l)" "ranks"
