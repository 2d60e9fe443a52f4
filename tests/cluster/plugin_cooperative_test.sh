#!/usr/bin/env bash
# The nodes of a step send each other the data over the network that the administrator names.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack large 16 6000000
clear_caches
keep_configuration
trap 'restore_configuration; cancel_all' EXIT
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

test_case "nodes send each other the data in peer_network, or else over the network to srun"
configure "ports = 20000-20100" "peer_network = 10.67.0.0/24"
stage_on_four
assert_contains "$output" "n1: no interface has an address in peer_network"
assert_at_most $once "$read" "bytes read from the source for $bytes of data in '$output'"
for i in 1 2 3 4; do
  for j in 1 2 3 4; do
    [ $i = $j ] || root_on_node n$i ip rule add to 10.66.0.$j ipproto tcp dport 20000-20100 prohibit
  done
  assert_exit 2 root_on_node n$i ip route get 10.66.0.$((i % 4 + 1)) ipproto tcp dport 20050
  root_on_node n$i ip addr add 10.67.0.$i/24 dev eth0
done
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
