// open(): finds out what a source is and joins the readers of its files.

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <new>
#include <thread>

#include "common/error.h"
#include "staging/pack/formats/extent_reader.h"
#include "staging/pack/formats/format_readers.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kThreads = 4;

bool is_file(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

/// "train.h5:/images" as the file and the dataset in it.
struct Named {
  fs::path file;
  std::string dataset;
};

Named split_dataset(const fs::path& source) {
  const std::string text = source.string();
  const std::size_t colon = text.find(":/");
  if (colon == std::string::npos || !is_file(text.substr(0, colon))) return {source, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::unique_ptr<Reader> open_file_of(const Contents& contents, const std::string& file,
                                     const std::string& dataset, const OpenOptions& options) {
  const auto ends_with = [&](std::string_view end) { return file.ends_with(end); };
  const auto is_index_json = [&] { return file == "index.json" || ends_with("/index.json"); };
  switch (contents.format) {
    case Format::megatron:
      return ends_with(".idx") ? open_megatron(contents.folder, file) : nullptr;
    case Format::tfrecord:
      return open_tfrecord(contents.folder, file, options);
    case Format::recordio:
      return ends_with(".idx") ? nullptr : open_recordio(contents.folder, file, options);
    case Format::npy:
      return open_npy(contents.folder, file);
    case Format::lmdb:
      return open_lmdb(contents.folder, file);
    case Format::hdf5:
      return open_hdf5(contents.folder, file, dataset);
    case Format::mds:
      if (is_index_json())
        return open_mds(contents.folder, file, contents.one_file ? contents.files.back() : "");
      return nullptr;
    case Format::tar:
    case Format::plain:
      return nullptr;
  }
  return nullptr;
}

/// Whether a file beside the data belongs to the format and not to a readme.
bool holds_data(const Contents& contents, const std::string& file) {
  if (contents.one_file) return true;
  if (contents.format == Format::mds || contents.format == Format::megatron) return true;
  if (!is_of_format(contents.format, file)) return false;
  // Programs that write one file per worker leave empty ones.
  return contents.format == Format::npy || fs::file_size(contents.folder / file) > 0;
}

/// Several at a time: opening is a conversation with a file server, and the first time a pass over the data.
std::vector<std::unique_ptr<Reader>> open_all(const Contents& contents, const std::vector<std::string>& files,
                                              const std::string& dataset, const OpenOptions& options) {
  std::vector<std::unique_ptr<Reader>> readers(files.size());
  std::vector<std::exception_ptr> errors(files.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    for (std::size_t i = next++; i < files.size() && !failed; i = next++) {
      try {
        readers[i] = open_file_of(contents, files[i], dataset, options);
      } catch (const std::bad_alloc&) {
        errors[i] = std::make_exception_ptr(
            Error(fmt::format("{}: opening it takes more memory than there is; it is damaged, or too large",
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
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return readers;
}

/// Of something that is no packed data: locate() finds the words.
[[noreturn]] void not_packed(const Contents& contents, const fs::path& source) {
  std::vector<std::string_view> formats;
  for (const Format format :
       {Format::npy, Format::hdf5, Format::lmdb, Format::recordio, Format::mds, Format::tfrecord}) {
    if (std::any_of(contents.files.begin(), contents.files.end(),
                    [&](const std::string& file) { return is_of_format(format, file); }))
      formats.push_back(name_of(format));
  }
  if (formats.size() > 1)
    fail("{} holds files of several formats ({}); name one of them", source.string(),
         fmt::join(formats, ", "));
  locate(source);
  fail("not packed: {}", source.string());
}

}  // namespace

std::unique_ptr<Reader> open(const fs::path& source, const OpenOptions& options) {
  const Named named = split_dataset(source);
  const fs::path name = named.file.has_filename() ? named.file : named.file.parent_path();
  const fs::path folder = name.has_parent_path() ? name.parent_path() : fs::path(".");
  if (is_file(name / kIndexName) || name.filename() == kIndexName ||
      (name.extension() == ".tar" && is_file(folder / kIndexName)))
    return open_tar(source, options);
  const Contents contents = readable_contents_of(name);
  if (contents.format == Format::tar) return open_tar(source, options);
  if (contents.format == Format::plain) not_packed(contents, source);
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
  if (readers.empty()) fail("{}: there are no samples in its files", source.string());
  return join(std::move(readers), names);
}

}  // namespace lockstep::pack
