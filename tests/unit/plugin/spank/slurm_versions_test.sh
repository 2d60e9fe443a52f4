#!/usr/bin/env bash
# The plugin compiles with the headers of newer Slurm releases that Debian has, without warnings, and uses newer features
# where they are. The headers stay in BUILD/slurm-headers. Usage: slurm_versions_test.sh COMPILER BUILD
set -uo pipefail
source_root=$(cd "$(dirname "$0")/../../../.." && pwd)
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
compiler=$1
mkdir -p "$2/slurm-headers" || exit 1
folder=$(cd "$2/slurm-headers" && pwd)

# The archive of Debian that this machine uses.
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' 2>/dev/null | head -n 1)
if [ -z "$archive" ]; then
  echo "skipped: this machine knows no archive of Debian; apt-get update reads its index"
  exit 77
fi

# A separate folder keeps this machine's package lists as they are.
apt=(-o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$folder/lists"
  -o "Dir::Cache=$folder/cache" -o APT::Sandbox::User=root)
# fetch SUITE: unpacks libslurm-dev into $folder/SUITE.
fetch() {
  [ ! -e "$folder/$1" ] || return 0
  mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" || return 1
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $1 main" >"$folder/sources.list"
  (cd "$folder" && rm -rf libslurm-dev_*.deb "$1.new" && apt-get "${apt[@]}" update && apt-get "${apt[@]}" download libslurm-dev &&
    dpkg-deb -x libslurm-dev_*.deb "$1.new" && mv "$1.new" "$1") >"$folder/log" 2>&1
}

# compile HEADERS: compiles what includes Slurm's headers; prints the symbols of the callbacks.
compile() {
  local flags=(-std=c++20 -fPIC -fvisibility=hidden -Wall -Wextra -Wshadow -Werror -Wno-restrict -I "$source_root" -isystem "$1")
  (cd "$source_root" && printf '#include "%s"\n' plugin/spank/contexts/*.cpp plugin/spank/process/report_log.cpp) |
    "$compiler" "${flags[@]}" -fsyntax-only -Wno-subobject-linkage -x c++ - || return 1
  "$compiler" "${flags[@]}" -DLOCKSTEP_VERSION='"0"' -c "$source_root/plugin/spank/spank.cpp" -o "$folder/spank.o" && nm "$folder/spank.o"
}

tried=0
for suite in trixie sid; do
  if ! fetch $suite; then
    echo "$suite is left out: $(tail -n 1 "$folder/log")"
    continue
  fi
  headers=$folder/$suite/usr/include
  number=$(sed -n 's/^#define SLURM_VERSION_NUMBER //p' "$headers/slurm/slurm_version.h")
  version=$((number >> 16)).$((number >> 8 & 255)).$((number & 255))
  symbols=$(compile "$headers") || fail "Slurm $version"
  has=no
  ! grep -q ' D slurm_spank_init_failure_mode$' <<<"$symbols" || has=yes
  expected=no
  [ $((number)) -lt $((25 << 16 | 5 << 8)) ] || expected=yes
  [ $has = $expected ] || fail "Slurm $version: slurm_spank_init_failure_mode: $has, expected $expected"
  echo "Slurm $version: compiled"
  tried=$((tried + 1))
done
[ $tried -gt 0 ] || exit 77
