// Notices a call at the source that does not come back. A network file system whose server is gone keeps who
// reads from it waiting, for ever where it is mounted so, and with that node all others that wait for what it
// was to read. A thread of the watch's own looks at the calls that are under way, since those in them cannot.
//
// Its time is that of this process: while that is stopped (a job that is suspended), no time passes.
//
// Threads: call() from any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

namespace lockstep::transfer {

class SourceWatch {
  struct Entry {
    std::filesystem::path path;
    int since = 0;  // in ticks
  };

 public:
  /// A call under way, until this object's end.
  class Call {
   public:
    Call(SourceWatch& watch, std::list<Entry>::iterator entry) : watch_(watch), entry_(entry) {}
    ~Call() { watch_.ended(entry_); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    SourceWatch& watch_;
    std::list<Entry>::iterator entry_;
  };

  /// A call that takes longer than `patience` has hung. `hung` is then called, once, from the watch's thread,
  /// with one line for a person; calls that come back meanwhile wait until it returns. Without it nothing is
  /// watched.
  SourceWatch(std::chrono::milliseconds patience, std::function<void(const std::string& why)> hung);
  ~SourceWatch();
  SourceWatch(const SourceWatch&) = delete;
  SourceWatch& operator=(const SourceWatch&) = delete;

  /// Watches nothing.
  static SourceWatch& none();
  /// How long a call may take where `nodes` read at once: five minutes, in which a file server that is
  /// started anew is back, and a second more for each node, in which a slow one has served the 16 MiB that
  /// each asks for at a time. Waiting for a limit of bandwidth is no call.
  static std::chrono::milliseconds patience(std::size_t nodes);

  /// Says that a call for this file or folder begins.
  [[nodiscard]] Call call(const std::filesystem::path& path);

 private:
  void watch();
  void ended(std::list<Entry>::iterator entry);

  std::chrono::milliseconds patience_;
  std::function<void(const std::string& why)> hung_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> calls_;  // the oldest first
  int ticks_ = 0;
  bool telling_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace lockstep::transfer
