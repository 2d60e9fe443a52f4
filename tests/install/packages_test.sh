#!/usr/bin/env bash
# The Debian packages: built, complete, without lintian's errors, installed by dpkg in an overlay of this system's root, and
# their programs run there. Needs root. The packages stay in BUILD_DIR/packages for the cluster test.
# Usage: packages_test.sh BUILD_DIR
set -euo pipefail
build=$(readlink -f "$1")
source_root=$(cd "$(dirname "$0")/../.." && pwd)
packages=$build/packages

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

if [ "${2:-}" = --installed ]; then # in the overlay
  cd /
  # Packages that this machine lacks are not downloaded; the sources need the same libraries.
  dpkg --no-triggers --log=/dev/null -i "$packages"/*.deb >/tmp/dpkg.log 2>&1 || fail "dpkg -i: $(cat /tmp/dpkg.log)"
  dpkg --verify lockstep-plugin lockstep-tools lockstep-exporter liblockstep-dev | grep . && fail "dpkg --verify found the differences above"
  getent group lockstep >/dev/null || fail "no group lockstep"
  [ "$(getent passwd lockstep | cut -d: -f7)" = /usr/sbin/nologin ] || fail "user lockstep: $(getent passwd lockstep)"
  [ -L /etc/systemd/system/local-fs.target.wants/run-lockstep.mount ] || fail "run-lockstep.mount is not enabled in a chroot"
  [ "$(stat -c '%a %G' /run/lockstep/records)" = "751 lockstep" ] || fail "/run/lockstep/records: $(stat -c '%a %G' /run/lockstep/records)"
  for tool in $(dpkg -L lockstep-plugin lockstep-tools lockstep-exporter | grep '^/usr/bin/'); do
    [[ $($tool --version) == "${tool##*/} "* ]] || fail "$tool --version"
    man -w "${tool##*/}" >/dev/null 2>&1 || [ -s "/usr/share/man/man1/${tool##*/}.1.gz" ] || fail "no man page of $tool"
    bash -n "/usr/share/bash-completion/completions/${tool##*/}" || fail "completion of $tool"
  done
  mkdir /tmp/data && printf '\1\0\2\0' >/tmp/data/a.tokens
  lockstep-pack create /tmp/data --out /tmp/pack --token-bytes 2 >/dev/null
  lockstep-stage put /tmp/pack --cache /tmp/cache --json | grep -q '"hit":false' || fail "lockstep-stage put"
  # The completion offers verbs first, then the verb's options.
  # shellcheck source=/dev/null
  source /usr/share/bash-completion/completions/lockstep-stage
  COMP_WORDS=(lockstep-stage pre) COMP_CWORD=1 && _lockstep_stage
  [ "${COMPREPLY[*]}" = prefetch ] || fail "completion of a verb: ${COMPREPLY[*]}"
  COMP_WORDS=(lockstep-stage prefetch --ev) COMP_CWORD=2 && _lockstep_stage
  [ "${COMPREPLY[*]}" = --everyone ] || fail "completion of an option: ${COMPREPLY[*]}"
  # The doctor's remedies name files that the packages have, and the include line that is missing.
  echo "# no include" >/etc/slurm/plugstack.conf
  echo nonsense >/tmp/broken.conf
  report=$(lockstep-doctor --config /tmp/broken.conf) && fail "the doctor accepted /tmp/broken.conf"
  files=$(grep -oE '/(usr|etc)/[^ ;,:]*lockstep[^ ;,:]*' <<<"$report")
  grep -q /usr/share/lockstep/lockstep.conf <<<"$files" || fail "the doctor names no sample: $report"
  for file in $files; do [ -e "$file" ] || fail "the doctor names $file, which no package has: $report"; done
  grep -q "error: plugin: .* does not include /etc/slurm/plugstack.conf.d/lockstep.conf" <<<"$report" || fail "no word about the include line: $report"
  # A user's program builds with pkg-config.
  mkdir /tmp/record
  # shellcheck disable=SC2046  # split on purpose
  g++ -O0 "$source_root/tests/install/light/time_pack.cpp" -o /tmp/time_pack $(pkg-config --cflags --libs lockstep) || fail "a build with pkg-config"
  /tmp/time_pack /tmp/pack /tmp/record || fail "a program built with pkg-config"
  # With systemd, an upgrade restarts the units that run, and a removal stops them.
  mkdir -p /run/systemd/system
  # shellcheck disable=SC2016  # expands in the script
  printf '#!/bin/sh\necho "$*" >>/tmp/systemctl.calls\n' >/tmp/systemctl
  chmod 755 /tmp/systemctl
  PATH=/tmp:$PATH dpkg --no-triggers --log=/dev/null -i "$packages"/lockstep-exporter_*.deb >/dev/null
  PATH=/tmp:$PATH dpkg --no-triggers --log=/dev/null --remove lockstep-exporter >/dev/null
  expected="--system daemon-reload;--system try-restart lockstep-exporter.service;--system disable --now lockstep-exporter.service;"
  [ "$(tr '\n' ';' </tmp/systemctl.calls)" = "$expected" ] || fail "calls of systemctl: $(cat /tmp/systemctl.calls)"
  rmdir /run/systemd/system  # a chroot again: systemctl must not look for a bus
  # A changed configuration survives the removal of the package, and a purge removes it.
  echo "# mine" >>/etc/lockstep/lockstep.conf
  dpkg --no-triggers --log=/dev/null --remove lockstep-plugin >/dev/null
  tail -n 1 /etc/lockstep/lockstep.conf | grep -q mine || fail "removing the package removed lockstep.conf"
  dpkg --no-triggers --log=/dev/null --purge lockstep-plugin >/dev/null
  [ ! -e /etc/lockstep/lockstep.conf ] || fail "purging the package left lockstep.conf"
  ! find /etc/systemd -name 'run-lockstep*' | grep . || fail "removing the package left the mount unit enabled"
  # The documented command removes the others too, although some packages are not installed.
  purge=$(sed -n "s/^\(apt-get purge '[^']*'\).*/\1/p" "$source_root/docs/admins/install.md")
  eval "$purge -y" >/tmp/purge.log 2>&1 || fail "$purge: $(cat /tmp/purge.log)"
  left=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' | grep lockstep || true)
  [ -z "$left" ] || fail "$purge left $left"
  exit 0
