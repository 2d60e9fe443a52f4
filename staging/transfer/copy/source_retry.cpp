#include "staging/transfer/copy/source_retry.h"

#include <cerrno>
#include <system_error>
#include <thread>

#include "common/units.h"

namespace lockstep::transfer {
namespace {

constexpr int kRetries = 5;

/// Errors that may pass when the file system can be reached again, unlike a file that is gone or not readable.
bool may_pass(int error) {
  switch (error) {
    case EIO:
    case EREMOTEIO:
    case ESTALE:
    case ENOTCONN:
    case ECONNRESET:
    case ETIMEDOUT:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
      return true;
    default:
      return false;
  }
}

}  // namespace

void retry_source(std::chrono::milliseconds pause, const std::function<void()>& work,
                  const std::function<void()>& before_next) {
  std::chrono::milliseconds waited{};
  for (int retry = 0;; ++retry) {
    std::string failed;
    try {
      return work();
    } catch (const SystemError& error) {
      if (!may_pass(error.code())) throw;
      failed = error.what();
    } catch (const std::system_error& error) {  // of std::filesystem
      if (!may_pass(error.code().value())) throw;
      failed = error.what();
    }
    if (retry == kRetries) {
      throw SourceUnreachable(
          fmt::format("{} (tried {} times in {}): check that its file system is mounted and responding",
                      failed, kRetries + 1, format_seconds(std::chrono::duration<double>(waited).count())));
    }
    std::this_thread::sleep_for(pause);
    waited += pause;
    pause *= 2;
    if (before_next) before_next();
  }
}

}  // namespace lockstep::transfer
