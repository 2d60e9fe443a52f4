#!/usr/bin/env bash
# The store that the administrator fills: jobs use its data without a copy, and no user gets data that the user may not read.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

store=/mnt/local/lockstep/shared
make_pack corpus 8 200000
make_pack secret 8 4000
make_pack project 8 4000
chmod 700 "$shared/plugin_test/secret"
chmod 777 "$shared/plugin_test"
clear_caches
keep_configuration
trap 'restore_configuration; cancel_all; clear_caches' EXIT
configure "shared = $store"
sum=$(cat "$shared"/plugin_test/corpus/*.tar | sha256sum | cut -d' ' -f1)
# Each task prints the place and the content of a pack's shards.
look() { echo "echo \"\$(hostname) \$(readlink -f \$LOCKSTEP_DATA/$1/*.tar | xargs -n 1 dirname | sort -u) \$(cat \$LOCKSTEP_DATA/$1/*.tar | sha256sum | cut -d' ' -f1)\""; }
objects_of() { root_on_node n1 sh -c "ls /mnt/local/lockstep/$1/objects 2>/dev/null | wc -l"; }

test_case "jobs on each node find prefetched data and do not read it from the source"
for node in n1 n2; do
  output=$(root_on_node $node lockstep-stage prefetch $packs/corpus --cache $store 2>&1) || fail "prefetch: $output"
  assert_contains "$output" "readable for all: $store/objects/"
done
cluster meter --reset >/dev/null
output=$(on_head srun -w n1,n2 -N2 -n2 --stage=$packs/corpus bash -c "$(look corpus)" 2>&1)
for node in n1 n2; do
  assert_equal 1 "$(grep -c "^$node $store/objects/[0-9a-f]*/files $sum$" <<<"$output")" "$node in '$output'"
  assert_equal 1 "$(grep -c "^lockstep: $node: staged corpus: .*(hit)$" <<<"$output")" "$node in '$output'"
done
assert_at_most 100000 "$(bytes_read n1)" "bytes that n1 read of the source"
assert_equal 0 "$(objects_of 6001)" "objects in the user's own store"

test_case "a user who may not read the source does not get the copy"
configure "shared = $store" "check_sources = no"
assert_exit 1 root_on_node n1 lockstep-stage prefetch $packs/secret --cache $store
assert_contains "$output" "not everyone may read $packs/secret"
root_on_node n1 lockstep-stage prefetch $packs/secret --everyone --cache $store >/dev/null || fail "prefetch failed"
assert_exit 3 on_head srun -w n1 -n1 --stage=$packs/secret bash -c "$(look secret)"
assert_equal 1 "$(lines_of_ours "$output" | wc -l)" "lines of the plugin in '$output'"
assert_contains "$output" "lockstep: n1: "
assert_contains "$output" "$packs/secret/index.lockstep: Permission denied"
assert_lacks "$output" "$store"

test_case "prefetch --group serves that group; other users get their own copies"
root_on_node n1 lockstep-stage prefetch $packs/project --group bob --cache $store >/dev/null || fail "prefetch failed"
output=$(as_bob srun -w n1 -n1 --stage=$packs/project bash -c "$(look project)" 2>&1)
assert_contains "$output" "n1 $store/objects/"
copy=$(sed -n 's/^n1 \(.*\) .*/\1/p' <<<"$output")
output=$(on_head srun -w n1 -n1 --stage=$packs/project bash -c "$(look project)" 2>&1)
assert_contains "$output" "n1 /mnt/local/lockstep/6001/"
assert_exit 2 on_node n1 ls "$copy"
assert_contains "$output" "Permission denied"

assert_nothing_left
assert_all_idle
