// Reads whole files, replaces files atomically, and writes output that a user requested by name (--out FILE).
//
// Threads: safe from any.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "common/leaf/unique_fd.h"

namespace lockstep {

/// The folder that holds `path`; "." for a name alone.
std::filesystem::path parent_of(const std::filesystem::path& path);

/// open(2) with O_CLOEXEC. Throws Error "cannot open PATH: reason".
UniqueFd open_file(const std::filesystem::path& path, int flags, mode_t mode = 0644);

/// The whole file as text. Throws Error naming the path.
std::string read_text_file(const std::filesystem::path& path);

/// A small file that another user may have written, as text. Throws Error naming it if it is not a regular file or has more
/// than `max_bytes`.
std::string read_untrusted_file(const UniqueFd& fd, std::uint64_t max_bytes, const std::string& name);

/// Reads into.size() bytes at `offset`, or fewer if the file ends earlier. Continues after short reads and
/// EINTR. Returns the number of bytes read, or -1 with errno set, as pread(2) does.
ssize_t read_at(int fd, std::span<std::byte> into, std::uint64_t offset);

/// Writes to a temporary name in the same folder, syncs, renames and syncs the folder: a reader sees the old
/// file or the new one. Throws Error naming the path, and leaves no temporary file behind.
void write_file_atomically(const std::filesystem::path& path, std::string_view content, mode_t mode = 0644);
/// The same with the content that `write` writes to the descriptor.
void write_file_atomically(const std::filesystem::path& path, const std::function<void(int)>& write,
                           mode_t mode = 0644);

/// Writes all bytes at the file position; continues after short writes and EINTR. Throws Error naming `path`.
void write_all(int fd, std::string_view content, const std::filesystem::path& path);

/// Replaces a regular file as a whole, as write_file_atomically() does, or makes it; of a symbolic link it replaces the
/// target. Writes into the existing file if it is not regular (a pipe, /dev/null), if it is named as an open descriptor
/// (/dev/fd/3), or if standard output goes to it: replacing it would lose its content and what is printed later. Throws Error
/// naming the path.
void write_output(const std::filesystem::path& path, std::string_view content);
/// The same with the content that `write` writes to the descriptor, for one that does not fit in memory.
void write_output(const std::filesystem::path& path, const std::function<void(int)>& write);

}  // namespace lockstep
