#!/usr/bin/env bash
# Makes packed tokens for training from the pages of Debian's packages `manpages` and `manpages-dev`:
#   OUT/manpages, OUT/manpages-heldout    packed pages (16-bit tokens), for training and for evaluation
#   OUT/tokenizer.model, tokenizer.vocab  the SentencePiece model made from the training pages, and its pieces
# A second call with the same inputs does nothing. Needs no network if OUT/packages contains the packages.
set -euo pipefail

vocabulary=4096 max_tokens=1024 heldout_percent=4 jobs=2 packages="" tools="" out=""
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
usage: prepare.sh OUT [--vocab 4096] [--max-tokens 1024] [--heldout-percent 4] [--jobs 2]
                      [--packages DIR] [--bin DIR]

  OUT                  folder for OUT/manpages, OUT/manpages-heldout and OUT/tokenizer.model
  --vocab N            pieces in the vocabulary (at most 65536)
  --max-tokens N       longer pages are cut into pieces of about equal length
  --heldout-percent P  share of the pages that is kept for evaluation, chosen by a hash of their names
  --jobs N             processes that read pages at the same time
  --packages DIR       folder of the .deb files, which are downloaded if missing (default: OUT/packages)
  --bin DIR            folder of lockstep-pack (default: in the build folder, or in PATH)
TEXT
}

fail() {
  echo "prepare.sh: $1" >&2
  exit "${2:-1}"
}

while (($#)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --vocab | --max-tokens | --heldout-percent | --jobs | --packages | --bin)
      (($# >= 2)) || fail "$1 needs a value" 2
      case $1 in
        --vocab) vocabulary=$2 ;;
        --max-tokens) max_tokens=$2 ;;
        --heldout-percent) heldout_percent=$2 ;;
        --jobs) jobs=$2 ;;
        --packages) packages=$2 ;;
        --bin) tools=$2 ;;
      esac
      shift 2 ;;
    -*) fail "unknown option $1; see --help" 2 ;;
    *)
      [[ -z $out ]] || fail "more than one OUT given: $out and $1" 2
      out=$1
      shift ;;
  esac
done
[[ -n $out ]] || { usage >&2; exit 2; }
for number in "$vocabulary" "$max_tokens" "$heldout_percent" "$jobs"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || fail "$number is not a positive integer" 2
done
((vocabulary >= 512 && vocabulary <= 65536)) || fail "--vocab must be 512 to 65536, not $vocabulary" 2
((heldout_percent <= 50)) || fail "--heldout-percent must be at most 50, not $heldout_percent" 2

folders=${tools:+$tools:}$here/../../build/user/bin:$here/../../build/release/bin:$here/../../bin:$here/../../../../bin
pack=$(PATH=$folders:$PATH command -v lockstep-pack) || fail "cannot find lockstep-pack; build it, or give its folder with --bin"
for need in mandoc:mandoc spm_train:sentencepiece dpkg-deb:dpkg gzip:gzip; do
  command -v "${need%%:*}" >/dev/null || fail "${need%%:*} is missing; install it with: apt-get install ${need##*:}"
done

mkdir -p "$out"
out=$(cd "$out" && pwd)
packages=${packages:-$out/packages}
mkdir -p "$packages"

# If two calls run at the same time, the second waits and finds the work done.
exec {lock}>"$out/.lock"
flock "$lock"

# -- the packages ------------------------------------------------------------------------------------------------

deb_of() { find "$packages" -maxdepth 1 -name "$1_*.deb" -size +0 | LC_ALL=C sort -V | tail -n 1; }

fetch() {
  local name=$1 log
  [[ -z $(deb_of "$name") ]] || return 0
  log=$(mktemp)
  # As root, apt downloads as another user, who may have no access to this folder.
  if ! (cd "$packages" && apt-get -q -o APT::Sandbox::User=root download "$name") >"$log" 2>&1; then
    echo "prepare.sh: apt-get download $name: $(grep -m1 '^E:' "$log" || tail -n 1 "$log")" >&2
    rm -f "$log"
    fail "cannot download $name; run apt-get update and try again, or copy ${name}_*.deb to $packages"
  fi
  rm -f "$log"
}
fetch manpages
fetch manpages-dev
debs=("$(deb_of manpages)" "$(deb_of manpages-dev)")

