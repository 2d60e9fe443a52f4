// open(): recognises the format of a source and joins the readers of its files.

#include <fcntl.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <iterator>
#include <new>
#include <thread>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "common/launcher.h"
#include "staging/pack/compression.h"
#include "staging/pack/file_status.h"
#include "staging/pack/format.h"
#include "staging/pack/formats/data_file.h"
#include "staging/pack/formats/format_readers.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kThreads = 4;

/// "train.h5:/images": a file and a dataset in it.
struct DatasetName {
  fs::path file;
  std::string dataset;
};

DatasetName split_dataset(const fs::path& source) {
  const std::string text = source.string();
  const std::size_t colon = text.find(":/");
  if (colon == std::string::npos || !is_file(text.substr(0, colon))) return {source, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

/// If a file cannot be opened because it is compressed, says that instead of the current error.
[[noreturn]] void fail_if_compressed(const fs::path& file) {
  std::string first(6, '\0');
  const UniqueFd fd = open_file(file, O_RDONLY);
  (void)read_at(fd.get(), std::as_writable_bytes(std::span(first)), 0);
  const std::string_view compression = compression_of(first);
  if (!compression.empty())
    fail("{}: it is compressed ({}): {}", file.string(), compression,
         how_to_unpack(compression, file.string()));
  // TensorFlow's option ZLIB; other formats may begin with an x.
  if (may_be_zlib(first)) fail("{}: it is compressed (zlib): write it without compression", file.string());
  throw;
}

std::unique_ptr<Reader> open_file_of(const Contents& contents, const std::string& file,
                                     const std::string& dataset, const OpenOptions& options) try {
  const auto ends_with = [&](std::string_view end) { return file.ends_with(end); };
  switch (contents.format) {
    case Format::megatron:
      return ends_with(".idx") ? open_megatron(contents.folder, file) : nullptr;
    case Format::tfrecord:
      return open_tfrecord(contents.folder, file, options);
    case Format::recordio:
      return ends_with(".idx") ? nullptr : open_recordio(contents.folder, file, options);
    case Format::lmdb:
      return open_lmdb(contents.folder, file, options);
    case Format::hdf5:
      return open_hdf5(contents.folder, file, dataset);
    case Format::tar:
    case Format::plain:
      return nullptr;
  }
  return nullptr;
} catch (const NoSamples&) {
  throw;
} catch (const Error&) {
  fail_if_compressed(contents.folder / file);
}

/// Programs that write one file per worker leave empty files.
bool holds_data(const Contents& contents, const std::string& file) {
  if (!is_data_file(contents, file)) return false;
  return contents.one_file || contents.format == Format::megatron ||
         fs::file_size(contents.folder / file) > 0;
}

/// Refuses a data set if some of its files are compressed: they would be missing without a word.
void refuse_compressed(const Contents& contents) {
  for (const std::string& file : contents.files) {
    const std::string unpacked(unpacked_name(file));
    const bool data =
        contents.format == Format::megatron ? unpacked.ends_with(".idx") : is_data_file(contents, unpacked);
    if (contents.one_file || unpacked == file || !data ||
        std::binary_search(contents.files.begin(), contents.files.end(), unpacked))
      continue;
    fail(
        "{}: its ending says that it is compressed, and other files of its folder are not: unpack it, or move it out of the data",
        (contents.folder / file).string());
  }
}

/// Opens several files at a time: each may need round trips to a file server, and the first time a pass over the data.
std::vector<std::unique_ptr<Reader>> open_all(const Contents& contents, const std::vector<std::string>& files,
                                              const std::string& dataset, const OpenOptions& options) {
  std::vector<std::unique_ptr<Reader>> readers(files.size());
  std::vector<std::exception_ptr> errors(files.size());
  std::vector<std::atomic<bool>> empty(files.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    for (std::size_t i = next++; i < files.size() && !failed; i = next++) {
      try {
        readers[i] = open_file_of(contents, files[i], dataset, options);
      } catch (const NoSamples&) {
        errors[i] = std::current_exception();
        empty[i] = true;
      } catch (const std::bad_alloc&) {
        errors[i] = std::make_exception_ptr(
            Error(fmt::format("{}: not enough memory to open it: the file is damaged or too large",
                              (contents.folder / files[i]).string())));
        failed = true;
      } catch (...) {
        errors[i] = std::current_exception();
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const std::size_t others = std::min(kThreads, files.size()) - std::min<std::size_t>(1, files.size());
    for (std::size_t t = 0; t < others; ++t) threads.emplace_back(work);
    work();
  }
  // One of several files may be empty.
  const bool any =
      std::any_of(readers.begin(), readers.end(), [](const auto& reader) { return reader != nullptr; });
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (errors[i] && !(empty[i] && any)) std::rethrow_exception(errors[i]);
  }
  return readers;
}

/// Throws the error for a source that is not packed data; locate() has most of the messages.
[[noreturn]] void not_packed(const Contents& contents, const fs::path& source) {
  std::vector<std::string_view> formats;
  for (const Format format : {Format::hdf5, Format::lmdb, Format::recordio, Format::tfrecord}) {
    if (std::any_of(contents.files.begin(), contents.files.end(),
                    [&](const std::string& file) { return is_of_format(format, file); }))
      formats.push_back(name_of(format));
  }
  if (formats.size() > 1)
    fail("{} holds files of several formats ({}): name one of the files", source.string(),
         fmt::join(formats, ", "));
  // The common prefix of a pair of files is not a file.
  locate(fs::exists(source) ? source : contents.folder / contents.files.front());
  fail("not packed: {}", source.string());
}

/// The first rank says so if the job has staged this source, but the program does not open the copy.
void compare_with_staged(const fs::path& source) {
  const auto staged = environment::get("LOCKSTEP_DATA");
  if (!staged || mpi_rank() != 0) return;
  std::error_code ignored;
  const fs::path copy = fs::path(*staged) / source.filename();
  if (!fs::exists(copy, ignored) || fs::equivalent(copy, source, ignored)) return;
  fmt::print(
      stderr,
      "lockstep: the program reads {}, although the job has staged it: open $LOCKSTEP_DATA/{} (docs/users/staging.md)\n",
      source.string(), source.filename().string());
}

}  // namespace

std::unique_ptr<Reader> open(const fs::path& source, const OpenOptions& options) {
  const DatasetName named = split_dataset(source);
  const fs::path name = without_slash(named.file);
  compare_with_staged(name);
  if (is_file(name / kIndexName) || name.filename() == kIndexName ||
      (is_shard_name(name.filename().string()) && is_file(parent_of(name) / kIndexName)))
    return open_tar(source, options);
  const Contents contents = readable_contents_of(name);
  if (contents.format == Format::tar) return open_tar(source, options);
  if (contents.format == Format::plain) not_packed(contents, source);
  refuse_compressed(contents);
  std::vector<std::string> files;
  std::copy_if(contents.files.begin(), contents.files.end(), std::back_inserter(files),
               [&](const std::string& file) { return holds_data(contents, file); });
  std::vector<std::unique_ptr<Reader>> opened = open_all(contents, files, named.dataset, options);
  std::vector<std::unique_ptr<Reader>> readers;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (opened[i] == nullptr) continue;
    readers.push_back(std::move(opened[i]));
    names.push_back((contents.folder / files[i]).string());
  }
  if (readers.empty()) fail("{}: its files hold no samples", source.string());
  return join(std::move(readers), names);
}

}  // namespace lockstep::pack
