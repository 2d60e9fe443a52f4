#!/usr/bin/env bash
# A user without root trains on a cluster without the plugin, with the tools in the home folder: the job script of
# examples/home, as printed.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

own_cluster --nodes 2
on_head mkdir packed
token_packs "$shared/home/alice/packed"
for tool in lockstep-stage lockstep-pin; do home_program $tool .local/lockstep/bin; done
home_program text_lm .

# trains: submits the job script; its output is in $output, and each of the nodes has written $1.
trains() {
  local job
  job=$(submit --export=ALL,MINUTES=0.05,OMP_NUM_THREADS=1 <"$source_root/examples/home/home.sbatch")
  await_job "$job" 180
  output=$(job_output "$job")
  assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$output"
  assert_contains "$output" "perplexity on held-out pages"
  assert_equal 2 "$(grep -c "$1" <<<"$output")" "nodes with '$1': $output"
  assert_equal 4 "$(on_head sh -c "ls report-$job/*.record | wc -l")" "records"
}

test_case "the job stages without the plugin, and trains on the copies"
assert_lacks "$(on_head srun --help)" "--stage"
trains " copied in "

test_case "the next job finds the copies on the nodes"
trains " found in the cache in "

test_case "the page for users without root runs as printed, from the packing of the data to the report"
for tool in lockstep-pack lockstep-report; do home_program $tool .local/lockstep/bin; done
tar -C "$source_root/exporters/python" -cf - lockstep.py lockstep_report_dir.py |
  on_head sh -c 'mkdir -p .local/lockstep/share/lockstep/python && tar -C .local/lockstep/share/lockstep/python -xf -'
on_head sh -c 'mkdir -p examples/home && cat >examples/home/home.sbatch' <"$source_root/examples/home/home.sbatch"
printed=$(python3 "$source_root/tests/docs/blocks.py" "$source_root/docs/start/no-root.md")
assert_exit 0 on_head env OMP_NUM_THREADS=1 bash -euo pipefail -c "$printed"
assert_equal 4 "$(grep -c '^trained on /tmp/lockstep-alice/' <<<"$output")" "ranks that trained on their node's copy: $output"
assert_contains "$output" "train.py · job"
assert_contains "$output" "report: report.html"
assert_all_idle
