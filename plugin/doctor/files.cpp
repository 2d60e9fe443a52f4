#include <grp.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <fstream>
#include <sstream>

#include "common/error.h"
#include "common/units.h"
#include "plugin/doctor/checks.h"
#include "plugin/spank/process/folder.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

// The folder itself, or the nearest one above it that exists.
fs::path existing(fs::path folder) {
  std::error_code ignored;
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

bool is_missing(const fs::path& folder) {
  struct stat about {};
  return ::lstat(folder.c_str(), &about) != 0 && errno == ENOENT;
}

struct DiskSpace {
  std::uint64_t size = 0;
  std::uint64_t available = 0;  ///< to users
};

DiskSpace space_of(const fs::path& folder) {
  struct statvfs about {};
  if (::statvfs(folder.c_str(), &about) != 0) fail_errno("cannot read the size of {}", folder.string());
  return {about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize};
}

void check_root_folder(const char* key, const std::string& folder, Report& report) {
  if (is_missing(folder)) {
    return report.ok("folders", fmt::format("{} {} does not exist; the plugin makes it", key, folder));
  }
  try {
    spank::Folder::open_root(folder, false);
    report.ok("folders", fmt::format("{} {} belongs to root", key, folder));
  } catch (const Error& error) {
    report.error(
        "folders", fmt::format("{}: {}", key, error.what()),
        "Root makes users' folders in it and refuses one that others could change.",
        fmt::format("chown root: {0}; chmod 755 {0}, or correct '{1}' in lockstep.conf", folder, key));
  }
}

void check_memory(const char* key, const std::string& folder, const char* why, Report& report) {
  const fs::path nearest = existing(folder);
  const std::string type = file_system_type(nearest);
  if (disk_of(type) == Disk::memory) return;
  report.warning(
      "folders", fmt::format("{} {} is on {}, not in memory", key, folder, type), why,
      fmt::format("name a folder on a tmpfs, such as one in /run, with '{}' in lockstep.conf", key));
}

// A mount from the command line lasts until the next boot.
std::string in_fstab(const fs::path& folder, const char* options) {
  return fmt::format("to keep it, write in /etc/fstab: tmpfs {} tmpfs {} 0 0", folder.string(), options);
}

}  // namespace

std::string file_system_type(const fs::path& path) {
  // "36 35 98:0 /root /mount options - type source options"; the last mount of a folder covers earlier ones.
  const fs::path real = fs::canonical(path);
  std::ifstream mounts("/proc/self/mountinfo");
  std::string best;
  std::size_t longest = 0;
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string word;
    std::string mount;
    for (int i = 0; i < 5; ++i) words >> mount;
    while (words >> word && word != "-") {
    }
    words >> word;
    const bool holds = mount == "/" || real == mount || real.string().starts_with(mount + "/");
    if (!holds || mount.size() < longest) continue;
    longest = mount.size();
    best = word;
  }
  return best;
}

Disk disk_of(const std::string& type) {
  if (type == "tmpfs" || type == "ramfs" || type == "hugetlbfs") return Disk::memory;
  for (const char* const network :
       {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "9p", "virtiofs", "panfs",
        "wekafs", "pvfs2", "orangefs", "glusterfs", "ocfs2", "gfs2"}) {
    if (type == network || type == std::string("fuse.") + network) return Disk::network;
  }
  if (type == "fuse.sshfs") return Disk::network;
  return type.starts_with("fuse") ? Disk::unsure : Disk::local;
}

void check_group(const Config& config, Report& report) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread reads the groups
  if (::getgrnam(config.group.c_str()) != nullptr) {
    return report.ok("group", fmt::format("there is a group '{}'", config.group));
  }
  report.warning("group", fmt::format("there is no group '{}'", config.group),
                 "Without it --metrics=on has no effect, and the node's jobs are missing in Prometheus.",
                 fmt::format("groupadd --system {}", config.group));
}

