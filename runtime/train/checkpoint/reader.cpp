#include "runtime/train/checkpoint/reader.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "common/units.h"
#include "runtime/train/checkpoint/manifest.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t kReadBytes = std::size_t{4} << 20;

// The manifest of a checkpoint, after a comparison with the sizes of its files.
Manifest read_manifest(FileSystem& system, const std::filesystem::path& checkpoint, FileProgress& progress) {
  progress.begin("reading " + (checkpoint / kManifestName).string());
  const auto text = read_if_there(system, checkpoint / kManifestName);
  if (!text) throw Damaged(fmt::format("it has no {}", kManifestName));
  Manifest manifest = manifest_from_text(*text);
  if (folder_name(manifest.step) != checkpoint.filename())
    throw Damaged(fmt::format("its manifest is of step {}", manifest.step));
  for (const FileEntry& file : manifest.files) {
    const auto status = system.status(checkpoint / file.name);
    if (!status || !S_ISREG(status->st_mode)) throw Damaged(fmt::format("it has no {}", file.name));
    if (const auto bytes = static_cast<std::uint64_t>(status->st_size); bytes != file.bytes) {
      throw Damaged(
          fmt::format("{} has {} instead of {}", file.name, format_bytes(bytes), format_bytes(file.bytes)));
    }
    progress.touch();
  }
  return manifest;
}

}  // namespace

std::optional<std::string> read_if_there(FileSystem& system, const std::filesystem::path& path) {
  const auto status = system.status(path);
  if (!status || !S_ISREG(status->st_mode)) return std::nullopt;
  const auto fd = system.open_if_there(path, O_RDONLY | O_NOFOLLOW);
  if (!fd) return std::nullopt;  // removed since
  std::string content(static_cast<std::size_t>(status->st_size), '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const std::size_t got =
        system.read_at(fd->get(), std::as_writable_bytes(std::span(content)).subspan(done), done, path);
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

void read_file(FileSystem& system, const std::filesystem::path& checkpoint, const FileEntry& file,
               std::vector<FilePart> parts, FileProgress& progress) {
  const std::filesystem::path path = checkpoint / file.name;
  std::sort(parts.begin(), parts.end(),
            [](const FilePart& a, const FilePart& b) { return a.offset < b.offset; });
  progress.begin("reading " + path.string(), file.bytes);
  const UniqueFd fd = system.open(path, O_RDONLY | O_NOFOLLOW);
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kReadBytes, file.bytes));
  Digest digest;
  auto part = parts.begin();  // the first that is not complete
  for (std::uint64_t at = 0; at < file.bytes; at += buffer.size()) {
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), file.bytes - at));
    read_bytes(system, fd.get(), piece, at, path, progress);
    digest.add(piece);
    const std::uint64_t end = at + piece.size();
    for (auto one = part; one != parts.end() && one->offset < end; ++one) {
      const std::uint64_t from = std::max(at, one->offset);
      const std::uint64_t to = std::min<std::uint64_t>(end, one->offset + one->into.size());
      if (from < to) std::memcpy(&one->into[from - one->offset], &piece[from - at], to - from);
      if (one == part && one->offset + one->into.size() <= end) ++part;
    }
  }
  if (digest.text() != file.digest)
    throw Damaged(fmt::format("{} was modified: its digest differs from the manifest's", file.name));
}

CheckpointSearch::CheckpointSearch(FileSystem& system, const std::filesystem::path& folder,
                                   FileProgress& progress, std::function<void(const std::string&)> skipped)
    : system_(system), folder_(folder), progress_(progress), skipped_(std::move(skipped)) {
}

std::optional<Found> CheckpointSearch::next() {
  if (!steps_) {
    progress_.begin("listing " + folder_.string());
    steps_ = steps_in(system_, folder_);
  }
  while (tried_ < steps_->size()) {
    const std::filesystem::path checkpoint = folder_ / folder_name((*steps_)[tried_++]);
    if (!line_.empty()) skipped_(line_ + "; using the one before it");
    try {
      return Found{.folder = checkpoint, .manifest = read_manifest(system_, checkpoint, progress_)};
    } catch (const Damaged& damage) {
      reject(damage.what());
    } catch (const Error& error) {
      fail("cannot resume from {}: {}", checkpoint.string(), error.what());
    }
  }
  if (line_.empty()) return std::nullopt;
  fail("{}, and there is no older one: move {} away to start from the beginning", line_, folder_.string());
}

void CheckpointSearch::reject(const std::string& damage) {
  damaged_.push_back(folder_ / folder_name(steps_->at(tried_ - 1)));
  line_ = fmt::format("the checkpoint {} is damaged: {}", damaged_.back().string(), damage);
}

LoadLog::LoadLog() : begin_ns_(monotonic_ns()) {
}

void LoadLog::write(std::int64_t steps) const noexcept {
  try {
    const auto folder = environment::get("LOCKSTEP_REPORT_DIR");
    const auto job = environment::get("SLURM_JOB_ID");
    if (!folder || !job) return;
    const auto path = std::filesystem::path(*folder) / fmt::format("restarts-{}.jsonl", *job);
    if (!std::filesystem::exists(path)) return;
    const UniqueFd file = open_file(path, O_WRONLY | O_APPEND);
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    const nlohmann::ordered_json line = {
        {"loaded", steps}, {"at", now.count()}, {"seconds", seconds_between(begin_ns_, monotonic_ns())}};
    write_all(file.get(), line.dump() + "\n", path);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: the report will lack a load: {}\n", error.what());
  }
}

}  // namespace lockstep::checkpoint
