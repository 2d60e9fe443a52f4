#!/usr/bin/env bash
# The shared file system counts bytes exactly, can be slowed down, and behaves as a Unix file system.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
[[ $(cluster status --json) != *'"meter":null'* ]] || fail "the cluster's shared file system is not metered"

# counter MACHINE FIELD
counter() { cluster meter --json | python3 -c "import json, sys; print(json.load(sys.stdin)['machines']['$1']['$2'])"; }
trap 'cluster meter --bandwidth 0 --latency-ms 0; root_on_node n1 rm -rf /mnt/shared/metered' EXIT
root_on_node n1 bash -c 'mkdir /mnt/shared/metered && chown alice: /mnt/shared/metered'
folder=/mnt/shared/metered

test_case "bytes are counted exactly, for each machine"
on_node n1 bash -c "head -c 5000001 /dev/zero >$folder/five"
cluster meter --reset
on_node n1 bash -c "cat $folder/five | wc -c" >/dev/null
assert_equal 5000001 "$(counter n1 bytes_read)"
assert_equal 1 "$(counter n1 opens)"
assert_equal 0 "$(counter n2 bytes_read)"
on_node n2 bash -c "cat $folder/five $folder/five >$folder/ten"
assert_equal 10000002 "$(counter n2 bytes_read)"
assert_equal 10000002 "$(counter n2 bytes_written)"
assert_equal 3 "$(counter n2 opens)"
assert_equal 5000001 "$(counter n1 bytes_read)"

test_case "reads of a mapped file are metered, too"
cluster meter --reset
on_node n3 python3 -c "
import mmap
with open('$folder/five') as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    print(sum(mapped[:]))" >/dev/null
assert_equal 5000001 "$(counter n3 bytes_read)"

milliseconds() {
  local begin=${EPOCHREALTIME/./}
  "$@" >/dev/null || fail "$* failed"
  echo $(((${EPOCHREALTIME/./} - begin) / 1000))
}

test_case "the bandwidth is shared by all nodes"
cluster meter --bandwidth 8000000
read_on_two_nodes() {
  on_node n1 cat $folder/ten &
  on_node n2 cat $folder/ten && wait $!
}
took=$(milliseconds read_on_two_nodes)
assert_at_least 2500 "$took" "milliseconds for 20 MB at 8 MB/s"
assert_at_most 6000 "$took" "milliseconds for 20 MB at 8 MB/s"
cluster meter --bandwidth 0

test_case "each operation takes the latency"
cluster meter --reset --latency-ms 20
took=$(milliseconds on_node n1 bash -c "cd /; exec stat $folder/five")
operations=$(($(counter n1 lookups) + $(counter n1 getattrs)))
assert_at_least 3 "$operations" "operations of a stat"
assert_at_least $((operations * 20)) "$took" "milliseconds for $operations operations"
cluster meter --latency-ms 0

test_case "permissions hold for the real user"
root_on_node n1 bash -c "echo secret >$folder/secret && chmod 600 $folder/secret && mkdir -m 700 $folder/closed"
assert_exit 1 on_node n2 cat $folder/secret
assert_contains "$output" "Permission denied"
assert_exit 1 on_node n2 touch $folder/closed/file
assert_exit 1 on_node n2 touch /mnt/shared/file
assert_exit 1 on_node n2 chown root $folder/five
assert_equal "secret" "$(root_on_node n2 cat $folder/secret)"

test_case "new files belong to their user and have the requested mode"
on_node n2 bash -c "umask 027; cd $folder && touch made && mkdir dir && ln -s made link && mkfifo pipe && ln made hard"
assert_equal "alice alice 640 made alice alice 750 dir alice alice 777 link alice alice 640 pipe alice alice 640 hard" \
  "$(on_node n3 bash -c "cd $folder && stat -c '%U %G %a %n' made dir link pipe hard" | xargs)"
root_on_node n1 bash -c "mkdir $folder/group && chgrp lockstep $folder/group && chmod 2777 $folder/group"
on_node n2 touch $folder/group/file
assert_equal "alice lockstep" "$(on_node n3 stat -c '%U %G' $folder/group/file)"
