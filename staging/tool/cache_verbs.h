// The verbs of lockstep-stage that fill and manage a node's cache: put, ls, verify, status, gc, prefetch.
//
// Threads: main's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/tool.h"
#include "common/units.h"
#include "staging/cache/node.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {

void add_cache_verbs(Tool& tool);

inline constexpr int kMaxKeepSeconds = 1'000'000'000;  // for --keep

// The verbs that have a file of their own.
void add_gc_verb(Tool& tool);
void add_prefetch_verb(Tool& tool);
void add_put_verb(Tool& tool);

/// "2026-11-21 03:04:05", in the node's time zone; "-" for no time.
std::string format_time(cache::Time time);
/// Opens a store that exists. Throws Error naming the folder.
cache::Store existing_store(const std::string& folder, cache::StoreOptions options = {});

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
