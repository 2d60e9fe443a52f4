#include "runtime/train/checkpoint/writer.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/process.h"
#include "common/units.h"
#include "runtime/train/checkpoint/digest.h"
#include "runtime/train/checkpoint/reader.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{4} << 20;

std::string report_name(int rank) {
  return fmt::format("rank-{:05}.json", rank);
}

}  // namespace

Writer::Writer(WriterOptions options, FileSystem& system) : options_(std::move(options)), system_(system) {
}

void Writer::write(std::int64_t step, const std::vector<OutgoingFile>& files,
                   const std::function<void()>& released) {
  const Path folder = options_.folder / fmt::format(".{}.{}", folder_name(step), options_.run);
  try {
    if (options_.rank == 0) remove_leftovers(folder);
    make_folders(options_.folder);
    system_.make_folder(folder, 0777);
    RankReport mine;
    for (const OutgoingFile& file : files)
      mine.files.push_back({file.name, file.item, options_.rank, file.bytes.size(), digest_of(file.bytes)});
    write_files(folder, files, released);
    report(folder, mine);
    if (options_.rank == 0) publish(folder, step);
  } catch (const std::exception& error) {
    const std::string reason = fmt::format("cannot write the checkpoint of step {}: {}: {}", step,
                                           rank_name(options_.rank, options_.node), error.what());
    if (options_.rank != 0) {
      try {
        for (const OutgoingFile& file : files) system_.unlink_if_there(folder / file.name);
        report(folder, {.error = reason, .files = {}});
      } catch (const Error&) {
        // Rank 0 will find no report of this rank, and say so.
      }
    }
    throw Error(reason);
  }
}

void Writer::write_files(const Path& into, const std::vector<OutgoingFile>& files,
                         const std::function<void()>& released) {
  if (options_.local_dir.empty()) {
    for (const OutgoingFile& file : files) put(into / file.name, file.bytes);
    released();
    return;
  }
  const std::vector<Path> local = write_locally(files);
  released();
  for (std::size_t i = 0; i < files.size(); ++i) {
    copy(local[i], into / files[i].name);
    system_.unlink(local[i]);
  }
}

std::vector<std::filesystem::path> Writer::write_locally(const std::vector<OutgoingFile>& files) {
  // The same names in each run of a training, so that the files of a killed job are replaced.
  const std::string prefix =
      fmt::format("lockstep-checkpoint-{}-{}", digest_of(std::filesystem::absolute(options_.folder).string()),
                  options_.rank);
  make_folders(options_.local_dir);
  std::vector<Path> paths;
  for (const OutgoingFile& file : files) {
    paths.push_back(options_.local_dir / fmt::format("{}-{}", prefix, file.name));
    system_.unlink_if_there(paths.back());
    put(paths.back(), file.bytes);
  }
  return paths;
}

void Writer::make_folders(const Path& path) {
  if (path.empty() || system_.status(path)) return;
  make_folders(path.parent_path());
  if (system_.make_folder(path, 0777)) system_.sync_folder(parent_of(path));
}

void Writer::put(const Path& path, std::span<const std::byte> bytes) {
  const UniqueFd fd = system_.open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  system_.allocate(fd.get(), bytes.size(), path);
  for (std::size_t at = 0; at < bytes.size(); at += kCopyBytes)
    system_.write_at(fd.get(), bytes.subspan(at, std::min(kCopyBytes, bytes.size() - at)), at, path);
  system_.sync(fd.get(), path);
}

void Writer::copy(const Path& from, const Path& to) {
  const UniqueFd source = system_.open(from, O_RDONLY | O_NOFOLLOW);
  const UniqueFd target = system_.open(to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  std::vector<std::byte> buffer(kCopyBytes);
  for (std::uint64_t at = 0;;) {
    const std::size_t got = system_.read_at(source.get(), buffer, at, from);
    if (got == 0) break;
    system_.write_at(target.get(), std::span(buffer).first(got), at, to);
    at += got;
  }
  system_.sync(target.get(), to);
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

RankReport Writer::wait_for(int rank, const Path& folder, std::int64_t step, std::uint64_t begin_ns) {
  const Path path = folder / report_name(rank);
  for (auto pause = std::chrono::milliseconds(2);;
       pause = std::min(2 * pause, std::chrono::milliseconds(250))) {
    if (const auto text = read_if_there(system_, path)) return report_from_text(*text);
    if (cancelled_) fail("rank {} has not written its files; the training has ended", rank);
    if (seconds_between(begin_ns, monotonic_ns()) > options_.timeout_seconds) {
      fail("rank {} has not written its files of step {} within {}: check that its node sees {}", rank, step,
           format_seconds(options_.timeout_seconds), options_.folder.string());
    }
    std::this_thread::sleep_for(pause);
  }
}

void Writer::publish(const Path& folder, std::int64_t step) {
  Manifest manifest{.step = step, .ranks = options_.ranks, .files = {}};
  const std::uint64_t begin_ns = monotonic_ns();
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const RankReport report = wait_for(rank, folder, step, begin_ns);
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
  for (int rank = 0; rank < options_.ranks; ++rank) system_.unlink(folder / report_name(rank));
  system_.sync_folder(folder);
  const Path name = options_.folder / folder_name(step);
  move_away(name);
  system_.rename(folder, name);
  system_.sync_folder(options_.folder);
  remove_old(step);
}

bool Writer::is_checkpoint(const Path& folder) {
  try {
    const auto manifest = read_if_there(system_, folder / kManifestName);
    if (manifest) (void)manifest_from_text(*manifest);
    return manifest.has_value();
  } catch (const Error&) {
    return false;
  }
}

// A folder of that name is a checkpoint that could not be read when the job was resumed. A folder that is
// not a checkpoint keeps its content under another name.
void Writer::move_away(const Path& existing) {
  if (is_checkpoint(existing))
    remove(existing);
  else
    set_aside(existing);
}

void Writer::set_aside(const Path& damaged) {
  if (!system_.status(damaged)) return;
  const std::string name = damaged.filename().string();
  system_.rename(damaged, options_.folder / fmt::format("damaged-{}-{}", name, options_.run));
}

void Writer::remove(const Path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  const Path hidden = options_.folder / fmt::format(".{}.{}.old", name, options_.run);
  system_.rename(checkpoint, hidden);
  system_.remove_all(hidden);
}

void Writer::remove_leftovers(const Path& except) {
  for (const std::string& name :
       system_.list_if_there(options_.folder).value_or(std::vector<std::string>{})) {
    const Path path = options_.folder / name;
    if (name.starts_with(".step-") && path != except) system_.remove_all(path);
  }
}

void Writer::remove_old(std::int64_t step) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : system_.list(options_.folder)) {
    const std::int64_t other = step_of(name);
    if (other >= 0 && other < step && is_checkpoint(options_.folder / name)) steps.push_back(other);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  for (std::size_t i = static_cast<std::size_t>(options_.keep - 1); i < steps.size(); ++i)
    remove(options_.folder / folder_name(steps[i]));
}

}  // namespace lockstep::checkpoint
