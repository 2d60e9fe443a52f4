#!/usr/bin/env bash
# The nodes of a step pass data on to each other. With munge they do so only with processes of the same user, even if
# others have the step's key.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack large 12 1000000
cp "$build/bin/exchange_stranger" "$shared/plugin_test"
# Not from the shared file system, which is slow below.
root_on_node n2 sh -c "cp $packs/exchange_stranger /run && chmod 755 /run/exchange_stranger"
clear_caches
trap 'cluster meter --bandwidth 0 >/dev/null; root_on_node n2 sh -c "umount /mnt/lockstep/bin/lockstep-stage; rm -f /run/exchange_stranger" 2>/dev/null; cancel_all' EXIT
bytes=$(cat "$shared"/plugin_test/large/* | wc -c)

helper_on() { staging_on "$1" | head -n 1; }
# Prints a field of the helper's request on n1, which only root and its user can read.
requested() { as_root cat "/proc/$(helper_on n1)/fd/0" | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
# Prints the port on which n1 serves the other nodes.
port_on() { root_on_node "$1" ss -ltnpH | sed -n "s/^LISTEN .*:\\([0-9]*\\) .*pid=$(helper_on "$1"),.*/\\1/p" | head -n 1; }
listens_on() { [ -n "$(port_on "$1")" ]; }

# asks USER munge|none: prints how n1 answers a process of that user on n2 that has the key.
asks() {
  root_on_node n2 env LOCKSTEP_RENDEZVOUS_KEY="$key" setpriv --reuid "$1" --regid "$1" --init-groups \
    /run/exchange_stranger n1 "$port" "$job.0$component" "$2" 2>&1
}

test_case "a process with the key is served only if it belongs to the step's user"
cluster meter --bandwidth 300K >/dev/null
job=$(submit_there -w n1,n2 -N2 -n2 --wrap 'srun --stage=large echo started')
for node in n1 n2; do assert_within 30 listens_on $node; done
port=$(port_on n1)
key=$(requested key) component=$(requested component)
[ -n "$key" ] || fail "no key in the helper's request"
component=${component:++$component}
assert_equal "served" "$(asks alice munge)"
assert_equal "turned away" "$(asks bob munge)" "another user"
assert_equal "turned away" "$(asks root munge)" "root"
assert_equal "turned away" "$(asks alice none)" "without a credential"
assert_equal "1" "$(key=${key//[0-9]/0} asks alice munge | grep -c '^exchange_stranger: ')" "with another key"
on_head scancel "$job"
await_job "$job"
cluster meter --bandwidth 0 >/dev/null
assert_nothing_left

# staged: stages on n1 and n2; stores the bytes that they read from the source in $read.
staged() {
  clear_caches
  cluster meter --reset >/dev/null
  output=$(on_head srun -w n1,n2 -N2 -n2 --stage=$packs/large sh -c 'cat $LOCKSTEP_DATA/large/*.tar | sha256sum' 2>&1)
  assert_equal 2 "$(grep -c "^$(cat "$shared"/plugin_test/large/*.tar | sha256sum)" <<<"$output")" "$output"
  read=$(($(bytes_read n1) + $(bytes_read n2)))
}

test_case "the nodes of a step show each other their credentials"
staged
assert_at_most $((bytes * 102 / 100)) "$read" "bytes read from the source for $bytes of data"

test_case "a node without a credential gets no data from the others and reads the source"
# On n2, a library without munge's functions replaces libmunge.
root_on_node n2 sh -c 'rm -rf /run/no_munge && mkdir -p /run/no_munge && cp /mnt/lockstep/bin/lockstep-stage /run/no_munge/real &&
  cp $(ldconfig -p | sed -n "s/.*libdl.so.2.* => //p" | head -n 1) /run/no_munge/libmunge.so.2 &&
  printf "#!/bin/sh\nLD_LIBRARY_PATH=/run/no_munge exec /run/no_munge/real \"\$@\"\n" >/run/no_munge/lockstep-stage &&
  chmod -R a+rX /run/no_munge && chmod 755 /run/no_munge/lockstep-stage && mount --bind /run/no_munge/lockstep-stage /mnt/lockstep/bin/lockstep-stage'
staged
root_on_node n2 umount /mnt/lockstep/bin/lockstep-stage
assert_at_least $((bytes * 19 / 10)) "$read" "bytes read from the source for $bytes of data"

assert_nothing_left
assert_all_idle
