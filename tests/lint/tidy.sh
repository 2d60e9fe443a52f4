#!/usr/bin/env bash
# clang-tidy over the sources that do not include LibTorch (a minute each there, most of it LibTorch's own headers).
# A file is looked at again only when it, a header it includes, the settings or the tool have changed, also from another
# clone: what has passed is remembered in $XDG_CACHE_HOME/lockstep/tidy, or ~/.cache/lockstep/tidy.
# Usage: tidy.sh BUILD_DIR
set -euo pipefail
build=$(realpath "${1:?Usage: tidy.sh BUILD_DIR}")
# shellcheck source=tests/lint/files.sh
. "$(dirname "$0")/files.sh"
need clang-tidy clang-tidy
need python3 python3
work=$build/tests/lint/tidy
passed=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/tidy
mkdir -p "$work" "$passed"
# In a unity build the tree's own compile commands name no source.
cmake --preset release -B "$work/commands" -DCMAKE_UNITY_BUILD=OFF >/dev/null

# GCC's own warning names are unknown to clang; clang 14 knows _Float16 on x86 only with this instruction set.
extra="--extra-arg=-Wno-unknown-warning-option"
[ "$(uname -m)" != x86_64 ] || extra+=" --extra-arg=-mavx512fp16"

# Prints a NUL-separated "FILE NUL PREPROCESSOR COMMAND NUL" for each source of the project that is compiled.
sources() {
  python3 - "$work/commands/compile_commands.json" "$PWD" "$work/compile_commands.json" <<'PYTHON'
import json, os, shlex, sys
chosen = {}
for entry in json.load(open(sys.argv[1])):
    file, command = entry["file"], shlex.split(entry["command"])
    inside = file.startswith(sys.argv[2] + "/") and not file.startswith(os.path.dirname(sys.argv[1]) + "/")
    if not inside or file in chosen or any("/torch/" in word or "torch_pch" in word for word in command):
        continue
    chosen[file] = entry
    flags = [word for word in command if word.startswith(("-I", "-D", "-std="))]
    flags += [part for i, word in enumerate(command) if word == "-isystem" for part in command[i : i + 2]]
    print(file, shlex.join(["c++", *flags, "-E", "-C", "-P", file]), sep="\0", end="\0")
# clang-tidy would look at every way in which a file is compiled, with LibTorch too.
json.dump(list(chosen.values()), open(sys.argv[3], "w"))
PYTHON
}

check() {
  local file=$1 preprocess=$2 key
  # Tests hold the name of their own file (__FILE__) and of the programs that they run.
  key=$({ echo "${file#"$PWD"/}"; cat .clang-tidy; clang-tidy --version; eval "$preprocess" | sed "s|$PWD/||g"; } 2>/dev/null |
    sha256sum | cut -c 1-40)
  [ ! -e "$passed/$key" ] || { touch "$passed/$key"; return 0; }
  # shellcheck disable=SC2086  # several words
  if clang-tidy -p "$work" --quiet $extra "$file" 2>"$work/$key.stderr"; then
    touch "$passed/$key"
  else
    grep -E 'error|cannot|unable' "$work/$key.stderr" >&2 || true
    echo "clang-tidy: ${file#"$PWD"/}" >&2
    return 1
  fi
}
export -f check
export passed work extra

find "$passed" -type f -mtime +14 -delete
sources >"$work/sources"
# shellcheck disable=SC2016  # expanded by the inner shell
xargs -0 -r -a "$work/sources" -n 2 -P "$(nproc)" bash -c 'check "$1" "$2"' check
