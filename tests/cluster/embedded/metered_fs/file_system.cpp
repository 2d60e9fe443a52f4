#include "tests/cluster/embedded/metered_fs/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "common/error.h"
#include "tests/cluster/embedded/metered_fs/inode_table.h"

namespace lockstep::metered_fs {
namespace {

struct FileSystem {
  InodeTable inodes;
  Meter& meter;
  Counters& counters;
};

FileSystem& of(fuse_req_t request) {
  return *static_cast<FileSystem*>(fuse_req_userdata(request));
}

// Counts an operation, waits for its delay, and returns the file system.
FileSystem& begin(fuse_req_t request, Counter Counters::*counter) {
  FileSystem& files = of(request);
  files.meter.operation(files.counters.*counter);
  return files;
}

// The kernel has checked the permissions (default_permissions). New files must belong to the caller: this
// thread acts as the caller while this object lives, and keeps its capabilities (see serve).
class ActAs {
 public:
  explicit ActAs(fuse_req_t request) {
    setfsgid(fuse_req_ctx(request)->gid);
    setfsuid(fuse_req_ctx(request)->uid);
  }
  ~ActAs() {
    setfsuid(0);
    setfsgid(0);
  }
  ActAs(const ActAs&) = delete;
  ActAs& operator=(const ActAs&) = delete;
};

void reply(fuse_req_t request, int result) {
  fuse_reply_err(request, result == 0 ? 0 : errno);
}

void reply_entry(fuse_req_t request, fuse_ino_t parent, const char* name) {
  fuse_entry_param entry;
  if (const int error = of(request).inodes.lookup(parent, name, entry); error != 0) {
    fuse_reply_err(request, error);
  } else if (fuse_reply_entry(request, &entry) != 0) {
    of(request).inodes.forget(entry.ino, 1);
  }
}

// A path to the file of an O_PATH descriptor, for calls that do not accept such a descriptor.
std::string path_of(int fd) {
  return "/proc/self/fd/" + std::to_string(fd);
}

// The flags for the backing file: O_DIRECT would require aligned buffers, and the path under /proc is a
// symbolic link.
int backing_flags(int flags) {
  return (flags & ~(O_DIRECT | O_NOFOLLOW)) | O_CLOEXEC;
}

int handle(const fuse_file_info* info) {
  return static_cast<int>(info->fh);
}

void initialise(void* /*files*/, fuse_conn_info* connection) {
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_AUTO_INVAL_DATA);
  connection->max_background = 64;
}

void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  begin(request, &Counters::lookups);
  reply_entry(request, parent, name);
}

void forget(fuse_req_t request, fuse_ino_t number, std::uint64_t lookups) {
  of(request).inodes.forget(number, lookups);
  fuse_reply_none(request);
}

void forget_multi(fuse_req_t request, std::size_t count, fuse_forget_data* forgotten) {
  for (std::size_t i = 0; i < count; ++i) of(request).inodes.forget(forgotten[i].ino, forgotten[i].nlookup);
  fuse_reply_none(request);
}