void check_folders(const Config& config, Report& report) {
  if (!config.cache.empty()) check_root_folder("cache", config.cache, report);
  if (!config.shared.empty() && is_missing(config.shared)) {
    report.warning("folders", fmt::format("shared {} does not exist", config.shared),
                   "Jobs make their own copies of the data that should be in it.",
                   fmt::format("lockstep-stage prefetch SOURCE --cache {}", config.shared));
  } else if (!config.shared.empty()) {
    check_root_folder("shared", config.shared, report);
  }
  check_root_folder("records", config.records, report);
  check_memory("records", config.records,
               "Ranks write there at every step, and a slow disk would delay them.", report);
  check_root_folder("links", config.links, report);
  if (config.ram == 0) return;
  if (is_missing(config.ram_cache)) {
    report.warning(
        "folders", fmt::format("ram_cache {} does not exist", config.ram_cache),
        "A user could make that name first, and then the plugin refuses --stage-tier=ram.",
        fmt::format(
            "echo 'd {} 0755 root root' >/etc/tmpfiles.d/lockstep-ram.conf; systemd-tmpfiles --create",
            config.ram_cache));
  } else {
    check_root_folder("ram_cache", config.ram_cache, report);
  }
  check_memory("ram_cache", config.ram_cache, "The RAM tier is then only as fast as that file system.",
               report);
}

void check_cache(const Config& config, Report& report) {
  if (config.cache.empty()) {
    return report.warning("cache", "'cache' is not set in lockstep.conf", "Jobs with --stage are refused.",
                          "set 'cache' in lockstep.conf to a folder on the nodes' local disks");
  }
  const fs::path nearest = existing(config.cache);
  if (const fs::path parent = fs::path(config.cache).parent_path(); is_missing(parent)) {
    return report.error(
        "cache", fmt::format("{} does not exist, and neither does {}", config.cache, parent.string()),
        "Jobs with --stage are refused on this node.", "mount the node's local disk, or correct 'cache'");
  }
  const std::string type = file_system_type(nearest);
  const Disk disk = disk_of(type);
  const std::string on = fmt::format("the cache {} is on {}", config.cache, type);
  if (disk == Disk::network) {
    return report.error(
        "cache", on + ", a network file system",
        "Staging there copies from the network to the network, and its locks work on local disks only.",
        "set 'cache' in lockstep.conf to a folder on the nodes' local disks");
  }
  if (disk != Disk::local) {
    report.warning("cache", on,
                   disk == Disk::memory ? "Staged data uses the memory of jobs."
                                        : "Locks and speed may differ from a local disk's.",
                   "set 'cache' in lockstep.conf to a folder on the nodes' local disks");
  }
  const DiskSpace space = space_of(nearest);
  const std::uint64_t limit = std::max(config.total, config.quota);
  if (limit > space.size) {
    report.warning("cache",
                   fmt::format("'{}' is {}, and the disk of the cache has {}",
                               config.total >= config.quota ? "total" : "quota", format_bytes(limit),
                               format_bytes(space.size)),
                   "The disk fills up before old data is evicted.",
                   fmt::format("set it below {} in lockstep.conf", format_bytes(space.size)));
  }
  constexpr std::uint64_t kTwentieth = 20;
  if (space.available < space.size / kTwentieth) {
    report.warning(
        "cache",
        fmt::format("the disk of the cache has {} of {} free", format_bytes(space.available),
                    format_bytes(space.size)),
        "Copies fail, or evict data that jobs still need.",
        fmt::format("lockstep-stage status --cache {}; free space that others use, or set 'min_free'",
                    config.cache));
  }
  if (disk == Disk::local) report.ok("cache", fmt::format("{}, {} free", on, format_bytes(space.available)));
}

void check_shared_memory(const fs::path& folder, Report& report) {
  constexpr mode_t kForAll = 01777;
  constexpr std::uint64_t kSmall = 512ULL << 20U;
  struct stat about {};
  if (::stat(folder.c_str(), &about) != 0 || (about.st_mode & 07777U) != kForAll) {
    return report.error("shm", fmt::format("{} must exist with mode 1777", folder.string()),
                        "MPI, NCCL and loaders of PyTorch share memory there, and fail without it.",
                        fmt::format("chmod 1777 {0} || mount -t tmpfs -o mode=1777 tmpfs {0}; {1}",
                                    folder.string(), in_fstab(folder, "mode=1777")));
  }
  const DiskSpace space = space_of(folder);
  if (space.available >= kSmall) {
    return report.ok("shm", fmt::format("{} has {} free", folder.string(), format_bytes(space.available)));
  }
  report.warning(
      "shm",
      fmt::format("{} has {} of {} free", folder.string(), format_bytes(space.available),
                  format_bytes(space.size)),
      "MPI, NCCL and loaders of PyTorch share memory there; some end with a bus error if it is full.",
      fmt::format("ls -l {0}; remove what ended jobs left, or mount -o remount,size=50% {0}; {1}",
                  folder.string(), in_fstab(folder, "mode=1777,size=50%")));
}

}  // namespace lockstep::doctor
