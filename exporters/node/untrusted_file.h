// Reads a small file that a user may have written.
//
// Threads: safe from any.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <span>
#include <string>

#include "common/error.h"
#include "common/files.h"

namespace lockstep::exporter {

/// An open file as text. Throws Error naming it if it is not a regular file or has more than `max_bytes`.
inline std::string read_untrusted_file(const UniqueFd& fd, std::uint64_t max_bytes, const std::string& name) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot read {}", name);
  if (!S_ISREG(status.st_mode)) fail("cannot read {}: it is not a regular file", name);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > max_bytes) fail("cannot read {}: it has {} bytes, more than it can have", name, size);
  std::string text(size, '\0');
  const ssize_t got = read_at(fd.get(), std::as_writable_bytes(std::span(text)), 0);
  if (got < 0) fail_errno("cannot read {}", name);
  text.resize(static_cast<std::size_t>(got));
  return text;
}

}  // namespace lockstep::exporter