void reply_attributes(fuse_req_t request, fuse_ino_t number) {
  struct stat status {};
  if (fstatat(of(request).inodes.open(number).get(), "", &status, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0) {
    fuse_reply_err(request, errno);
  } else {
    fuse_reply_attr(request, &status, 0);
  }
}

void getattr(fuse_req_t request, fuse_ino_t number, fuse_file_info* /*info*/) {
  begin(request, &Counters::getattrs);
  reply_attributes(request, number);
}

timespec time_to_set(int to_set, int set, int set_now, const timespec& value) {
  if ((to_set & set_now) != 0) return {0, UTIME_NOW};
  if ((to_set & set) != 0) return value;
  return {0, UTIME_OMIT};
}

int set_attributes(int fd, const struct stat& wanted, int to_set, const fuse_file_info* info) {
  const std::string path = path_of(fd);
  if ((to_set & FUSE_SET_ATTR_MODE) != 0 && chmod(path.c_str(), wanted.st_mode) != 0) return -1;
  if ((to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) != 0) {
    const uid_t uid = (to_set & FUSE_SET_ATTR_UID) != 0 ? wanted.st_uid : static_cast<uid_t>(-1);
    const gid_t gid = (to_set & FUSE_SET_ATTR_GID) != 0 ? wanted.st_gid : static_cast<gid_t>(-1);
    if (fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0) return -1;
  }
  if ((to_set & FUSE_SET_ATTR_SIZE) != 0) {
    const int result =
        info != nullptr ? ftruncate(handle(info), wanted.st_size) : truncate(path.c_str(), wanted.st_size);
    if (result != 0) return -1;
  }
  if ((to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) != 0) {
    const timespec times[2] = {
        time_to_set(to_set, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW, wanted.st_atim),
        time_to_set(to_set, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW, wanted.st_mtim)};
    if (utimensat(fd, "", times, AT_EMPTY_PATH) != 0) return -1;
  }
  return 0;
}

void setattr(fuse_req_t request, fuse_ino_t number, struct stat* wanted, int to_set, fuse_file_info* info) {
  const FileSystem& files = begin(request, &Counters::others);
  if (set_attributes(files.inodes.open(number).get(), *wanted, to_set, info) != 0) {
    fuse_reply_err(request, errno);
  } else {
    reply_attributes(request, number);
  }
}

void readlink(fuse_req_t request, fuse_ino_t number) {
  const FileSystem& files = begin(request, &Counters::others);
  char target[PATH_MAX + 1];
  const ssize_t size = ::readlinkat(files.inodes.open(number).get(), "", target, PATH_MAX);
  if (size < 0) {
    fuse_reply_err(request, errno);
  } else {
    target[size] = 0;
    fuse_reply_readlink(request, target);
  }
}

// Replies to a call that has made `name` in `parent`.
void reply_made(fuse_req_t request, fuse_ino_t parent, const char* name, int result) {
  if (result != 0) {
    fuse_reply_err(request, errno);
  } else {
    reply_entry(request, parent, name);
  }
}

void mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  const FileSystem& files = begin(request, &Counters::others);
  const ActAs caller(request);
  reply_made(request, parent, name, ::mknodat(files.inodes.open(parent).get(), name, mode, device));
}

void mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  const FileSystem& files = begin(request, &Counters::others);
  const ActAs caller(request);
  reply_made(request, parent, name, ::mkdirat(files.inodes.open(parent).get(), name, mode));
}

void symlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  const FileSystem& files = begin(request, &Counters::others);
  const ActAs caller(request);
  reply_made(request, parent, name, ::symlinkat(target, files.inodes.open(parent).get(), name));
}

void link(fuse_req_t request, fuse_ino_t number, fuse_ino_t parent, const char* name) {
  const FileSystem& files = begin(request, &Counters::others);
  const InodeFd file = files.inodes.open(number);
  const std::string path = path_of(file.get());
  reply_made(request, parent, name,
             ::linkat(AT_FDCWD, path.c_str(), files.inodes.open(parent).get(), name, AT_SYMLINK_FOLLOW));
}

void unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  reply(request, ::unlinkat(begin(request, &Counters::others).inodes.open(parent).get(), name, 0));
}

void rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  reply(request, ::unlinkat(begin(request, &Counters::others).inodes.open(parent).get(), name, AT_REMOVEDIR));
}

void rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
            const char* new_name, unsigned flags) {
  const FileSystem& files = begin(request, &Counters::others);
  reply(request, ::renameat2(files.inodes.open(parent).get(), name, files.inodes.open(new_parent).get(),
                             new_name, flags));
}

