#!/usr/bin/env bash
# Background staging: the job starts at once, and a program that opens its files by name sees copies replace links.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack large 12 1000000
chmod 777 "$shared/plugin_test"
clear_caches
trap 'cluster meter --bandwidth 0 >/dev/null; cancel_all' EXIT
sum=$(cat "$shared"/plugin_test/large/*.tar | sha256sum | cut -d' ' -f1)

# Reads all shards until all are local; prints how many are links at first, and how often it saw other bytes.
links='find $LOCKSTEP_DATA/large $LOCKSTEP_DATA/large/ -type l | sort -u'
read_until_local="first=\$($links | wc -l) wrong=0
until [ -z \"\$($links)\" ]; do
  [ \"\$(cat \$LOCKSTEP_DATA/large/*.tar | sha256sum | cut -d' ' -f1)\" = $sum ] || wrong=\$((wrong + 1))
done
echo \"\$(hostname) links at first: \$first, wrong: \$wrong\""

test_case "a job that opens files in a loop sees links become local files"
cluster meter --bandwidth 4M >/dev/null
output=$(on_head srun -w n1,n2 -N2 -n2 --stage-mode=background --stage=$packs/large bash -c "$read_until_local" 2>&1)
cluster meter --bandwidth 0 >/dev/null
for node in n1 n2; do assert_equal 1 "$(grep -c "^$node links at first: [1-9].*, wrong: 0$" <<<"$output")" "$output"; done
assert_nothing_left

test_case "a job that ends before its data is staged ends at once and leaves no helper"
clear_caches
cluster meter --bandwidth 1M >/dev/null
begin=$SECONDS
output=$(on_head srun -w n1,n2 -N2 -n2 --stage-mode=background --stage=$packs/large sh -c 'readlink -f $LOCKSTEP_DATA/large/*.tar | head -n 1' 2>&1)
assert_at_most 5 $((SECONDS - begin)) "seconds"
assert_contains "$output" "$packs/large/"
assert_nothing_left
assert_all_idle 5

test_case "scancel ends a job that stages in the background within seconds"
job=$(submit_there -w n1,n2 -N2 -n2 --stage-mode=background --stage=large --wrap 'srun sleep 1000')
step_runs() { root_on_node n1 pgrep -x sleep; }
assert_within 20 step_runs
on_head scancel "$job"
# Slurm alone needs three seconds if the tasks run already.
wait_until 8 sinfo_all_idle || fail "nodes are not free 8 s after scancel: $(on_head sinfo -h -N -o '%N %T %E' | xargs)"
assert_nothing_left

test_case "the helper avoids the CPUs of tasks if the step has others"
cpus=$(on_node n1 nproc --all)
clear_caches
cluster meter --bandwidth 1M >/dev/null
rm -f "$shared/plugin_test/up"
job=$(submit_there -w n1 -N1 -n1 -c "$cpus" <<'SCRIPT'
#!/bin/bash
srun --cpu-bind=none --pin=core,workers=1 --stage-mode=background --stage=large sh -c 'echo "compute $LOCKSTEP_CPUS loaders $LOCKSTEP_WORKER_CPUS"; touch up; sleep 1000'
SCRIPT
)
assert_within 20 test -e "$shared/plugin_test/up"
helper=$(staging_on n1 | tail -n 1)
[ -n "$helper" ] || fail "no helper runs"
lines=$(our_command_lines)
assert_contains "$lines" "lockstep-stage step"
[[ $lines != *large* ]] || fail "the name of the data is on a command line: $lines"
where=$(as_root sed -n 's/Cpus_allowed_list:\t//p' "/proc/$helper/status")
assert_equal "$(job_output "$job" | sed -n 's/.* loaders //p')" "$where" "the helper's CPUs"
on_head scancel "$job"
await_job "$job"
rm -f "$shared/plugin_test/up"

cluster meter --bandwidth 0 >/dev/null
assert_nothing_left
assert_all_idle
