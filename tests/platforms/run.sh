#!/usr/bin/env bash
# Builds and tests this checkout in a root of another Debian release, on this machine's kernel. The root is made with
# debootstrap from this machine's package sources; then tests/run.sh runs in it, which installs what it needs, so a package
# that no list names is noticed. build/platforms/NAME keeps the root, its packages and its build; when a list of packages
# changes, a run of the tests makes the root again. The root is used in namespaces of its own: processes and mounts end with
# the run.
# Usage: tests/platforms/run.sh NAME [--fresh] [--json] [--record] [ctest options]
#        tests/platforms/run.sh NAME [--fresh] --exec COMMAND...      runs a command in the root, in this checkout
# NAME is bookworm (Debian 12), trixie (13) or forky (testing); or arm64, which runs tests/platforms/arm64.sh in a root of
# Debian 13 and has no result. --fresh makes the root again. --json prints the result as the last line. --record writes it to
# docs/platforms, and the table of docs/supported.md from it. Needs root.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/../.." && pwd)

fail() {
  echo "tests/platforms/run.sh: $*" >&2
  exit 1
}
usage() {
  sed -n 's/^# Usage: //p; s/^#        //p' "$0" >&2
  exit 2
}

platform=${1:-}
suite=$platform
script=$platform
case $platform in
  bookworm | trixie) ;;
  forky) script=sid ;; # an older debootstrap does not know its name
  arm64) suite=trixie script=trixie ;;
  *) usage ;;
esac
shift
fresh=no
json=no
record=no
exec=no
while [ $# -gt 0 ]; do
  case $1 in
    --fresh) fresh=yes ;;
    --json) json=yes ;;
    --record) record=yes ;;
    --exec)
      exec=yes
      shift
      break
      ;;
    *) break ;;
  esac
  shift
done
[ $exec = no ] || [ $# -gt 0 ] || usage
[ "$(id -u)" = 0 ] || fail "needs root, to make namespaces and mounts"

# Git refuses a folder of another user. This one is root's choice, also for the tests that ask git.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=$checkout
work=$checkout/build/platforms/$platform
root=$work/root
mkdir -p "$work"/{archives,build,cache/ccache}

# Makes $root as debootstrap leaves it: without any package that the lists must name.
make_root() {
  local bare=$work/bare.tar
  rm -rf --one-file-system "$root" "$root.partial"
  mkdir "$root.partial"
  if [ ! -e "$bare" ]; then
    command -v debootstrap >/dev/null || apt-get install -y debootstrap >"$work/debootstrap.log" 2>&1 ||
      { apt-get update && apt-get install -y debootstrap; } >"$work/debootstrap.log" 2>&1 ||
      fail "cannot install debootstrap; the log is $work/debootstrap.log"
    local mirror
    # The first source of this machine for a release of Debian itself, not for its updates.
    mirror=$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
      awk '$1 == "Debian" && $2 !~ /-/ { print $3; exit }')
    [ -n "$mirror" ] || fail "this machine's package sources do not name a mirror of Debian"
    echo "making a root of $platform"
    debootstrap --variant=minbase --cache-dir="$work/archives" "$suite" "$root.partial" "$mirror" \
      "/usr/share/debootstrap/scripts/$script" >"$work/debootstrap.log" 2>&1 ||
      fail "debootstrap failed; the log is $work/debootstrap.log"
    # Uses the network as this machine does.
    echo force-unsafe-io >"$root.partial/etc/dpkg/dpkg.cfg.d/unsafe-io" # nobody keeps the root after a power failure
    cp /etc/hosts /etc/resolv.conf "$root.partial/etc/"
    apt-config dump | grep -E '^Acquire::(Check-|Languages|http|https|Retries)' >"$root.partial/etc/apt/apt.conf.d/90machine" || true
    # For mirrors by https: apt needs certificates before it can install the package that has them.
    local file
    for file in /usr/local/share/ca-certificates /etc/ssl/certs/ca-certificates.crt; do
      if [ -e $file ]; then mkdir -p "$root.partial${file%/*}" && cp -r $file "$root.partial${file%/*}/"; fi
    done
    tar -C "$root.partial" -cf "$bare.partial" .
    mv "$bare.partial" "$bare"
  else
    tar -C "$root.partial" -xpf "$bare"
  fi
  rm -rf "$work/cache/lockstep" # what the tests install with pip is installed again, from pip's cache
  mv "$root.partial" "$root"
}

