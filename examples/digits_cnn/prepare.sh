#!/usr/bin/env bash
# Makes packed pictures of handwritten digits from scikit-learn's digits.csv.gz (1,797 pictures of 8 x 8 pixels):
#   OUT/digits, OUT/digits-heldout    packed pictures, for training and (every fifth) for evaluation
#   OUT/digits.csv                    a line for each picture: 64 pixels from 0 to 16, and the digit
# A second call does nothing. Needs no network with --csv.
set -euo pipefail

csv="" tools="" out=""
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
usage: prepare.sh OUT [--csv FILE] [--bin DIR]

  OUT         folder for OUT/digits, OUT/digits-heldout and OUT/digits.csv
  --csv FILE  digits.csv.gz of an installed scikit-learn (sklearn/datasets/data); by default it is taken from Debian's
              package python3-sklearn, which is downloaded (2 MB) but not installed
  --bin DIR   folder of lockstep-pack (default: in the build folder, or in PATH)
TEXT
}

fail() {
  echo "prepare.sh: $1" >&2
  exit "${2:-1}"
}

while (($#)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --csv | --bin)
      (($# >= 2)) || fail "$1 needs a value" 2
      case $1 in
        --csv) csv=$2 ;;
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

pack=$(PATH=${tools:+$tools:}$here/../../build/user/bin:$here/../../build/release/bin:$PATH command -v lockstep-pack) ||
  fail "cannot find lockstep-pack; build it, or give its folder with --bin"

mkdir -p "$out"
# Of two simultaneous calls, the second waits and finds everything done.
exec {lock}>"$out/.lock"
flock "$lock"
if [[ -d $out/digits && -d $out/digits-heldout && -s $out/digits.csv ]]; then
  echo "digits: $out is up to date"
  exit 0
fi
work=$(mktemp -d "$out/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [[ -z $csv ]]; then
  # As root, apt downloads as another user, who may have no access to this folder.
  if ! (cd "$work" && apt-get -q -o APT::Sandbox::User=root download python3-sklearn) >"$work/log" 2>&1; then
    echo "prepare.sh: apt-get download python3-sklearn: $(grep -m1 '^E:' "$work/log" || tail -n 1 "$work/log")" >&2
    fail "cannot download python3-sklearn; run apt-get update and try again, or give --csv"
  fi
  csv=$work/digits.csv.gz
  dpkg-deb --fsys-tarfile "$work"/python3-sklearn_*.deb |
    tar -xO ./usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz >"$csv"
fi
gzip -dc "$csv" >"$work/digits.csv" || fail "$csv is not a gzip file"
[[ $(wc -l <"$work/digits.csv") = 1797 ]] || fail "$csv does not have 1797 lines: it is not scikit-learn's digits.csv.gz"

# Each picture is a file of 64 bytes, from 0 to 240, and a file with its digit.
mkdir "$work/train" "$work/heldout"
LC_ALL=C awk -F, -v work="$work" '{
  name = sprintf("%s/%s/%04d", work, NR % 5 == 0 ? "heldout" : "train", NR - 1)
  for (i = 1; i <= 64; i++) printf "%c", 15 * $i >(name ".pixels")
  print $65 >(name ".cls")
  close(name ".pixels")
  close(name ".cls")
}' "$work/digits.csv"

"$pack" create --out "$work/digits" "$work/train" >/dev/null
"$pack" create --out "$work/digits-heldout" "$work/heldout" >/dev/null
rm -rf "$out/digits" "$out/digits-heldout"
mv "$work/digits" "$work/digits-heldout" "$work/digits.csv" "$out/"
echo "digits: made $out/digits, $out/digits-heldout and $out/digits.csv"
