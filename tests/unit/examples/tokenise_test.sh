#!/usr/bin/env bash
# examples/text_lm/tokenise.sh: the tokens of pages, read back with spm_decode.
set -euo pipefail
tokenise=$1
command -v spm_train >/dev/null || exit 77 # package sentencepiece

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "tokenise_test: $1" >&2
  exit 1
}

mkdir "$work/pages"
for i in $(seq 200); do echo "the function number $i returns the number of bytes in file $((i * 7))"; done >"$work/pages/long.3"
printf 'open, creat\n\na file without an end of line' >"$work/pages/open.2"
cat "$work"/pages/* >"$work/all"
spm_train --input="$work/all" --model_prefix="$work/model" --model_type=bpe --vocab_size=320 --byte_fallback=true \
  --normalization_rule_name=identity --user_defined_symbols='<n>' >"$work/log" 2>&1 || fail "$(cat "$work/log")"
"$tokenise" "$work/model" 256 "$work/pages" "$work/tokens"

line_end=$(grep -nP '^<n>\t' "$work/model.vocab" | cut -d: -f1)
others=$(find "$work/tokens" -type f ! -name open_2.tokens ! -name 'long_3-00[0-9][0-9].tokens')
[ -z "$others" ] || fail "names: $others"

# All pieces of a page in turn: <s> is token 1, </s> is token 2.
for page in long.3 open.2; do
  read -r -a tokens <<<"$(cat "$work/tokens/${page/./_}"* | od -An -v -tu2 --endian=little -w1000000)"
  [ "${tokens[0]} ${tokens[-1]}" = "1 2" ] || fail "$page does not begin with <s> or end with </s>"
  lines=$(printf '%s\n' "${tokens[@]:1:${#tokens[@]}-2}" | awk -v end=$((line_end - 1)) '
    $1 == end { print line; line = ""; next }
    { line = line " " $1 }' | spm_decode --model="$work/model.model" --input_format=id)
  [ "$lines" = "$(cat "$work/pages/$page")" ] || fail "$page reads: $(head -n 3 <<<"$lines")"
done

sizes=$(for piece in "$work"/tokens/long_3-*; do stat -c %s "$piece"; done | sort -n | sed -n '1p;$p' | xargs)
read -r smallest largest <<<"$sizes"
((largest <= 512 && largest - smallest <= 2)) || fail "pieces of $smallest to $largest bytes"