lists=$({
  "$checkout/examples/packages.sh" --list build cluster corpus monitoring package test peers pip
  cat "$checkout"/tests/*/packages.sh
} | sha256sum)
exec 8>"$work/lock"
if [ $fresh = yes ] || [ ! -d "$root" ] || [[ $exec = no && $(cat "$work/lists" 2>/dev/null) != "$lists" ]]; then
  flock -n 8 || fail "$root must be made again, but another run uses it"
  make_root
  echo "$lists" >"$work/lists"
fi
flock -s 8

# The checkout has the same path in the root; only its build folder is another. A worktree's repository is elsewhere.
binds=("$checkout" "$checkout" "$work/build" "$checkout/build" "$work/archives" /var/cache/apt/archives "$work/cache" /root/.cache)
if ccache=$(ccache --get-config cache_dir 2>/dev/null) && [ -d "$ccache" ]; then binds+=("$ccache" /root/.cache/ccache); fi
if repository=$(git -C "$checkout" rev-parse --path-format=absolute --git-common-dir 2>/dev/null) &&
  [[ $repository != "$checkout"/* ]]; then
  binds+=("$repository" "$repository")
fi
environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "TERM=${TERM:-dumb}")
for name in $(compgen -e | grep -E '^(CI|CTEST_.*|GIT_CONFIG_.*|PIP_.*|OPENBLAS_.*|[a-z]+_proxy)$' || true); do
  environment+=("$name=${!name}")
done

# in_root COMMAND...: without pivot_root, programs in the root could not make mount namespaces. In the background, because
# unshare and its first process ignore SIGTERM.
in_root() {
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount --pid --fork --kill-child --ipc --uts bash -c '
    set -euo pipefail
    root=$1 checkout=$2 count=$3
    shift 3
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    while [ "$count" -gt 0 ]; do
      mkdir -p "$root$2"
      mount --bind "$1" "$root$2"
      shift 2
      count=$((count - 2))
    done
    cd "$root"
    mkdir -p .old
    pivot_root . .old
    umount -l /.old
    cd "$checkout"
    exec env -i "$@"' in_root "$root" "$checkout" ${#binds[@]} "${binds[@]}" "${environment[@]}" "$@" <&0 &
  # shellcheck disable=SC2064  # this process
  trap "kill -KILL $!; exit 143" HUP INT TERM
  wait $!
}

if [ $exec = yes ]; then
  in_root "$@"
  exit
fi
if [ "$platform" = arm64 ]; then
  handlers=/proc/sys/fs/binfmt_misc
  # What arm64.sh registers is the kernel's, so it would outlive the root, whose processes may be killed.
  trap 'unshare --mount sh -c "mount -t binfmt_misc none $handlers; echo -1 >$handlers/lockstep-arm64" 2>/dev/null || true' EXIT
  in_root tests/platforms/arm64.sh "$@"
  exit
fi

commit=$(git -C "$checkout" describe --always --abbrev=8 --exclude '*' --dirty 2>/dev/null) || commit=unknown
if [ $record = yes ]; then
  [[ $commit != unknown && $commit != *-dirty ]] || fail "--record needs a checkout by git without uncommitted changes"
  [ $# = 0 ] || ! grep -qs '"options": ""' "$checkout/docs/platforms/$platform.json" ||
    fail "docs/platforms/$platform.json has the result of all tests: --record a run without ctest options, or remove it"
fi
begin=$SECONDS
status=0
rm -f "$work"/build/release/tests*.xml
in_root tests/run.sh "$@" || status=$?
[ -e "$work/build/release/tests.xml" ] || fail "tests/run.sh ended with $status before it ran a test"
result=$("$checkout/tests/platforms/result.py" "$platform" "$root" "$work/build/release" $((SECONDS - begin)) "$commit" $record "$*")
[ $json = no ] || echo "$result"
exit $status
