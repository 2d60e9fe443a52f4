#!/usr/bin/env bash
# A step on four nodes reads its source once for all of them.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack large 16 6000000
clear_caches
keep_configuration
trap 'restore_configuration; cluster meter --bandwidth 0 >/dev/null; cancel_all' EXIT
bytes=$(cat "$shared"/plugin_test/large/* | wc -c)
sum=$(cat "$shared"/plugin_test/large/*.tar | sha256sum | cut -d' ' -f1)
nodes_read() { cluster meter --json | python3 -c 'import json, sys; print(sum(m["bytes_read"] for name, m in json.load(sys.stdin)["machines"].items() if name != "head"))'; }

# The kernel reads up to 128 KiB past the end of a chunk, which is much for these small shards. bench_stage measures large
# ones.
once=$((bytes * 105 / 100))

# stage_on_four: its tasks read all data; stores the bytes that the nodes read from the source in $read.
stage_on_four() {
  cluster meter --reset >/dev/null
  output=$(on_head srun -N4 -n4 --stage=$packs/large sh -c 'cat $LOCKSTEP_DATA/large/*.tar | sha256sum' 2>&1)
  read=$(nodes_read)
  assert_equal 4 "$(grep -c "^$sum" <<<"$output")" "nodes with all the data in '$output'"
}

test_case "the source is read once for four nodes"
cluster meter --bandwidth 40M >/dev/null
begin=$(date +%s%N)
stage_on_four
together=$((($(date +%s%N) - begin) / 1000000))
cluster meter --bandwidth 0 >/dev/null
assert_at_most $once "$read" "bytes read from the source for $bytes of data"
echo "   $read bytes read for $bytes of data on 4 nodes, $together ms at 40 MB/s"

test_case "the next step reads nothing from the source"
stage_on_four
assert_at_most $((bytes / 50)) "$read" "bytes read from the source"

test_case "in the background, too, the source is read once for four nodes"
clear_caches
cluster meter --reset >/dev/null
output=$(on_head srun -N4 -n4 --stage-mode=background --stage=$packs/large sh -c 'until [ -z "$(find $LOCKSTEP_DATA/large/ -type l; readlink $LOCKSTEP_DATA/large)" ]; do sleep 0.1; done; cat $LOCKSTEP_DATA/large/*.tar | sha256sum' 2>&1)
assert_equal 4 "$(grep -c "^$sum" <<<"$output")" "nodes with all the data in '$output'"
assert_at_most $once "$(nodes_read)" "bytes read from the source for $bytes of data"

test_case "with cooperate = no each node reads everything"
clear_caches
configure "cooperate = no"
stage_on_four
assert_at_least $((bytes * 39 / 10)) "$read" "bytes read from the source for $bytes of data"
restore_configuration

assert_nothing_left
assert_all_idle
