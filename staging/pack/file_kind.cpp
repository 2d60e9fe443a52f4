#include "staging/pack/file_kind.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "staging/pack/compression.h"
#include "staging/pack/file_status.h"
#include "staging/pack/format.h"
#include "staging/pack/formats/megatron_index.h"
#include "staging/pack/member_name.h"
#include "staging/pack/tar_members.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;
using std::string_view_literals::operator""sv;

std::string beginning_of(const fs::path& file) {
  std::string bytes(kTarBlock, '\0');
  const UniqueFd fd = open_file(file, O_RDONLY);
  const ssize_t got = read_at(fd.get(), std::as_writable_bytes(std::span(bytes)), 0);
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return bytes;
}

constexpr std::string_view kToTokens = "examples/recipes/text_to_tokens.py";
constexpr std::string_view kWriteSamples =
    "write its samples with examples/recipes/tar_shards.py or token_file.py";

/// Whether that recipe reads many texts from a file of this name; it unpacks these endings itself.
bool holds_texts(std::string_view name) {
  const bool packed = ends_with_any(name, {".gz", ".bz2", ".xz"});
  if (packed) name = unpacked_name(name);
  return ends_with_any(name, {".jsonl", ".ndjson", ".jsonlines", ".jl", ".csv", ".tsv", ".tab"}) ||
         (packed && name.ends_with(".json"));
}

/// For files whose name, in lower case, shows what they are; "" for others.
std::string advice_by_name(const std::string& name, const fs::path& file) {
  const std::string path = shell_word(file.string());
  if (holds_texts(name))
    return fmt::format("make tokens of its texts with {} {} --field NAME", kToTokens, path);
  if (ends_with_any(name, {".parquet", ".arrow", ".feather"}))
    return fmt::format(
        "it is a table of a data set: convert Parquet and Arrow with {} --dataset FOLDER, or images_to_tars.py FOLDER",
        kToTokens);
  if (name.ends_with(".npy")) return "it is a NumPy array: convert it with examples/recipes/from_npy.py";
  if (name.ends_with(".npz"))
    return fmt::format(
        "it is a zip file of NumPy arrays: unpack it (bsdtar -xf {} -C FOLDER), and convert them with examples/recipes/from_npy.py",
        path);
  if (name.ends_with(".mds"))
    return "it is MosaicML's MDS: convert it with examples/recipes/from_mds.py FOLDER";
  if (ends_with_any(name, {".pt", ".pth", ".bin.index.json", ".safetensors", ".pkl", ".pickle"}))
    return fmt::format("it holds objects of a Python program: {}", kWriteSamples);
  if (name.ends_with(".idx"))
    return "it is not an index of Megatron, which begins with MMIDIDX: if the program that wrote it was killed, preprocess the text again";
  if (name.ends_with(".tar"))
    return fmt::format("run lockstep-pack index {}", shell_word(parent_of(file).string()));
  if (is_tar_name(name))
    return "it is a compressed tar file: unpack it into a folder as NAME.tar and run lockstep-pack index FOLDER";
  if (ends_with_any(name, {".riegeli", ".bagz", ".beton", ".sqlite", ".sqlite3"}) ||
      name.find(".array_record") != std::string::npos)
    return fmt::format("it holds records in a format that is not read here: {}", kWriteSamples);
  if (ends_with_any(name, {".avro", ".orc"}))
    return fmt::format("it is a table of records: {}", kWriteSamples);
  if (name.ends_with(".zip"))
    return fmt::format("unpack it (bsdtar -xf {} -C FOLDER) and run lockstep-pack create FOLDER --out PACK",
                       path);
  if (ends_with_any(name, {".7z", ".rar"})) return "unpack it and run lockstep-pack create FOLDER --out PACK";
  return {};
}

std::string advice_for_packed(std::string_view compression, const std::string& name, const fs::path& file) {
  if (is_tar_name(name))
    return fmt::format("it is a tar file compressed with {}: {}, then run lockstep-pack index FOLDER",
                       compression, how_to_unpack(compression, file.string(), "FOLDER/NAME.tar"));
  return fmt::format("it is compressed with {}: {} and use that", compression,
                     how_to_unpack(compression, file.string()));
}

/// Whether the samples are in a file of this name, and the file is not one itself, as "scan.nii.gz" may be.
bool holds_samples(const std::string& packed_name) {
  const std::string name(unpacked_name(packed_name));
  const auto is = [&](Format format) { return is_of_format(format, name); };
  return is(Format::hdf5) || is(Format::lmdb) || is(Format::recordio) || is(Format::tfrecord) ||
         may_be_records(name) || name.ends_with(".idx") || !advice_by_name(name, name).empty();
}

