// lockstep-stage prefetch: an admin fills the store that all users read.

#include <grp.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>

#include "common/error.h"
#include "common/leaf/text.h"
#include "common/units.h"
#include "staging/cache/shared.h"
#include "staging/pack/format.h"
#include "staging/tool/cache_verbs.h"
#include "staging/transfer/put.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

struct PrefetchArguments {
  std::vector<std::string> sources;
  std::string cache, group, quota = "0", verify = "quick";
  int threads = 0;
  bool everyone = false;
};

std::optional<gid_t> group_of(const std::string& name) {
  if (name.empty()) return {};
  std::vector<char> buffer(65536);
  ::group entry{};
  ::group* found = nullptr;
  if (::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr)
    fail_usage("--group {}: this node has no such group", name);
  return found->gr_gid;
}

// Also makes the folder of all stores, if no job has staged anything on this node yet. Both are open to all users,
// whatever the umask.
void make_folder(const fs::path& folder) {
  constexpr mode_t kForAll = 0755;
  for (const fs::path& each : {folder.parent_path(), folder}) {
    if (::mkdir(each.c_str(), kForAll) == 0) {
      if (::chmod(each.c_str(), kForAll) != 0) fail_errno("cannot set the mode of {}", each.string());
    } else if (errno != EEXIST) {
      fail_errno("cannot make {}", each.string());
    }
  }
}

// Whether the file's POSIX access list gives these permissions (of S_IROTH and S_IXOTH) to all that it names.
bool access_list_gives(const fs::path& path, mode_t wanted) {
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  };
  constexpr std::uint16_t kUser = 0x02;
  constexpr std::uint16_t kOwnersGroup = 0x04;
  constexpr std::uint16_t kGroup = 0x08;
  constexpr std::size_t kHeaderBytes = 4;
  std::vector<char> list(65536);  // the kernel's maximum
  const ssize_t bytes = ::getxattr(path.c_str(), "system.posix_acl_access", list.data(), list.size());
  if (bytes < 0 && errno != ENODATA && errno != ENOTSUP)
    fail_errno("cannot read the access list of {}", path.string());
  for (std::size_t at = kHeaderBytes; bytes >= 0 && at + sizeof(Entry) <= static_cast<std::size_t>(bytes);
       at += sizeof(Entry)) {
    Entry entry{};
    std::memcpy(&entry, list.data() + at, sizeof entry);
    const bool named = entry.tag == kUser || entry.tag == kOwnersGroup || entry.tag == kGroup;
    if (named && (entry.permissions & wanted) != wanted) return false;
  }
  return true;
}

// Whether everyone has these permissions. The file's group, and whoever an access list names, do not have those of others.
// With such a list the group's bits of the mode limit what it gives.
bool everyone_has(const fs::path& path, const struct stat& status, mode_t wanted) {
  const mode_t both = wanted | wanted << 3U;
  return (status.st_mode & both) == both && access_list_gives(path, wanted);
}

struct stat status_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail_errno("cannot stat {}", path.string());
  return status;
}

bool is_for_all(const fs::path& path) {
  const struct stat status = status_of(path);
  return everyone_has(path, status, S_ISDIR(status.st_mode) ? S_IROTH | S_IXOTH : S_IROTH);
}

// The files or the folder that the copy is made of.
std::vector<fs::path> parts_of(const Source& source) {
  std::vector<fs::path> parts = source.paths;
  if (fs::exists(source.index_file())) {
    parts.push_back(source.index_file());
  } else if (
      source.one_file) {  // other files may belong to it; and Megatron's prefix of two files is none itself
    const pack::Contents contents = pack::contents_of(parts.front());
    parts.clear();
    for (const std::string& file : contents.files) parts.push_back(contents.folder / file);
  }
  return parts;
}

// The first of a folder and those above it that not everyone may enter.
std::optional<fs::path> find_closed(const fs::path& folder) {
  for (fs::path above = folder; above != above.root_path(); above = above.parent_path()) {
    if (!everyone_has(above, status_of(above), S_IXOTH)) return above;
  }
  return {};
}

// The first part of the source that not everyone may read.
std::optional<fs::path> find_private(const Source& source) {
  if (std::optional<fs::path> closed = find_closed(source.folder)) return closed;
  for (const fs::path& path : parts_of(source)) {
    if (!is_for_all(path)) return path;
    if (!fs::is_directory(path)) continue;
    for (const fs::directory_entry& below : fs::recursive_directory_iterator(path)) {
      if (!is_for_all(below.path())) return below.path();
      if (!below.is_symlink()) continue;
      if (auto closed = find_closed(fs::canonical(below.path()).parent_path())) return closed;
    }
  }
  return {};
}

// A copy that everyone may read would disclose a source that not everyone may read.
void check_for_everyone(const std::string& source) {
  if (const std::optional<fs::path> found = find_private(resolve_source(source))) {
    fail(
        "{}: not everyone may read {}, but everyone could read the copy: name its readers with --group, or give --everyone",
        source, found->string());
  }
}

void run_prefetch(const Tool& tool, const PrefetchArguments& arguments) {
  const std::optional<gid_t> group = group_of(arguments.group);
  if (group && arguments.everyone) fail_usage("--group and --everyone exclude each other");
  if (!group && !arguments.everyone) {
    for (const std::string& source : arguments.sources) check_for_everyone(source);
  }
  make_folder((fs::absolute(arguments.cache) / ".").lexically_normal().parent_path());
  PutOptions options;
  options.cache_dir = arguments.cache;
  options.limits.quota = parse_bytes(arguments.quota);
  options.verify = parse_verify(arguments.verify);
  options.threads = arguments.threads;
  CopyProgress progress(tool, options);
  for (const std::string& source : arguments.sources) {
    const PutResult result = put({source}, options).at(0);
    progress.end();
    cache::share(arguments.cache, result.object, group, FileSystem::real());
    if (!result.note.empty()) tool.say(source + ": " + result.note);
    const std::string readers = group ? "group " + arguments.group : "all";
    if (tool.json()) {
      Tool::print({{"source", result.source},
                   {"path", result.path.string()},
                   {"bytes", result.bytes},
                   {"from_source", result.from_source},
                   {"hit", result.hit},
                   {"seconds", result.seconds},
                   {"object", result.object},
                   {"readers", readers}});
    } else {
      fmt::print("{}: {} {}, readable for {}: {}\n", printable(result.source), format_bytes(result.bytes),
                 result.hit ? "found in the cache" : "copied", readers, printable(result.path.string()));
    }
  }
}

}  // namespace

void add_prefetch_verb(Tool& tool) {
  const auto arguments = std::make_shared<PrefetchArguments>();
  CLI::App& verb = tool.verb("prefetch", "For admins: copy sources into the store that all users read",
                             [&tool, arguments] { run_prefetch(tool, *arguments); });
  verb.add_option("source", arguments->sources, "As for put")->required();
  verb.add_option("--cache", arguments->cache, "The shared store, <cache>/shared; made if missing")
      ->required()
      ->check(Tool::named());
  verb.add_option("--group", arguments->group, "Only this group may read the copies; default: everyone");
  verb.add_flag("--everyone", arguments->everyone,
                "Let everyone read the copies, even if not everyone may read the sources");
  verb.add_option("--quota", arguments->quota, "Limit for the shared store; 0: no limit");
  verb.add_option("--verify", arguments->verify, "How to check an existing copy: quick, full or off")
      ->capture_default_str();
  verb.add_option("--threads", arguments->threads, "Files to copy at a time, up to 32; 0: automatic")
      ->check(CLI::Range(0, 32));
}

}  // namespace lockstep::transfer