fi

if [ "$(id -u)" != 0 ]; then
  echo "skipped: needs root"
  exit 77
fi
rm -rf "$packages"/*.deb "$build/manuals" # man pages of an earlier run may be those of its second build
cmake --build "$build" --target packages >"$build/packages.log" 2>&1 || fail "cannot build the packages: $(tail -n 20 "$build/packages.log")"

# contains PACKAGE PATH...: files that the package must hold.
contains() {
  local list package=$1 path
  list=$(dpkg-deb -c "$packages/${package}_"*.deb | awk '{ print $1, $2, $6 }')
  shift
  for path in "$@"; do grep -q "^-[^ ]* root/root \./$path$" <<<"$list" || fail "$package lacks $path: $list"; done
  ! grep -v -E '^[dl-][^ ]* root/root ' <<<"$list" || fail "$package has files that do not belong to root"
}
contains lockstep-plugin usr/lib/lockstep/lockstep.so usr/bin/lockstep-pin usr/bin/lockstep-stage etc/lockstep/lockstep.conf \
  etc/slurm/plugstack.conf.d/lockstep.conf usr/lib/sysusers.d/lockstep-plugin.conf usr/lib/systemd/system/lockstep-gc.service \
  usr/lib/systemd/system/run-lockstep.mount \
  usr/share/man/man7/lockstep-plugin.7.gz usr/share/man/man1/lockstep-stage.1.gz
[ ! -e "$build/bin/lockstep-doctor" ] || contains lockstep-plugin usr/bin/lockstep-doctor
# apt installs what users need, but not Slurm: many sites have one of their own.
for package in "$packages"/*.deb; do
  case "$(basename "$package")" in
    lockstep-plugin_*) expected=munge ;;
    lockstep-tools_*) expected=python3 ;;
    liblockstep_*) expected="libopenblas0-pthread, openmpi-bin" ;;
    *) expected= ;;
  esac
  [ "$(dpkg-deb -f "$package" Recommends)" = "$expected" ] || fail "$package recommends $(dpkg-deb -f "$package" Recommends)"
done
# The table of install.md names what the packages of this release of Debian need.
release=$(sed -n 's/^VERSION_ID="\(.*\)"/\1/p' /etc/os-release)
column=$(sed -n '/^| package | Debian/p' "$source_root/docs/admins/install.md" | tr '|' '\n' | grep -n "Debian $release" | cut -d: -f1)
[ -n "$column" ] || fail "install.md has no column for Debian $release"
for package in lockstep-plugin lockstep-exporter lockstep-tools liblockstep; do
  listed=$(sed -n "/^| .$package.: /p" "$source_root/docs/admins/install.md" | cut -d'|' -f"$column" | tr -d '\140' | xargs -n 1 | sort -u)
  # Not what each Debian has, or systemd.
  needed=$(for field in Depends Recommends; do dpkg-deb -f "$packages/${package}_"*.deb $field; done | tr ',' '\n' |
    sed 's/(.*//; s/|.*//' | xargs -n 1 | grep -vxE 'libc6|libgcc-s1|libstdc[+][+]6|systemd' | sort -u)
  [ "$listed" = "$needed" ] || fail "install.md lists for $package: $(xargs <<<"$listed"); it needs: $(xargs <<<"$needed")"
