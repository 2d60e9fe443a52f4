#include "common/leaf/memory_file.h"

#include <sys/mman.h>

#include <cerrno>

namespace lockstep {
namespace {

constexpr unsigned kNoExecSeal = 0x8;  // MFD_NOEXEC_SEAL, which older headers lack

}  // namespace

UniqueFd make_memory_file(const char* name) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC | kNoExecSeal));
  if (!file && errno == EINVAL) file.reset(::memfd_create(name, MFD_CLOEXEC));  // Linux before 6.3
  return file;
}

}  // namespace lockstep
