#!/usr/bin/env bash
# Ends the cluster that the tests share. Fails if a node is drained, down or busy.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

nodes=$(wait_until 20 sinfo_all_idle || on_head sinfo -h -N -o '%N %T %E')
cluster down || exit 1
[ -z "$nodes" ] || fail "a test left nodes that are not idle: $nodes"
