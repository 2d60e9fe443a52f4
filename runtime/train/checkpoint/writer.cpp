#include "runtime/train/checkpoint/writer.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/process.h"
#include "common/units.h"
#include "runtime/comm/timeout.h"
#include "runtime/train/checkpoint/manifest.h"
#include "runtime/train/checkpoint/reader.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{4} << 20;
// A file is synced after as many bytes, so that the kernel does not collect more than slow storage takes in minutes.
constexpr std::size_t kSyncBytes = std::size_t{256} << 20;

std::string report_name(int rank) {
  return fmt::format("rank-{:05}.json", rank);
}

// NFS keeps a folder while a process has a file in it open. That must not fail a checkpoint that is complete, nor later ones.
template <typename Removal>
void try_to(const Removal& removal) {
  try {
    removal();
  } catch (const Error& error) {
    fmt::print(stderr, "lockstep: an old checkpoint is left; the next one tries to remove it again: {}\n",
               error.what());
  }
}

}  // namespace

Writer::Writer(WriterOptions options, FileSystem& system) : options_(std::move(options)), system_(system) {
}

void Writer::write(std::int64_t step, const std::vector<OutgoingFile>& files, const std::vector<int>& writers,
                   const std::function<void()>& released) {
  // Counted, because a checkpoint that failed may be written again; by all ranks, because other ranks may write the next one.
  current_ = fmt::format(".{}.{}.{}.{}", folder_name(step), options_.training, options_.run, ++count_);
  if (std::find(writers.begin(), writers.end(), options_.rank) == writers.end()) {
    released();
    return;
  }
  written_ = 0;
  const Path folder = options_.folder / current_;
  try {
    options_.check_lock();
    if (options_.rank == 0) try_to([&] { remove_leftovers(folder); });
    make_folders(system_, options_.folder);
    system_.make_folder(folder, 0777);
    RankReport mine;
    for (const OutgoingFile& file : files)
      mine.files.push_back(
          {file.name, file.item, options_.rank, file.bytes.size(), digest_of(file.bytes), file.ranks});
    write_files(folder, files, mine.files, released);
    report(folder, mine);
    if (options_.rank == 0) publish(folder, step, writers);
  } catch (const std::exception& error) {
    const std::string reason = fmt::format("cannot write the checkpoint of step {}: {}: {}", step,
                                           rank_name(options_.rank, options_.node), error.what());
    tell(reason);
    try {
      if (options_.rank == 0) {
        system_.remove_all(folder);
      } else {
        for (const OutgoingFile& file : files) system_.unlink_if_there(folder / file.name);
        report(folder, {.error = reason, .files = {}});
      }
    } catch (const Error&) {
      // Without the report rank 0 has what tell() sent. The next checkpoint removes what is left of this one.
    }
    throw Error(reason);
  }
}

void Writer::write_files(const Path& into, const std::vector<OutgoingFile>& files,
                         const std::vector<FileEntry>& entries, const std::function<void()>& released) {
  if (options_.local_dir.empty()) {
    for (const OutgoingFile& file : files) put(into / file.name, file.bytes);
    released();
    return;
  }
  const std::vector<UniqueFd> local = write_locally(files);
  released();
  for (std::size_t i = 0; i < files.size(); ++i) copy(local[i].get(), entries[i], into / entries[i].name);
}

