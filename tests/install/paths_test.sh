#!/usr/bin/env bash
# Paths with a space, a quote and a letter that is not ASCII: a tool is built in such a checkout, installed to such a prefix,
# and stages such a folder into such a store, on a cluster with such a state folder.
# Usage: paths_test.sh BUILD_DIR        Needs root; exit status 77: cannot run here.
LOCKSTEP_BUILD=$1
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/../cluster/lib.sh"
[ "$(id -u)" = 0 ] || exit 77

work=$(mktemp -d /var/tmp/lockstep-paths.XXXXXX)
odd="$work/it's a café"
mkdir "$odd"
chmod 755 "$work" "$odd"
trap 'rm -rf "$work"' EXIT
quietly() { "$@" >"$work/log" 2>&1 || fail "$(tail -n 20 "$work/log")"; }

test_case "the presets configure and compile in such a checkout"
checkout=$odd/lockstep
mkdir "$checkout"
(cd "$source_root" && source tests/lint/files.sh && list_files '*' | tar -cf - --verbatim-files-from -T -) | tar -C "$checkout" -xf -
cd "$checkout" || exit 1
export CCACHE_BASEDIR=$checkout CCACHE_NOHASHDIR=1
quietly cmake --preset user
quietly cmake --build --preset user --target lockstep_leaf
! grep -q "${work##*/}" build/user/lib/liblockstep_leaf.a || fail "the user preset left the path of the checkout in a library"
# As tests/run.sh does, so that the compiler cache has these units.
quietly cmake --preset release -DLOCKSTEP_WERROR=ON -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8 -DLOCKSTEP_BUILD_RUNTIME=OFF -DLOCKSTEP_BUILD_COMM=OFF
quietly cmake --build --preset release --target lockstep-stage

test_case "the tools install to such a prefix"
prefix=$odd/prefix
quietly cmake --install "$build" --prefix "$prefix" --component tools
rm -rf "$prefix"/lib/lockstep/[0-9]* # these copies of the helpers would be taken first
install "$checkout/build/release/bin/lockstep-stage" "$prefix/bin/"

test_case "a job stages such a folder into such a store"
source_root=$checkout # the cluster's scripts are those of that checkout
cluster_name=paths$$
trap 'cluster down >/dev/null; rm -rf "$work"' EXIT
quietly cluster up --state "$odd/state" --prefix "$prefix" --nodes 1 --metered-fs "$build/bin/metered-fs"
as_root sed -i "s|^cache = .*|cache = /mnt/local/l'été au lac|" /etc/lockstep/lockstep.conf
on_head mkdir "l'eau et le thé"
on_head tee "l'eau et le thé/un verre d'été" <<<"fresh" >/dev/null
# shellcheck disable=SC2016  # expands in the task
staged=$(on_head srun -N1 --stage="l'eau et le thé" sh -c 'readlink -f "$LOCKSTEP_DATA" && cat "$LOCKSTEP_DATA"/*/*' 2>&1) || fail "$staged"
assert_contains "$staged" "/mnt/local/l'été au lac/"
assert_contains "$staged" "fresh"
