#!/usr/bin/env bash
# tokenise.sh MODEL MAX_TOKENS PAGES OUT: makes a file of tokens (unsigned, 16 bits, little-endian) of each file in the folder
# PAGES, for lockstep-pack create --token-bytes 2: <s>, the tokens of each line followed by <n>, </s>. A long page becomes
# several files, the fewest that are short enough; their lengths differ by at most one. MODEL.model and MODEL.vocab are
# SentencePiece's. A sample's key ends at the first dot, so dots in names are replaced.
set -euo pipefail

model=$1 max_tokens=$2 pages=$3 out=$4
mkdir "$out"
# For each line of the pages: the page's name, and the tokens.
(cd "$pages" && awk '{ print FILENAME }' ./*) >"$out/.names"
(cd "$pages" && awk 1 ./*) | spm_encode --model="$model.model" --output_format=id >"$out/.ids" 2>"$out/.log" || {
  echo "tokenise.sh: spm_encode failed: $(tail -n 1 "$out/.log")" >&2
  exit 1
}
# awk's strings hold no zero bytes, so it prints octal numbers, which printf turns into bytes.
paste "$out/.names" "$out/.ids" | awk -F '\t' -v max="$max_tokens" '
  function end_page(  pieces, i, t, end, bytes) {
    token[count++] = id["</s>"]
    sub(/^\.\//, "", page)
    gsub(/\./, "_", page)
    pieces = int((count + max - 1) / max)
    for (i = t = 0; i < pieces; i++) {
      end = int(count * (i + 1) / pieces)
      for (bytes = ""; t < end; t++) bytes = bytes sprintf("\\%03o\\%03o", token[t] % 256, int(token[t] / 256))
      print page (pieces > 1 ? sprintf("-%04d", i + 1) : "") "\t" bytes
    }
    count = 0
  }
  FNR == NR { id[$1] = FNR - 1; next }
  $1 != page && count { end_page() }
  $1 != page { page = $1; token[count++] = id["<s>"] }
  {
    words = split($2, word, " ")
    for (w = 1; w <= words; w++) token[count++] = word[w]
    token[count++] = id["<n>"]
  }
  END { end_page() }' "$model.vocab" - |
  while IFS=$'\t' read -r key bytes; do
    # shellcheck disable=SC2059  # the bytes are the format
    printf "$bytes" >"$out/$key.tokens"
  done
rm "$out/.names" "$out/.ids" "$out/.log"
