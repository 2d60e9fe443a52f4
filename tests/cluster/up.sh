#!/usr/bin/env bash
# Installs the build tree's programs and starts the cluster that the tests share. Run it again after a build: the running
# cluster then sees the new files.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

mkdir -p "$prefix" || exit 1
if ! log=$(cmake --install "$build" --prefix "$prefix" --component tools 2>&1); then
  # A build of one part is enough to test that part.
  echo "not everything is built, taking what is there: $(tail -n 1 <<<"$log")"
  mkdir -p "$prefix/bin" "$prefix/lib/lockstep"
  find "$build/bin" -maxdepth 1 -name 'lockstep-*' -exec cp -f -t "$prefix/bin" {} +
  mkdir -p "$prefix/share/lockstep/python"
  cp -f "$source_root"/exporters/python/lockstep*.py "$prefix/share/lockstep/python"
  cp -f "$source_root/exporters/rules/lockstep.rules.yml" "$prefix/share/lockstep"
  find "$build/lib" -maxdepth 1 -name lockstep.so -exec cp -f -t "$prefix/lib/lockstep" {} +
fi
# The tests replace helpers in bin/. Those of the plugin's own version would be taken first (spank_test covers that).
rm -rf "$prefix"/lib/lockstep/[0-9]*

# A measurement (tests/bench/stage_nodes.sh) sets the number of nodes, which then have one CPU each and no Prometheus.
options=(--nodes 4)
if command -v prometheus >/dev/null; then options+=(--prometheus); fi
[ -z "${LOCKSTEP_TEST_NODES:-}" ] || options=(--nodes "$LOCKSTEP_TEST_NODES" --cpus 1 --timeout 240)
cluster up --state "$state" --prefix "$prefix" "${options[@]}"
