#include "staging/pack/locate.h"

#include <sys/stat.h>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "staging/pack/file_kind.h"
#include "staging/pack/file_status.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return true;
  if (errno != ENOENT) fail_errno("{}", path.string());
  return false;
}

[[noreturn]] void not_packed(const fs::path& folder) {
  if (has_tars(folder)) {
    fail("{} holds tar files without {}: run lockstep-pack index {}", folder.string(), kIndexName,
         shell_word(folder.string()));
  }
  fail("not packed: {} has no {}: {}", folder.string(), kIndexName, advice_for_folder(folder));
}

}  // namespace

bool is_shard_name(std::string_view name) {
  return lower_case(name).ends_with(".tar") && !is_system_file(name);
}

bool has_tars(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (is_shard_name(entry->path().filename().string())) return true;
  }
  return false;
}

Located locate(const fs::path& source) {
  const fs::path name = without_slash(source);
  const mode_t mode = status_of(name).st_mode;
  if (S_ISDIR(mode)) {
    if (is_there(name / kIndexName)) return {name, Index::load(name / kIndexName), {}};
    std::error_code error;
    if (fs::is_empty(name, error) && !error)
      fail("{} is empty: pack data with lockstep-pack create", name.string());
    not_packed(name);
  }
  if (!S_ISREG(mode)) fail("{} is neither a folder nor a regular file", name.string());
  const fs::path folder = parent_of(name);
  if (name.filename() == kIndexName) return {folder, Index::load(name), {}};
  if (!is_there(folder / kIndexName)) fail("not packed: {}: {}", name.string(), advice_for_file(name));
  Located located{folder, Index::load(folder / kIndexName), {}};
  located.shard = located.index.find_shard(name.filename().string());
  if (located.shard == located.index.shards()) {
    fail("not packed: {} is not a shard of {}", name.string(), located.index.file().string());
  }
  return located;
}

fs::path check_shard_size(const fs::path& folder, const Index& index, std::size_t s) {
  fs::path path = folder / index.shard_name(s);
  const auto size = static_cast<std::uint64_t>(status_of_file(path).st_size);
  const std::uint64_t wanted = index.shard(s).size;
  if (size == wanted) return path;
  if (size > wanted) fail("{} does not match its index: {} bytes, {} expected", path.string(), size, wanted);
  // Names the first sample that was cut, to show how much was lost.
  for (std::size_t i = index.first_sample(s); i < index.first_sample(s + 1); ++i) {
    for (std::size_t p = index.first_part(i); p < index.first_part(i + 1); ++p) {
      const layout::PartRecord& part = index.part(p);
      if (part.offset + part.size > size) {
        fail(
            "{} does not match its index: truncated to {} bytes, {} expected; the first lost sample is {} ({}) at offset {}",
            path.string(), size, wanted, i, index.key(i), part.offset);
      }
    }
  }
  fail("{} does not match its index: truncated to {} bytes, {} expected", path.string(), size, wanted);
}

}  // namespace lockstep::pack
