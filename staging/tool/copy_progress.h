// The progress line of a verb that copies sources into a store.
//
// Threads: put() calls from one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/progress.h"

namespace lockstep::transfer {

/// One progress line for each source that is copied.
class CopyProgress {
 public:
  /// Removes the progress line, so that another line can be printed.
  void end() { progress_.reset(); }
  void update(const std::string& source, std::uint64_t done, std::uint64_t total) {
    if (!progress_ || source != source_) {
      progress_.reset();
      progress_ = std::make_unique<Progress>("staging " + source, total);
      source_ = source;
    }
    progress_->update(done);
  }

 private:
  std::string source_;
  std::unique_ptr<Progress> progress_;
};

}  // namespace lockstep::transfer
