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

std::string read_whole(FileSystem& system, const std::filesystem::path& path, const std::string& name) {
  auto content = read_if_there(system, path);
  if (!content) throw Damaged(fmt::format("it has no {}", name));
  return std::move(*content);
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

Contents read(FileSystem& system, const std::filesystem::path& checkpoint) {
  Contents contents{.folder = checkpoint, .manifest = {}, .files = {}, .damaged = {}};
  contents.manifest = manifest_from_text(read_whole(system, checkpoint / kManifestName, kManifestName));
  if (folder_name(contents.manifest.step) != checkpoint.filename())
    throw Damaged(fmt::format("its manifest is of step {}", contents.manifest.step));
  for (const FileEntry& file : contents.manifest.files) {
    contents.files.push_back(read_whole(system, checkpoint / file.name, file.name));
    const std::string& content = contents.files.back();
    if (content.size() != file.bytes)
      throw Damaged(fmt::format("{} has {} instead of {}", file.name, format_bytes(content.size()),
                                format_bytes(file.bytes)));
    if (digest_of(content) != file.digest)
      throw Damaged(fmt::format("{} was modified: its digest differs from the manifest's", file.name));
  }
  return contents;
}

std::optional<Contents> read_newest(FileSystem& system, const std::filesystem::path& folder,
                                    const std::function<void(const std::string&)>& skipped) {
  std::string damaged_line;
  std::vector<std::filesystem::path> damaged;
  for (const std::int64_t step : steps_in(system, folder)) {
    const std::filesystem::path checkpoint = folder / folder_name(step);
    try {
      if (!damaged_line.empty()) skipped(damaged_line + "; using the one before it");
      Contents contents = read(system, checkpoint);
      contents.damaged = std::move(damaged);
      return contents;
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
