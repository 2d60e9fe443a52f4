#!/usr/bin/env bash
# Builds what run.sh runs, against the PyTorch wheel of the machine with the GPU, and puts it into one folder with all
# shared libraries that such a machine may not have (Open MPI and its plugins, hwloc, ...); LibTorch, CUDA and the C and
# C++ libraries are that machine's own. Then it tries the folder here, without a GPU.
# Usage: pack.sh [--torch=2.11.0] [--no-try] FOLDER         Builds in build/gpu; needs the packages that tests/run.sh needs.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=2.11.0
max_mb=60
try=yes
folder=
for argument in "$@"; do
  case "$argument" in
    --torch=[0-9]*) version=${argument#*=} ;;
    --no-try) try=no ;;
    -*) folder=; break ;;
    *) folder=$argument ;;
  esac
done
if [ -z "$folder" ]; then
  echo "Usage: pack.sh [--torch=$version] [--no-try] FOLDER" >&2
  exit 2
fi
if [ -e "$folder" ]; then
  echo "pack.sh: $folder exists; name a new folder" >&2
  exit 2
fi

examples/packages.sh build cluster
wheel=$(examples/pip_torch.sh --gpu --version="$version")
export LOCKSTEP_TORCH_WHEEL=$wheel CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
programs=(nccl_test ddp_cuda_test train_device_test device_loader_test bench_gpu)
# shellcheck disable=SC2016  # the loader replaces $ORIGIN
cmake --preset release-pip -B build/gpu -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16 -DLOCKSTEP_BUILD_EXAMPLES=OFF \
  -DCMAKE_BUILD_RPATH='$ORIGIN/../lib' >/dev/null
cmake --build build/gpu -j "${LOCKSTEP_JOBS:-$(nproc)}" --target "${programs[@]}"

partial=$folder.partial
rm -rf "$partial"
mkdir -p "$partial/bin" "$partial/lib"
for program in "${programs[@]}"; do strip -o "$partial/bin/$program" "build/gpu/bin/$program"; done
cp tests/gpu/run.sh tests/gpu/run.py tests/gpu/bench_gpu_peer.py tests/gpu/gpt.py "$partial"
echo "$version" >"$partial/torch_version"

# Open MPI's launcher, plugins and messages, at the places where they are looked for under OPAL_PREFIX.
cp -L "$(command -v orterun)" "$partial/bin"
libraries=lib/x86_64-linux-gnu
mkdir -p "$partial/$libraries/openmpi/lib/openmpi3" "$partial/share/openmpi"
cp /usr/$libraries/openmpi/lib/openmpi3/*.so "$partial/$libraries/openmpi/lib/openmpi3"
# Plugins for networks and schedulers, which need libraries of their own.
(cd "$partial/$libraries/openmpi/lib/openmpi3" && rm -f ./*ucx* ./*ofi* ./*psm* ./*openib* ./*flux* ./*slurm* ./*memheap* ./*scoll* ./*sshmem*)
cp /usr/share/openmpi/*.txt "$partial/share/openmpi"

site=$(dirname "$wheel")
wheel_libraries=$wheel/lib$(printf ':%s' "$site"/nvidia/*/lib)
# Of the machine itself: the C and C++ libraries and the driver.
base='^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libutil|libresolv|libnsl|libstdc\+\+|libgcc_s|libgomp.*|libcuda)\.so'
elves() { find "$partial" -type f \( -name '*.so*' -o -path '*/bin/*' \); }
# Lines "NAME PATH" of the libraries that a file needs; PATH is "not" if it is not found.
needed() { LD_LIBRARY_PATH=$partial_full/lib:$wheel_libraries ldd "$1" | awk '$2 == "=>" {print $1, $3}'; }
partial_full=$(realpath "$partial")

while read -r file; do
  while read -r name path; do
    case "$path" in "$site"/* | "$partial_full"/* | not) continue ;; esac
    if [[ $name =~ $base ]] || [ -e "$partial/lib/$name" ]; then continue; fi
    cp -L "$path" "$partial/lib/$name"
  done < <(needed "$file")
done < <(elves)
find "$partial" -name '*.so*' -type f -exec strip --strip-unneeded {} +
# The 30 MB of Unicode tables that libarchive's XML formats would need: an empty table satisfies the linker.
for tables in "$partial"/lib/libicudata.so.*; do
  [ -e "$tables" ] || continue
  number=${tables##*.so.}
  echo "char icudt${number}_dat[64];" | gcc -x c -shared -fPIC -Wl,-soname,"libicudata.so.$number" -o "$tables" -
done

failed=0
while read -r file; do
  while read -r name path; do
    case "$path" in "$site"/* | "$partial_full"/*) continue ;; esac
    if [[ $name =~ $base ]] && { [ "$path" != not ] || [[ $name = libcuda.* ]]; }; then continue; fi
    echo "pack.sh: ${file#"$partial"/} needs $name, which does not travel with it ($path)" >&2
    failed=1
  done < <(needed "$file")
done < <(elves)
[ $failed = 0 ] || exit 1
mb=$(du -sm "$partial" | cut -f 1)
if [ "$mb" -gt $max_mb ]; then
  echo "pack.sh: $partial has $mb MB, more than $max_mb; the largest files:" >&2
  find "$partial" -type f -size +2M -exec du -m {} + | sort -rn | head >&2
  exit 1
fi

if [ $try = yes ]; then
  PYTHONPATH=$site "$partial/run.sh" --cpu --out "$(mktemp -d)"
fi
mv "$partial" "$folder"
echo "pack.sh: $folder has $mb MB, for PyTorch $version; on the machine with the GPU: $folder/run.sh"