done
contains lockstep-plugin usr/share/lockstep/lockstep.conf
contains lockstep-tools usr/bin/lockstep-pack usr/bin/lockstep-plan usr/bin/lockstep-report usr/bin/lockstep-run usr/share/lockstep/python/lockstep.py usr/share/lockstep/python/lockstep_batches.py \
  usr/share/doc/lockstep/README.md usr/share/doc/lockstep/SECURITY.md usr/share/doc/lockstep/docs/images/report.png
contains lockstep-exporter usr/bin/lockstep-exporter usr/lib/systemd/system/lockstep-exporter.service \
  usr/lib/sysusers.d/lockstep.conf usr/lib/tmpfiles.d/lockstep.conf usr/share/lockstep/lockstep.rules.yml \
  usr/share/lockstep/provisioning.yaml usr/share/lockstep/dashboards/lockstep-job.json
contains liblockstep-dev usr/include/lockstep/runtime/lockstep.h usr/lib/cmake/lockstep/lockstep-config.cmake usr/lib/pkgconfig/lockstep.pc

work=$(mktemp -d)
trap 'umount -R "$work" 2>/dev/null || true; rm -rf "$work"' EXIT
for package in "$packages"/*.deb; do
  dpkg-deb -x "$package" "$work/x"
  # Every path in a text file is that of the installation.
  ! grep -rIE "@[A-Z_]+@|/opt/lockstep|$build|_CPack" "$work/x/etc" "$work/x/usr/lib/systemd" "$work/x/usr/share/lockstep" 2>/dev/null ||
    fail "$package: the paths above are not those of the package"
done
# Each program and shared library resolves its symbols at its start, and checks stacks and the sizes of buffers.
programs=0
while read -r file; do
  readelf -hW "$file" >/dev/null 2>&1 || continue # a script
  grep -Eq 'BIND_NOW|FLAGS_1.*NOW' <<<"$(readelf -dW "$file")" || fail "${file#"$work/x"} resolves symbols late"
  for check in __stack_chk_fail '__[a-z]+_chk'; do
    grep -Eq " U $check(@|$)" <<<"$(nm -D "$file")" || fail "${file#"$work/x"} has no call of $check: build it with _FORTIFY_SOURCE and stack protection"
  done
  programs=$((programs + 1))
done < <(find "$work/x" -type f \( -path '*/bin/*' -o -name '*.so*' \))
[ "$programs" -ge 8 ] || fail "only $programs programs and shared libraries were found in the packages"

grep -q '^ExecStart=/usr/bin/lockstep-exporter ' "$work/x/usr/lib/systemd/system/lockstep-exporter.service" || fail "path in the unit"
grep -q 'path: /usr/share/lockstep/dashboards' "$work/x/usr/share/lockstep/provisioning.yaml" || fail "path in provisioning.yaml"

# Each alert's runbook_url names a page and a section that the packages have.
urls=$(sed -n 's|.*runbook_url: "file://\(.*\)"|\1|p' "$work/x/usr/share/lockstep/lockstep.rules.yml")
[ -n "$urls" ] || fail "the alerts have no runbook_url"
while IFS='#' read -r page section; do
  grep -qi "^## $section$" "$work/x$page" || fail "the packages lack $page#$section"
done <<<"$urls"

# Built again, by another user's shell on another host, the packages are the same to the byte, man pages included.
sha256sum "$packages"/*.deb >"$work/sums"
rm -r "$build/manuals"
(umask 077 && TZ=Asia/Tokyo USER=other HOSTNAME=elsewhere unshare --uts sh -c 'hostname elsewhere; exec cmake --build "$0" --target packages' "$build") \
  >"$build/packages.log" 2>&1 || fail "cannot build the packages again: $(tail -n 20 "$build/packages.log")"
sha256sum --quiet -c "$work/sums" || fail "the packages above differ from those of the first build"

# Without help2man, the build says that there are no man pages.
printf 'cmake_minimum_required(VERSION 3.22)\nproject(lockstep NONE)\ninclude(%s/common/cmake/LockstepManuals.cmake)\n' "$source_root" \
  >"$work/CMakeLists.txt"
cmake -G Ninja -S "$work" -B "$work/manuals" -DLOCKSTEP_HELP2MAN=OFF >"$work/manuals.log" 2>&1 || fail "$(cat "$work/manuals.log")"
cmake --build "$work/manuals" --target manuals >>"$work/manuals.log" 2>&1 || fail "$(cat "$work/manuals.log")"
grep -q 'help2man is not installed, so there are no man pages' "$work/manuals.log" || fail "no word about help2man: $(cat "$work/manuals.log")"

if command -v lintian >/dev/null; then
  errors=$(lintian --fail-on none --tag-display-limit 0 --allow-root "$packages"/*.deb 2>/dev/null | grep '^E:' || true)
  [ -z "$errors" ] || fail "lintian: $errors"
else
  echo "lintian is not installed: not run"
fi

# An overlay of this system's root, in memory: dpkg checks the dependencies against the packages of this machine.
mkdir "$work/layer"
# shellcheck disable=SC2016  # expands inside
unshare --mount --propagation private bash -c '
  set -e
  mount -t tmpfs tmpfs "$1/layer" && mkdir "$1/layer/"{upper,work,root}
  mount -t overlay overlay -o "lowerdir=/,upperdir=$1/layer/upper,workdir=$1/layer/work" "$1/layer/root"
  mount --rbind /proc "$1/layer/root/proc" && mount --rbind /dev "$1/layer/root/dev"
  mount -t tmpfs tmpfs "$1/layer/root/tmp" && mount -t tmpfs tmpfs "$1/layer/root/run"
  for folder in "$3" "$2"; do mkdir -p "$1/layer/root/$folder" && mount --bind "$folder" "$1/layer/root/$folder"; done
  exec chroot "$1/layer/root" "$3/tests/install/packages_test.sh" "$2" --installed' bash "$work" "$build" "$source_root"
echo "installed, used and removed: $(cd "$packages" && echo *.deb)"

cd "$source_root"
if git rev-parse HEAD >/dev/null 2>&1; then
  cmake --build "$build" --target source-archive >/dev/null
  first=$(sha256sum "$packages"/lockstep-*.tar.gz)
  cmake --build "$build" --target source-archive >/dev/null
  [ "$first" = "$(sha256sum "$packages"/lockstep-*.tar.gz)" ] || fail "the source archive differs between two runs"
  if command -v rpmbuild >/dev/null; then
    rpmbuild --define "_topdir $work/rpm" --nodeps -ts "$packages"/lockstep-*.tar.gz >"$work/rpm.log" 2>&1 || fail "rpmbuild: $(tail -n 5 "$work/rpm.log")"
    [ -e "$work"/rpm/SRPMS/lockstep-"$(basename "$packages"/lockstep-*.tar.gz .tar.gz | cut -d- -f2)"-1.src.rpm ] || fail "the spec has another version"
  fi
fi
