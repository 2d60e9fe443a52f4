# The files that the commands of the documents find: small data under the names that the pages use. Sourced by
# commands_test.py in an empty folder.
# shellcheck shell=bash
mkdir -p home shared/data shared/me/texts local texts/a more-texts tokens
for i in 1 2 3; do
  printf 'text %s\n' $i >texts/a/$i.txt
  printf 'more %s\n' $i >more-texts/$i.txt
done
printf 'b\n' | tee texts/a/b >shared/me/texts/b
printf '\1\0\2\0\3\0' >tokens/1.tok
printf '\4\0\5\0' >tokens/2.tok
cp -r tokens shared/me/tokens
lockstep-pack create tokens --token-bytes 2 --out shared/data/tokens >/dev/null

for tars in shared/data/imagenet-tars shared/me/imagenet-tars; do
  mkdir $tars
  tar -C texts -cf $tars/0.tar a
done
cp -r "$LOCKSTEP_SOURCE/tests/data/formats/tfrecord" imagenet-tfrecord
for ending in bin idx; do cp "$LOCKSTEP_SOURCE/tests/data/formats/megatron/uint16.$ending" corpus_text_document.$ending; done
# The mixture that the page shows, with fewer steps.
sed -n '/^```json$/,/^```$/{//!p}' "$LOCKSTEP_SOURCE/docs/users/lockstep-plan.md" | sed "s/10000/20/" >mixture.json
mkdir shared/corpus x
for ending in bin idx; do cp corpus_text_document.$ending shared/corpus/text_document.$ending; done
cp -r imagenet-tfrecord shared/imagenet-tfrecord
cp "$LOCKSTEP_SOURCE/tests/data/formats/hdf5/several.h5" train.h5
cp -r shared/data/tokens x/pack
cp -r shared/data/tokens x/more

{
  echo length
  seq 1 7 2000
} >lengths.csv
cp lengths.csv web.csv
lockstep-pack create tokens --token-bytes 2 --out books >/dev/null
printf 'length,count\n10,5\n700,3\n' >mail.csv
