#!/usr/bin/env bash
# Which systems the README's commands take: examples/packages.sh, which both start with, is silent on Debian 12 and 13, says
# that another release was not tried and goes on, and refuses a system without apt. In namespaces with another os-release.
# Usage: systems_test.sh SOURCE_DIR        Needs root; exit status 77: cannot run here.
set -euo pipefail
cd "$1"
[ "$(id -u)" = 0 ] || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*" >&2
  cat "$work/out" >&2
  exit 1
}

# on NAME VERSION_CODENAME COMMAND...: its output is in $work/out.
on() {
  printf 'PRETTY_NAME="%s"\nVERSION_CODENAME=%s\n' "$1" "$2" >"$work/os-release"
  shift 2
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount bash -c 'mount --bind "$1" /etc/os-release && shift && exec "$@"' bash "$work/os-release" "$@" >"$work/out" 2>&1
}
unshare --mount true 2>/dev/null || exit 77
# This group is installed, or the tests of the plugin would not have been built.
installed=(examples/packages.sh corpus)

on "Debian GNU/Linux 12 (bookworm)" bookworm "${installed[@]}" || fail "Debian 12 was refused"
[ ! -s "$work/out" ] || fail "a word about Debian 12"
on "Debian GNU/Linux 13 (trixie)" trixie "${installed[@]}" || fail "Debian 13 was refused"
[ ! -s "$work/out" ] || fail "a word about Debian 13"
on "Ubuntu 26.04 LTS" resolute "${installed[@]}" || fail "Ubuntu was refused"
[ "$(cat "$work/out")" = "packages.sh: not tried here: Ubuntu 26.04 LTS; the tests run on Debian 12 and 13" ] ||
  fail "Ubuntu is not named"

# A PATH with all programs of this machine but apt-get, as on a system that is not Debian's.
mkdir "$work/bin"
ln -s /usr/bin/* /usr/sbin/* "$work/bin/" 2>/dev/null || true
rm -f "$work/bin/apt-get"
if on "Fedora Linux 44" "" env PATH="$work/bin" "${installed[@]}"; then fail "a system without apt-get was not refused"; fi
grep -q "this system is not Debian; install the equivalents" "$work/out" || fail "the refusal does not say what to install"
if on "Fedora Linux 44" "" env PATH="$work/bin" examples/quickstart.sh; then fail "the quickstart did not refuse it"; fi
grep -q "quickstart: needs Debian 12 or 13; docs/users/own-cluster.md" "$work/out" || fail "the quickstart's refusal is another"
echo "Debian 12 and 13, another release, and a system without apt: as documented"
