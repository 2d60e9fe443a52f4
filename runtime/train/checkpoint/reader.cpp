#include "runtime/train/checkpoint/reader.h"

#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "common/error.h"
#include "common/units.h"
#include "runtime/train/checkpoint/digest.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t kReadBytes = std::size_t{4} << 20;

void check_file(FileSystem& system, const std::filesystem::path& path, const FileEntry& file,
                FileProgress& progress) {
  const auto status = system.status(path);
  if (!status || !S_ISREG(status->st_mode)) throw Damaged(fmt::format("it has no {}", file.name));
  if (static_cast<std::uint64_t>(status->st_size) != file.bytes) {
    throw Damaged(fmt::format("{} has {} instead of {}", file.name,
                              format_bytes(static_cast<std::uint64_t>(status->st_size)),
                              format_bytes(file.bytes)));
  }
  progress.begin("reading " + path.string(), file.bytes);
  const UniqueFd fd = system.open(path, O_RDONLY | O_NOFOLLOW);
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kReadBytes, file.bytes));
  Digest digest;
  for (std::uint64_t at = 0; at < file.bytes; at += buffer.size()) {
    const auto part = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), file.bytes - at));
    read_bytes(system, fd.get(), part, at, path, progress);
    digest.add(part);
  }
  if (digest.text() != file.digest)
    throw Damaged(fmt::format("{} was modified: its digest differs from the manifest's", file.name));
}

}  // namespace

std::optional<std::string> read_if_there(FileSystem& system, const std::filesystem::path& path) {
  const auto status = system.status(path);
  if (!status || !S_ISREG(status->st_mode)) return std::nullopt;
  const UniqueFd fd = system.open(path, O_RDONLY | O_NOFOLLOW);
  std::string content(static_cast<std::size_t>(status->st_size), '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const std::size_t got =
        system.read_at(fd.get(), std::as_writable_bytes(std::span(content)).subspan(done), done, path);
    if (got == 0) break;
    done += got;
  }
  content.resize(done);
  return content;
}

std::vector<std::int64_t> steps_in(FileSystem& system, const std::filesystem::path& folder) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : system.list_if_there(folder).value_or(std::vector<std::string>{})) {
    if (const std::int64_t step = step_of(name); step >= 0) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

void read_bytes(FileSystem& system, int file, std::span<std::byte> into, std::uint64_t offset,
                const std::filesystem::path& path, FileProgress& progress) {
  while (!into.empty()) {
    const std::size_t got = system.read_at(file, into.first(std::min(into.size(), kReadBytes)), offset, path);
    if (got == 0) throw Damaged(fmt::format("{} ends at offset {}", path.filename().string(), offset));
    into = into.subspan(got);
    offset += got;
    progress.advance(got);
  }
}

Manifest check(FileSystem& system, const std::filesystem::path& checkpoint, FileProgress& progress) {
  progress.begin("reading " + (checkpoint / kManifestName).string());
  const auto text = read_if_there(system, checkpoint / kManifestName);
  if (!text) throw Damaged(fmt::format("it has no {}", kManifestName));
  Manifest manifest = manifest_from_text(*text);
  if (folder_name(manifest.step) != checkpoint.filename())
    throw Damaged(fmt::format("its manifest is of step {}", manifest.step));
  for (const FileEntry& file : manifest.files) check_file(system, checkpoint / file.name, file, progress);
  return manifest;
}

std::optional<Found> find_newest(FileSystem& system, const std::filesystem::path& folder,
                                 FileProgress& progress,
                                 const std::function<void(const std::string&)>& skipped) {
  std::string damaged_line;
  std::vector<std::filesystem::path> damaged;
  progress.begin("listing " + folder.string());
  for (const std::int64_t step : steps_in(system, folder)) {
    const std::filesystem::path checkpoint = folder / folder_name(step);
    try {
      if (!damaged_line.empty()) skipped(damaged_line + "; using the one before it");
      Manifest manifest = check(system, checkpoint, progress);
      return Found{.folder = checkpoint, .manifest = std::move(manifest), .damaged = std::move(damaged)};
    } catch (const Damaged& damage) {
      damaged_line = fmt::format("the checkpoint {} is damaged: {}", checkpoint.string(), damage.what());
      damaged.push_back(checkpoint);
    } catch (const Error& error) {
      fail("cannot resume from {}: {}", checkpoint.string(), error.what());
    }
  }
  if (damaged_line.empty()) return std::nullopt;
  fail("{}, and there is no older one: move {} away to start from the beginning", damaged_line,
       folder.string());
}

}  // namespace lockstep::checkpoint