// The files have no name, so that they do not stay on the node after a kill.
std::vector<UniqueFd> Writer::write_locally(const std::vector<OutgoingFile>& files) {
  const std::string prefix =
      fmt::format("lockstep-checkpoint-{}-{}", digest_of(options_.folder.string()), options_.rank);
  make_folders(system_, options_.local_dir);
  std::vector<UniqueFd> local;
  for (const OutgoingFile& file : files) {
    const Path path = options_.local_dir / fmt::format("{}-{}", prefix, file.name);
    system_.unlink_if_there(path);  // of a job that was killed before it could remove the name
    local.push_back(system_.open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
    system_.unlink(path);
    system_.allocate(local.back().get(), file.bytes.size(), path);
    write_all(local.back().get(), file.bytes, 0, path);  // not synced: nobody reads it after a crash
  }
  return local;
}

void make_folders(FileSystem& system, const std::filesystem::path& path) {
  if (path.empty() || system.status(path)) return;
  make_folders(system, path.parent_path());
  if (system.make_folder(path, 0777)) system.sync_folder(parent_of(path));
}

UniqueFd Writer::make_file(const Path& path, std::uint64_t bytes) {
  if (options_.progress != nullptr) options_.progress->begin("writing " + path.string(), bytes);
  UniqueFd fd = system_.open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  system_.allocate(fd.get(), bytes, path);
  return fd;
}

void Writer::write_all(int fd, std::span<const std::byte> bytes, std::uint64_t at, const Path& path) {
  constexpr double kTellSeconds = 1;
  while (!bytes.empty()) {
    const std::span<const std::byte> part = bytes.first(std::min(kCopyBytes, bytes.size()));
    system_.write_at(fd, part, at, path);
    bytes = bytes.subspan(part.size());
    at += part.size();
    written_ += part.size();
    if (options_.progress != nullptr) options_.progress->advance(part.size());
    if (seconds_between(reported_at_ns_, monotonic_ns()) > kTellSeconds) tell({});
  }
}

void Writer::put(const Path& path, std::span<const std::byte> bytes) {
  const UniqueFd fd = make_file(path, bytes.size());
  for (std::size_t at = 0; at < bytes.size(); at += kSyncBytes) {
    if (at > 0) system_.sync(fd.get(), path);
    write_all(fd.get(), bytes.subspan(at, std::min(kSyncBytes, bytes.size() - at)), at, path);
  }
  system_.sync(fd.get(), path);
}

void Writer::copy(int from, const FileEntry& file, const Path& to) {
  const UniqueFd target = make_file(to, file.bytes);
  Digest copied;
  std::vector<std::byte> buffer(kCopyBytes);
  for (std::uint64_t at = 0;;) {
    const std::size_t got = system_.read_at(from, buffer, at, options_.local_dir / file.name);
    if (got == 0) break;
    const std::span<const std::byte> part = std::span(buffer).first(got);
    copied.add(part);
    if (at > 0 && at % kSyncBytes == 0) system_.sync(target.get(), to);
    write_all(target.get(), part, at, to);
    at += got;
  }
  if (copied.text() != file.digest) {
    fail("{} was changed on the node's disk ({}) before it was copied: its digest differs", file.name,
         options_.local_dir.string());
  }
  system_.sync(target.get(), to);
}

// Gives rank 0 the bytes that this rank has written, or why it failed.
void Writer::tell(const std::string& error) {
  reported_at_ns_ = monotonic_ns();
  if (options_.rank == 0 || !options_.tell_rank_0) return;
  options_.tell_rank_0(
      nlohmann::json{{"checkpoint", current_}, {"bytes", written_}, {"error", error}}.dump());
}

void Writer::report(const Path& folder, const RankReport& report) {
  const Path name = folder / report_name(options_.rank);
  const Path temporary = folder / fmt::format(".{}", name.filename().string());
  system_.unlink_if_there(temporary);
  const std::string text = to_text(report);
  put(temporary, std::as_bytes(std::span(text)));
  system_.rename(temporary, name);
  system_.sync_folder(folder);
}

RankReport Writer::wait_for(int rank, const Path& folder, std::int64_t step) {
  const Path path = folder / report_name(rank);
  std::uint64_t bytes = 0;
  comm::OperationTimeout timeout{std::chrono::duration<double>(options_.timeout_seconds)};
  for (auto pause = std::chrono::milliseconds(2);;
       pause = std::min(2 * pause, std::chrono::milliseconds(250))) {
    if (const auto text = read_if_there(system_, path)) return report_from_text(*text);
    if (cancelled_) fail("rank {} has not written its files; the training has ended", rank);
    const std::string message = options_.last_text_of ? options_.last_text_of(rank) : std::string();
    if (const auto note = nlohmann::json::parse(message, nullptr, false); !note.is_discarded()) {
      if (note.at("checkpoint") == current_) {
        if (const std::string error = note.at("error"); !error.empty()) return {.error = error, .files = {}};
        if (note.at("bytes") != bytes) timeout.restart();
        bytes = note.at("bytes");
      }
    }
    if (timeout.expired()) {
      fail("rank {} has not written its files of step {} within {}{}: check that its node sees {}", rank,
           step, format_seconds(options_.timeout_seconds),
           bytes > 0 ? fmt::format(" after its first {}", format_bytes(bytes)) : "",
           options_.folder.string());
    }
    if (options_.progress != nullptr) options_.progress->touch();  // the timeout above ends the wait
    std::this_thread::sleep_for(pause);
  }
}

void Writer::publish(const Path& folder, std::int64_t step, const std::vector<int>& writers) {
  Manifest manifest{.step = step, .ranks = options_.ranks, .training = options_.training};
  for (const int rank : writers) {
    const RankReport report = wait_for(rank, folder, step);
    if (!report.error.empty()) fail("{}", report.error);
    manifest.files.insert(manifest.files.end(), report.files.begin(), report.files.end());
  }
  for (const FileEntry& file : manifest.files) {
    const auto status = system_.status(folder / file.name);
    if (!status || static_cast<std::uint64_t>(status->st_size) != file.bytes)
      fail("rank {} has written {}, but here it is missing or has another size: is {} shared by all nodes?",
           file.rank, file.name, options_.folder.string());
  }
  const std::string text = to_text(manifest);
  put(folder / kManifestName, std::as_bytes(std::span(text)));
  for (const int rank : writers) system_.unlink(folder / report_name(rank));
  system_.sync_folder(folder);
  options_.check_lock();
  const Path name = options_.folder / folder_name(step);
  move_away(name);
  system_.rename(folder, name);
  system_.sync_folder(options_.folder);
  try_to([&] { remove_old(step); });
}

// Nullopt if the folder is not a checkpoint.
std::optional<std::string> Writer::training_of(const Path& checkpoint) {
  try {
    const auto manifest = read_if_there(system_, checkpoint / kManifestName);
    if (manifest) return manifest_from_text(*manifest).training;
  } catch (const Error&) {
    // A damaged one.
  }
  return std::nullopt;
}

// A folder of that name is a checkpoint that could not be read when the job was resumed. A folder that is
// not a checkpoint keeps its content under another name.
void Writer::move_away(const Path& existing) {
  const auto training = training_of(existing);
  if (!training) return rename_damaged(existing);
  if (*training != options_.training)
    fail("{} is a checkpoint of another training: give each training a folder of its own", existing.string());
  remove(existing);
}

void Writer::rename_damaged(const Path& damaged) {
  if (!system_.status(damaged)) return;
  const std::string name = damaged.filename().string();
  system_.rename(damaged, options_.folder / fmt::format("damaged-{}-{}", name, options_.run));
}

void Writer::remove(const Path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  const Path hidden = options_.folder / fmt::format(".{}.{}.{}.old", name, options_.training, options_.run);
  system_.rename(checkpoint, hidden);
  system_.remove_all(hidden);
}

void Writer::remove_leftovers(const Path& except) {
  for (const std::string& name :
       system_.list_if_there(options_.folder).value_or(std::vector<std::string>{})) {
    const auto has = [&](const std::string& part) {
      return !part.empty() && (name + '.').find('.' + part + '.') != std::string::npos;
    };
    const Path path = options_.folder / name;
    if (name.starts_with(".step-") && path != except && (has(options_.training) || has(options_.dead_run)))
      system_.remove_all(path);
  }
}

void Writer::remove_old(std::int64_t step) {
  int kept = 1;  // with the one of `step`
  for (const std::int64_t other : steps_in(system_, options_.folder)) {
    const Path checkpoint = options_.folder / folder_name(other);
    if (other < step && training_of(checkpoint) == options_.training && ++kept > options_.keep)
      remove(checkpoint);
  }
}

}  // namespace lockstep::checkpoint
