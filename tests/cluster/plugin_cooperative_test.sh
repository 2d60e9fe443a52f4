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

# bytes_sent NODE: by its network interfaces, as the kernel counts them.
bytes_sent() { on_node "$1" cat /proc/net/dev | awk '{sub(/:/, " ")} $1 != "lo" {sum += $10} END {print sum}'; }

test_case "nodes that have the data send it once, and the source is not read"
for holder in n1 n3; do
  clear_caches
  on_head srun -w $holder -N1 -n1 --stage=$packs/large true 2>/dev/null
  declare -A before=()
  for node in n1 n2 n3 n4; do before[$node]=$(bytes_sent $node); done
  stage_on_four
  assert_at_most $((bytes / 50)) "$read" "bytes read from the source if $holder has the data"
  for node in n1 n2 n3 n4; do
    assert_at_most $((bytes * 11 / 10)) $(($(bytes_sent $node) - before[$node])) "bytes that $node sends if $holder has the data"
  done
done

test_case "in the background, too, the source is read once for four nodes"
clear_caches
cluster meter --reset >/dev/null
output=$(on_head srun -N4 -n4 --stage-mode=background --stage=$packs/large sh -c 'until [ -z "$(readlink $LOCKSTEP_DATA/large; find $LOCKSTEP_DATA/large/ -type l)" ]; do sleep 0.1; done; cat $LOCKSTEP_DATA/large/*.tar | sha256sum' 2>&1)
assert_equal 4 "$(grep -c "^$sum" <<<"$output")" "nodes with all the data in '$output'"
assert_at_most $once "$(nodes_read)" "bytes read from the source for $bytes of data"

test_case "with cooperate = no each node reads everything"
clear_caches
configure "cooperate = no"
stage_on_four
assert_at_least $((bytes * 39 / 10)) "$read" "bytes read from the source for $bytes of data"
restore_configuration

test_case "nodes send each other the data in peer_network"
clear_caches
configure "ports = 20000-20100" "peer_network = 10.67.0.0/24"
for i in 1 2 3 4; do
  for j in 1 2 3 4; do
    [ $i = $j ] || root_on_node n$i ip rule add to 10.66.0.$j ipproto tcp dport 20000-20100 prohibit
  done
done
stage_on_four
assert_contains "$output" "n1: no interface has an address in peer_network"
assert_at_least $((bytes * 19 / 10)) "$read" "bytes read from the source where nodes cannot reach each other"
for i in 1 2 3 4; do root_on_node n$i ip addr add 10.67.0.$i/24 dev eth0; done
clear_caches
stage_on_four
assert_at_most $once "$read" "bytes read from the source for $bytes of data in '$output'"
for i in 1 2 3 4; do
  root_on_node n$i ip addr del 10.67.0.$i/24 dev eth0
  while root_on_node n$i ip rule del ipproto tcp dport 20000-20100 prohibit 2>/dev/null; do :; done
done
restore_configuration

assert_nothing_left
assert_all_idle