void open(fuse_req_t request, fuse_ino_t number, fuse_file_info* info) {
  const FileSystem& files = begin(request, &Counters::opens);
  const int fd = ::open(path_of(files.inodes.open(number).get()).c_str(), backing_flags(info->flags));
  if (fd < 0) {
    fuse_reply_err(request, errno);
    return;
  }
  info->fh = static_cast<std::uint64_t>(fd);
  if (fuse_reply_open(request, info) != 0) ::close(fd);
}

void create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  FileSystem& files = begin(request, &Counters::opens);
  int fd = -1;
  {
    const ActAs caller(request);
    // O_NOFOLLOW: another machine may have put a symbolic link there, which this side must not follow.
    fd = ::openat(files.inodes.open(parent).get(), name, backing_flags(info->flags) | O_CREAT | O_NOFOLLOW,
                  mode);
  }
  if (fd < 0) {
    fuse_reply_err(request, errno);
    return;
  }
  info->fh = static_cast<std::uint64_t>(fd);
  fuse_entry_param entry;
  if (const int error = files.inodes.lookup(parent, name, entry); error != 0) {
    ::close(fd);
    fuse_reply_err(request, error);
  } else if (fuse_reply_create(request, &entry, info) != 0) {
    ::close(fd);
    files.inodes.forget(entry.ino, 1);
  }
}

void read(fuse_req_t request, fuse_ino_t /*number*/, std::size_t size, off_t offset, fuse_file_info* info) {
  FileSystem& files = begin(request, &Counters::reads);
  thread_local std::vector<char> buffer;
  if (buffer.size() < size) buffer.resize(size);
  const ssize_t count = ::pread(handle(info), buffer.data(), size, offset);
  if (count < 0) {
    fuse_reply_err(request, errno);
    return;
  }
  files.counters.bytes_read += static_cast<std::uint64_t>(count);
  files.meter.transfer(static_cast<std::uint64_t>(count));
  fuse_reply_buf(request, buffer.data(), static_cast<std::size_t>(count));
}

void write(fuse_req_t request, fuse_ino_t /*number*/, const char* data, std::size_t size, off_t offset,
           fuse_file_info* info) {
  FileSystem& files = begin(request, &Counters::writes);
  const ssize_t count = ::pwrite(handle(info), data, size, offset);
  if (count < 0) {
    fuse_reply_err(request, errno);
    return;
  }
  files.counters.bytes_written += static_cast<std::uint64_t>(count);
  files.meter.transfer(static_cast<std::uint64_t>(count));
  fuse_reply_write(request, static_cast<std::size_t>(count));
}

void release(fuse_req_t request, fuse_ino_t /*number*/, fuse_file_info* info) {
  ::close(handle(info));
  fuse_reply_err(request, 0);
}

void fsync(fuse_req_t request, fuse_ino_t /*number*/, int data_only, fuse_file_info* info) {
  begin(request, &Counters::others);
  reply(request, data_only != 0 ? ::fdatasync(handle(info)) : ::fsync(handle(info)));
}

void fallocate(fuse_req_t request, fuse_ino_t /*number*/, int mode, off_t offset, off_t length,
               fuse_file_info* info) {
  begin(request, &Counters::others);
  reply(request, ::fallocate(handle(info), mode, offset, length));
}

DIR* folder(const fuse_file_info* info) {
  return reinterpret_cast<DIR*>(info->fh);  // NOLINT(performance-no-int-to-ptr): set in opendir
}

void opendir(fuse_req_t request, fuse_ino_t number, fuse_file_info* info) {
  const FileSystem& files = begin(request, &Counters::others);
  const int fd = ::openat(files.inodes.open(number).get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* opened = fd < 0 ? nullptr : ::fdopendir(fd);
  if (opened == nullptr) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    fuse_reply_err(request, error);
    return;
  }
  info->fh = reinterpret_cast<std::uint64_t>(opened);
  if (fuse_reply_open(request, info) != 0) ::closedir(opened);
}

