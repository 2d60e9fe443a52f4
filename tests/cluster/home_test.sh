#!/usr/bin/env bash
# A user without root trains on a cluster without the plugin, with the tools in the home folder: the job script of
# examples/home, as printed.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

own_cluster --nodes 2 --metered-fs "$build/bin/metered-fs"
raw=$(mktemp -d)
on_head mkdir -p lockstep/bin packed
for pack in manpages manpages-heldout; do
  python3 - "$raw/$pack" <<'PYTHON'
import pathlib, struct, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
for i in range(300):
    (folder / f"{i}.tokens").write_bytes(b"".join(struct.pack("<H", (3 * i + t) % 50) for t in range(20 + i % 40)))
PYTHON
  "$build/bin/lockstep-pack" create "$raw/$pack" --token-bytes 2 --out "$raw/$pack.pack" >/dev/null || fail "cannot make $pack"
  on_head mkdir -p "packed/$pack"
  tar -C "$raw/$pack.pack" -cf - . | on_head tar -C "packed/$pack" -xf - || fail "cannot copy $pack"
done
rm -rf "$raw"
for tool in lockstep-stage lockstep-pin; do
  on_head sh -c "cat >lockstep/bin/$tool && chmod +x lockstep/bin/$tool" <"$build/bin/$tool"
done
on_head sh -c 'cat >text_lm && chmod +x text_lm' <"$build/bin/text_lm"

test_case "the job stages without the plugin, and trains on the copies"
assert_equal "" "$(on_head srun --help | grep -e --stage)"
job=$(submit --export=ALL,MINUTES=0.05,OMP_NUM_THREADS=1 <"$source_root/examples/home/home.sbatch")
await_job "$job" 180
output=$(job_output "$job")
assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$output"
assert_contains "$output" "perplexity on held-out pages"
assert_equal 2 "$(grep -c ' copied in ' <<<"$output")" "nodes that copied: $output"
assert_equal 4 "$(on_head sh -c "ls report-$job/*.record | wc -l")" "records"

test_case "the next job finds the copies on the nodes"
job=$(submit --export=ALL,MINUTES=0.05,OMP_NUM_THREADS=1 <"$source_root/examples/home/home.sbatch")
await_job "$job" 180
output=$(job_output "$job")
assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$output"
assert_equal 2 "$(grep -c ' found in the cache in ' <<<"$output")" "nodes that had the data: $output"
