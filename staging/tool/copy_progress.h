// The progress line of a verb that copies sources into a store.
//
// Threads: put() calls from one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/progress.h"
#include "common/tool.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// One progress line for each source that is copied.
class CopyProgress {
 public:
  /// `options` are those of the put(), which this object must outlive, as must `tool`.
  CopyProgress(const Tool& tool, PutOptions& options) {
    options.on.waiting = [&tool](const std::string& source) {
      tool.say(source + ": another process is copying it, waiting");
    };
    options.on.progress = [this](const std::string& source, const PutProgress& now) { update(source, now); };
  }
  CopyProgress(const CopyProgress&) = delete;
  CopyProgress& operator=(const CopyProgress&) = delete;
  /// Removes the progress line, so that another line can be printed.
  void end() { progress_.reset(); }

 private:
  void update(const std::string& source, const PutProgress& now) {
    if (!progress_ || source != source_) {
      progress_.reset();
      progress_ = std::make_unique<Progress>("staging " + source, now.total);
      source_ = source;
    }
    progress_->update(now.done);
  }

  std::string source_;
  std::unique_ptr<Progress> progress_;
};

}  // namespace lockstep::transfer
