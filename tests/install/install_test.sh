#!/usr/bin/env bash
# The installed files suffice: tools run from the prefix, and another CMake project builds and trains with find_package.
# Usage: install_test.sh BUILD_DIR
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
for tool in "$work"/prefix/bin/*; do
  "$tool" --version
  "$tool" --help >/dev/null
done
test -s "$work/prefix/lib/lockstep/lockstep.so"
"$here/../lint/links.py" "$work/prefix/share/doc/lockstep"

# The installed headers are those that programs include, and what these include: a new one needs a reason.
(
cd "$work/prefix/include/lockstep"
headers=$(find . -name '*.h' | sed 's|^\./||' | sort)
count=$(wc -l <<<"$headers")
if [ "$count" -gt 35 ]; then echo "$count headers are installed: keep those private that no program includes" >&2; exit 1; fi
missing=$(xargs sed -n 's/^#include "\(.*\)".*/\1/p' <<<"$headers" | sort -u | comm -23 - <(echo "$headers"))
if [ -n "$missing" ]; then echo "installed headers include headers that are not installed: $missing" >&2; exit 1; fi
)

# Into the folder of the sources nothing is installed.
mkdir -p "$work/sources/common/cmake" && touch "$work/sources/common/cmake/check-prefix.cmake.in"
for component in "" "--component tools"; do
  # shellcheck disable=SC2086  # an option and its value, or nothing
  if cmake --install "$build" --prefix "$work/sources" $component >"$work/install.log" 2>&1; then
    echo "installed over the sources" >&2
    exit 1
  fi
  tr -s " \n" " " <"$work/install.log" | grep -q "$work/sources is a folder of sources"
done
[ "$(find "$work/sources" -type f | wc -l)" = 1 ]

# An installation for another generation of LibTorch is not overwritten.
config=$(find "$work/prefix" -name lockstep-config.cmake)
cp -r "$work/prefix" "$work/other"
sed -i 's/^set(lockstep_TORCH_VERSION "[0-9]*/set(lockstep_TORCH_VERSION "99/' "$work/other${config#"$work/prefix"}"
find "$work/other" -type f -exec md5sum {} + >"$work/before"
if cmake --install "$build" --prefix "$work/other" >"$work/install.log" 2>&1; then
  echo "installed over a Lockstep for another LibTorch" >&2
  exit 1
fi
tr -s " \n" " " <"$work/install.log" | grep -q "contains a Lockstep for LibTorch 99"
md5sum --quiet -c "$work/before"

cmake -S "$here/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release \
  >"$work/configure.log" 2>&1 || { tail -n 30 "$work/configure.log" >&2; exit 1; }
cmake --build "$work/build" -j 2 >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log" >&2; exit 1; }

mkdir "$work/text"
for i in 1 2 3 4; do printf '\1\0\2\0\3\0%b\0' "\\x0$i" >"$work/text/$i.tokens"; done
"$work/prefix/bin/lockstep-pack" create "$work/text" --out "$work/pack" --token-bytes 2 >/dev/null
# It prints a line if it does not find the server of lockstep::prometheus, or cannot start it.
LOCKSTEP_PROMETHEUS=0 LOCKSTEP_RECORD=$work "$work/build/train" "$work/pack" 2>"$work/train.log" || { cat "$work/train.log" >&2; exit 1; }
if grep LOCKSTEP_PROMETHEUS "$work/train.log" >&2; then exit 1; fi

# A component asks only for the packages that it needs.
light() {
  { cmake -S "$here/light" -B "$work/light" -DCMAKE_PREFIX_PATH="$work/prefix" "$@" && cmake --build "$work/light"; } \
    >"$work/light.log" 2>&1 || { tail -n 30 "$work/light.log" >&2; exit 1; }
}
without_torch=(-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON)
light -DCOMPONENTS=record "${without_torch[@]}" -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON \
  -DCMAKE_DISABLE_FIND_PACKAGE_Threads=ON
rm -r "$work/light"
light "-DCOMPONENTS=pack;profile;record" "${without_torch[@]}"
mkdir "$work/record"
"$work/light/time_pack" "$work/pack" "$work/record"
"$work/light/read_record" "$work/record/copy"
