#!/usr/bin/env bash
# Gets the Python packages of other formats that the tests with the label "peers" hold our files against, once, into a
# cache folder, and prints it for PYTHONPATH. What else they need are Debian's packages of the group "peers".
# Usage: packages.sh        The cache is $XDG_CACHE_HOME/lockstep, or ~/.cache/lockstep.
set -euo pipefail

packages=(megatron-core==0.16.1 webdataset==1.0.2 braceexpand==0.1.7)
python=/usr/bin/python3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep
# Another list is another folder.
folder=$cache/peers-$(printf '%s\n' "${packages[@]}" | sha256sum | cut -c1-12)
if [ ! -d "$folder" ]; then
  mkdir -p "$cache"
  part=$(mktemp -d "$cache/peers.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  # Without what they depend on: the parts that are used need nothing else, and megatron-core would bring CUDA.
  "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
    --target "$part/peers" "${packages[@]}" >&2
  mv -T "$part/peers" "$folder"
fi
echo "$folder"