stamp="vocabulary $vocabulary, at most $max_tokens tokens, held out $heldout_percent percent
$(cd "$packages" && sha256sum "${debs[@]##*/}")
$(cd "$here" && sha256sum prepare.sh tokenise.sh clean-page.sed)"
if [[ -f $out/.made-from && $(<"$out/.made-from") == "$stamp" && -d $out/manpages && -d $out/manpages-heldout ]]; then
  echo "text data: $out is up to date"
  exit 0
fi
rm -f "$out/.made-from"

# -- text --------------------------------------------------------------------------------------------------------

work=$(mktemp -d "$out/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT
for deb in "${debs[@]}"; do
  dpkg-deb -x "$deb" "$work/root" || fail "$deb is damaged; delete it and run prepare.sh again"
done

# Aliases are left out: symbolic links here, pages with only `.so other-page` in the loop below.
find "$work/root/usr/share/man" -path '*/man[1-9]/*' -type f -name '*.gz' -print0 | xargs -0 gzip -dq
mkdir "$work/train" "$work/heldout"
export LC_ALL=C.UTF-8

extract() {
  local train=$1 heldout=$2 percent=$3 script=$4 page name first folder
  shift 4
  while read -r name hash page; do
    read -r first <"$page" || true
    [[ $first != .so\ * ]] || continue
    folder=$train
    ((hash % 100 >= percent)) || folder=$heldout
    # The maximum width of mandoc: a paragraph becomes a line.
    mandoc -T utf8 -O width=1000 "$page" 2>/dev/null | sed -E -f "$script" >"$folder/$name"
    [[ -s $folder/$name ]] || rm "$folder/$name"
  done < <(printf '%s\n' "$@" | awk '
    BEGIN { for (i = 1; i < 256; i++) code[sprintf("%c", i)] = i }
    {
      name = $0; sub(/.*\//, "", name)
      hash = 7
      for (i = 1; i <= length(name); i++) hash = (hash * 31 + code[substr(name, i, 1)]) % 1000003
      print name, hash, $0
    }')
}
export -f extract
find "$work/root/usr/share/man" -path '*/man[1-9]/*' -type f -print0 | LC_ALL=C sort -z |
  xargs -0 -P "$jobs" -n 100 bash -c 'extract "$@"' extract \
    "$work/train" "$work/heldout" "$heldout_percent" "$here/clean-page.sed"

# -- tokens ------------------------------------------------------------------------------------------------------

find "$work/train" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat >"$work/train.txt"
spm_train --input="$work/train.txt" --model_prefix="$work/tokenizer" --model_type=bpe --vocab_size="$vocabulary" \
  --byte_fallback=true --character_coverage=0.9995 --normalization_rule_name=identity \
  --user_defined_symbols='<n>' --random_seed=1 --num_threads="$jobs" >"$work/spm.log" 2>&1 ||
  fail "spm_train failed: $(tail -n 1 "$work/spm.log")"

for part in train heldout; do
  "$here/tokenise.sh" "$work/tokenizer" "$max_tokens" "$work/$part" "$work/$part-tokens"
  "$pack" create --token-bytes 2 --out "$work/packed-$part" "$work/$part-tokens" >/dev/null
done
rm -rf "$out/manpages" "$out/manpages-heldout"
mv "$work/packed-train" "$out/manpages"
mv "$work/packed-heldout" "$out/manpages-heldout"
mv "$work"/tokenizer.{model,vocab} "$out/"
printf '%s\n' "$stamp" >"$out/.made-from"
echo "text data: made $out/manpages, $out/manpages-heldout and $out/tokenizer.model"
