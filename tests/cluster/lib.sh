# shellcheck shell=bash
# Functions for the tests on the embedded cluster. A test is a script that sources this file and makes assertions; the
# first assertion that fails ends it with one line. It uses the running cluster `tests` (4 nodes, with the programs of the
# build tree; ctest runs up.sh before the tests and down.sh after them) or starts its own.
#
#   source "$(dirname "$0")/lib.sh"
#   test_case "ordinary user's job runs on two nodes"
#   assert_equal "alice alice" "$(on_head srun -N2 id -un | xargs)"
#
# LOCKSTEP_TEST_CLUSTER names another cluster (if two people use one machine); LOCKSTEP_BUILD names another build folder.
set -uo pipefail
source_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${LOCKSTEP_BUILD:-$source_root/build/release}
cluster_name=${LOCKSTEP_TEST_CLUSTER:-tests}
prefix=$build/tests/cluster/$cluster_name/prefix
state=$build/tests/cluster/$cluster_name/state
# /mnt/shared as the host sees it: access here does not go through the meter.
# shellcheck disable=SC2034  # for the tests
shared=$state/shared
current_case=

# Runs `cluster VERB [options]` on this test's cluster.
cluster() {
  local verb=$1
  shift
  "$source_root/tests/cluster/embedded/cluster" "$verb" --name "$cluster_name" "$@"
}

# Run a command inside the cluster: on the head or on a node, as alice, bob or root.
on_head() { cluster exec -- "$@"; }
as_bob() { cluster exec --user bob -- "$@"; }
on_node() {
  local node=$1
  shift
  cluster exec --node "$node" -- "$@"
}
as_root() { cluster exec --user root -- "$@"; }
root_on_node() {
  local node=$1
  shift
  cluster exec --user root --node "$node" -- "$@"
}

# Starts a cluster for this test, which ends with the script: own_cluster [options of cluster up].
own_cluster() {
  cluster_name=t$$-$((RANDOM % 1000))
  state=$(mktemp -d "/var/tmp/lockstep-$cluster_name.XXXXXX")
  # shellcheck disable=SC2034  # for the tests
  shared=$state/shared
  trap 'cluster down; rm -rf "$state"' EXIT
  cluster up --state "$state" "$@"
}

test_case() {
  current_case=$1
  echo "-- $1"
}

fail() {
  echo "FAILED: ${current_case:+$current_case: }$*" >&2
  exit 1
}

assert_equal() { [ "$1" = "$2" ] || fail "${3:-expected}: expected '$1', got '$2'"; }
assert_contains() { [[ $1 == *"$2"* ]] || fail "'$2' is not in: $1"; }
assert_lacks() { [[ $1 != *"$2"* ]] || fail "'$2' is in: $1"; }
assert_at_least() { [ "$2" -ge "$1" ] || fail "${3:-expected}: at least $1, got $2"; }
assert_at_most() { [ "$2" -le "$1" ] || fail "${3:-expected}: at most $1, got $2"; }

# assert_exit CODE COMMAND...: stores the output of the command, from both streams, in $output.
assert_exit() {
  local expected=$1 code=0
  shift
  output=$("$@" 2>&1) || code=$?
  [ "$code" = "$expected" ] || fail "$*: exit code $code, expected $expected; output: $output"
}

# assert_within SECONDS COMMAND...: repeats the command until it succeeds; fails if that takes longer.
assert_within() { wait_until "$@" || fail "after $1 s this still fails: ${*:2}"; }

wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.05
  done
}

# submit [options of sbatch] <SCRIPT: prints the job's number. The job's output goes to job-NUMBER.out in alice's home.
submit() { cluster exec -- sbatch --parsable --output=job-%j.out "$@"; }

# Prints state and exit code of a job, as "COMPLETED 0:0".
job_state() {
  on_head scontrol --oneliner show job "$1" | sed -E 's/.* JobState=(\S+) .* ExitCode=(\S+) .*/\1 \2/'
}

job_ended() { [[ $(job_state "$1") != @(PENDING|RUNNING|COMPLETING|CONFIGURING)* ]]; }
await_job() { assert_within "${2:-60}" job_ended "$1"; }
job_output() { on_head cat "job-$1.out"; }

# token_packs FOLDER: makes the packs manpages and manpages-heldout of text_lm there, with 300 short samples each.
token_packs() {
  local raw name
  raw=$(mktemp -d)
  for name in manpages manpages-heldout; do
    python3 - "$raw/$name" <<'PYTHON'
import pathlib, struct, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
for i in range(300):
    (folder / f"{i}.tokens").write_bytes(b"".join(struct.pack("<H", (3 * i + t) % 50) for t in range(20 + i % 40)))
PYTHON
    "$build/bin/lockstep-pack" create "$raw/$name" --token-bytes 2 --out "$1/$name" >/dev/null || fail "cannot make $name"
  done
  rm -rf "$raw"
}

# home_program NAME FOLDER: copies a program of the build into a folder of alice's home.
home_program() {
  on_head sh -c "mkdir -p $2 && cat >$2/$1 && chmod +x $2/$1" <"$build/bin/$1"
}

# value EXPRESSION: prints the value of its first sample in Prometheus.
value() {
  on_head curl -sG --data-urlencode "query=$1" http://localhost:9090/api/v1/query |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["result"][0]["value"][1])' 2>/dev/null
}
value_is() { [ "$(value "$2")" = "$1" ]; }
value_exceeds() { python3 -c 'import sys; sys.exit(not float(sys.argv[1]) > float(sys.argv[2]))' "$(value "$2")" "$1"; }

# True if all nodes are idle: none is drained or down.
sinfo_all_idle() { [ "$(on_head sinfo -h -N -o %T | sort -u)" = idle ]; }
assert_all_idle() {
  wait_until "${1:-20}" sinfo_all_idle || fail "not all nodes are idle: $(on_head sinfo -h -N -o '%N %T %E' | xargs)"
}