/// For files whose first bytes show what they are; "" for others. `alone`: the user named this file.
std::string advice_by_content(const std::string& bytes, const std::string& name, const fs::path& file,
                              bool alone) {
  const std::string_view compression = compression_of(bytes);
  if (!compression.empty() && (alone || holds_samples(name)))
    return advice_for_packed(compression, name, file);
  if (may_be_zlib(bytes) && holds_samples(name))
    return "it seems to be compressed with zlib, as TFRecord can be: write it without compression";
  if (is_tar(bytes)) {
    const std::string folder = shell_word(parent_of(file).string());
    if (name.ends_with(".tar")) return fmt::format("it is a tar file: run lockstep-pack index {}", folder);
    return fmt::format("it is a tar file: give it the ending .tar and run lockstep-pack index {}", folder);
  }
  if (bytes.starts_with("TNTIDX\0\0"sv)) return std::string(kOldMegatron);
  if (bytes.starts_with("MMIDIDX\0\0"sv))
    return "it is a Megatron index: give it the ending .idx, and its data .bin";
  if (bytes.starts_with("\x93NUMPY"sv)) return advice_by_name(".npy", file);
  if (bytes.starts_with("SEQ\x06"sv)) return fmt::format("it is Hadoop's SequenceFile: {}", kWriteSamples);
  if (bytes.starts_with("PAR1"sv)) return advice_by_name(".parquet", file);
  if (bytes.starts_with("ARROW1"sv)) return advice_by_name(".arrow", file);
  if (bytes.starts_with("PK\x03\x04"sv) && !ends_with_any(name, {".npz", ".pt", ".pth"}))
    return advice_by_name(".zip", file);
  return {};
}

std::string ending_of(const std::string& path) {
  return lower_case(fs::path(path).extension().string());
}

/// One file of the kind that the folder has most of. Descriptions beside the data count least.
std::string typical_file(const std::vector<std::string>& files) {
  std::map<std::string, std::size_t> counts;
  for (const std::string& file : files) {
    if (!is_stray(file)) ++counts[ending_of(file)];
  }
  std::string best;
  std::size_t best_count = 0;
  for (const bool about : {false, true}) {
    for (const auto& [ending, count] : counts) {
      if (ends_with_any(ending, {".json", ".md", ".yaml", ".yml", ".txt", ".csv"}) != about ||
          count <= best_count)
        continue;
      best = ending;
      best_count = count;
    }
    if (best_count > 0) break;
  }
  const auto found = std::find_if(files.begin(), files.end(), [&](const std::string& file) {
    return !is_stray(file) && ending_of(file) == best;
  });
  return found == files.end() ? std::string() : *found;
}

std::string advice_of(const fs::path& file, bool alone) {
  const std::string name = lower_case(file.filename().string());
  std::string advice;
  if (!holds_texts(name) || unpacked_name(name) == name)
    advice = advice_by_content(beginning_of(file), name, file, alone);
  if (advice.empty()) advice = advice_by_name(name, file);
  if (advice.empty() && unpacked_name(name) != name && holds_samples(name))
    return "its ending says that it is compressed: unpack it and use that";
  return advice;
}

std::string advice_to_create(const fs::path& folder) {
  return fmt::format("run lockstep-pack create {} --out PACK, with --token-bytes if its files hold tokens",
                     shell_word(folder.string()));
}

}  // namespace

std::string advice_for_file(const fs::path& file) {
  if (file.extension() == ".bin" && is_file(fs::path(file).replace_extension(".idx")))
    return advice_for_file(fs::path(file).replace_extension(".idx"));
  const std::string advice = advice_of(file, true);
  return advice.empty() ? advice_to_create(parent_of(file)) : advice;
}

std::string advice_for_folder(const fs::path& folder) {
  return advice_for_folder(folder, readable_contents_of(folder).files);
}

std::string advice_for_folder(const fs::path& folder, const std::vector<std::string>& files) {
  const auto index = std::find_if(files.begin(), files.end(), [](const std::string& file) {
    return unpacked_name(file).ends_with(".idx") && !is_system_file(file);
  });
  const std::string file = index != files.end() ? *index : typical_file(files);
  std::string advice = file.empty() ? std::string() : advice_of(folder / file, false);
  if (!file.empty() && advice.empty()) {
    const Format format = readable_contents_of(folder / file).format;
    const std::map<Format, std::string_view> endings = {{Format::tfrecord, ".tfrecord"},
                                                        {Format::recordio, ".rec"},
                                                        {Format::hdf5, ".h5"},
                                                        {Format::lmdb, ".mdb"}};
    if (const auto ending = endings.find(format); ending != endings.end())
      advice = fmt::format("its content is that of a {} file: name the file, or give such files this ending",
                           ending->second);
  }
  return advice.empty() ? advice_to_create(folder) : fmt::format("{}: {}", (folder / file).string(), advice);
}

// Here, because lockstep-stage does not link the readers, and a sanitizer needs Reader's type information.
std::vector<std::string> Reader::notes() const {
  std::size_t empty = 0;
  std::size_t first = 0;
  for (std::size_t i = token_type() == TokenType::none ? 0 : size(); i-- > 0;) {
    if (bytes(i) > 0) continue;
    ++empty;
    first = i;
  }
  if (empty == 0) return {};
  return {fmt::format("{} of {} samples are empty (the first is {}): plans leave them out", empty, size(),
                      first)};
}

std::string advice_for_tokens(const Reader& reader) {
  const std::string shard = reader.size() == 0 ? std::string() : reader.parts(0).front().shard;
  const TokenType type = reader.token_type();
  if (type == TokenType::f32 || type == TokenType::f64)
    return fmt::format("they are floating-point numbers ({}): write them as integers", name_of(type));
  if (is_of_format(Format::hdf5, shard))
    return "name a dataset of integers with one or two axes, or of lists";
  if (lower_case(shard).ends_with(".tar"))
    return "if they are, pack their files with lockstep-pack create --token-bytes; make tokens of text with examples/recipes/text_to_tokens.py";
  return "this format has no type of tokens: write them in Megatron-Core's format (examples/recipes/token_file.py)";
}

}  // namespace lockstep::pack