void readdir(fuse_req_t request, fuse_ino_t /*number*/, std::size_t size, off_t offset,
             fuse_file_info* info) {
  begin(request, &Counters::others);
  DIR* opened = folder(info);
  ::seekdir(opened, offset);
  std::vector<char> buffer(size);
  std::size_t used = 0;
  while (const dirent* found = ::readdir(opened)) {
    struct stat status {};
    status.st_ino = found->d_ino;
    status.st_mode = static_cast<mode_t>(found->d_type) << 12;
    const std::size_t needed =
        fuse_add_direntry(request, buffer.data() + used, size - used, found->d_name, &status, found->d_off);
    if (needed > size - used) break;
    used += needed;
  }
  fuse_reply_buf(request, buffer.data(), used);
}

void releasedir(fuse_req_t request, fuse_ino_t /*number*/, fuse_file_info* info) {
  ::closedir(folder(info));
  fuse_reply_err(request, 0);
}

void fsyncdir(fuse_req_t request, fuse_ino_t /*number*/, int /*data_only*/, fuse_file_info* info) {
  begin(request, &Counters::others);
  reply(request, ::fsync(::dirfd(folder(info))));
}

void statfs(fuse_req_t request, fuse_ino_t number) {
  const FileSystem& files = begin(request, &Counters::others);
  struct statvfs status {};
  if (::fstatvfs(files.inodes.open(number).get(), &status) != 0) {
    fuse_reply_err(request, errno);
  } else {
    fuse_reply_statfs(request, &status);
  }
}

fuse_lowlevel_ops operations() {
  fuse_lowlevel_ops table{};
  table.init = initialise;
  table.lookup = lookup;
  table.forget = forget;
  table.forget_multi = forget_multi;
  table.getattr = getattr;
  table.setattr = setattr;
  table.readlink = readlink;
  table.mknod = mknod;
  table.mkdir = mkdir;
  table.symlink = symlink;
  table.link = link;
  table.unlink = unlink;
  table.rmdir = rmdir;
  table.rename = rename;
  table.open = open;
  table.create = create;
  table.read = read;
  table.write = write;
  table.release = release;
  table.fsync = fsync;
  table.fallocate = fallocate;
  table.opendir = opendir;
  table.readdir = readdir;
  table.releasedir = releasedir;
  table.fsyncdir = fsyncdir;
  table.statfs = statfs;
  return table;
}

// Each file is open twice: here and at the caller. Without handles, each file that the kernel knows is open.
void allow_many_open_files() {
  rlimit limit{1 << 20, 1 << 20};
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

void serve(const std::filesystem::path& backing, const std::filesystem::path& mount_point, Meter& meter,
           Counters& counters) {
  allow_many_open_files();
  umask(0);  // the kernel has applied the caller's umask
  if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) != 0) fail_errno("metered-fs needs root");
  FileSystem files{InodeTable(open_file(backing, O_RDONLY | O_DIRECTORY)), meter, counters};

  fuse_args arguments = FUSE_ARGS_INIT(0, nullptr);
  for (const char* argument : {"metered-fs", "-odefault_permissions,allow_other,fsname=metered-fs"}) {
    if (fuse_opt_add_arg(&arguments, argument) != 0) fail("out of memory");
  }
  const fuse_lowlevel_ops table = operations();
  fuse_session* session = fuse_session_new(&arguments, &table, sizeof(table), &files);
  fuse_opt_free_args(&arguments);
  if (session == nullptr) fail("cannot start a FUSE session for {}", mount_point.string());
  if (fuse_set_signal_handlers(session) != 0 || fuse_session_mount(session, mount_point.c_str()) != 0) {
    fuse_session_destroy(session);
    fail("cannot mount at {}", mount_point.string());
  }
  fuse_loop_config* config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_max_threads(config, 64);  // an operation that waits occupies a thread
  const int result = fuse_session_loop_mt(session, config);
  fuse_loop_cfg_destroy(config);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  if (result < 0) fail("the FUSE session at {} failed: {}", mount_point.string(), errno_text(-result));
}

}  // namespace lockstep::metered_fs
