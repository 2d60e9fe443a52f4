// Notices a call at the source, or at this node's own disk, that does not come back. A network file system
// whose server is gone keeps who reads from it waiting, for ever where it is mounted so, and a disk that is
// dying who writes to it; and with that node all others that wait for what it was to read. A thread of the
// watch's own looks at the calls that are under way, since those in them cannot.
//
// Its time is that of this process: while that is stopped (a job that is suspended), no time passes.
//
// Threads: call() and disk_call() from any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace lockstep::transfer {

class HangWatch {
  struct Entry {
    std::filesystem::path path;  // at the source; "" for the disk
    int since = 0;               // in ticks
    int patiences = 1;           // that it may take
  };

 public:
  /// What did not come back.
  enum class Where { source, disk };
  /// `why` is one line for a person.
  using Hung = std::function<void(Where where, const std::string& why)>;

  /// A call under way, until this object's end.
  class Call {
   public:
    Call(HangWatch& watch, std::list<Entry>::iterator entry) : watch_(watch), entry_(entry) {}
    ~Call() { watch_.ended(entry_); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    HangWatch& watch_;
    std::list<Entry>::iterator entry_;
  };

  /// A call that takes longer than `patience` has hung. `hung` is then called, once, from the watch's thread;
  /// where that call comes back after all it waits until `hung` returns, while the others go on. Without
  /// `hung` nothing is watched. `disk` names the node's disk, for that line.
  HangWatch(std::chrono::milliseconds patience, Hung hung, std::string disk = "");
  ~HangWatch();
  HangWatch(const HangWatch&) = delete;
  HangWatch& operator=(const HangWatch&) = delete;

  /// Watches nothing.
  static HangWatch& none();
  /// How long a call may take where `nodes` read at once: five minutes, in which a file server that is
  /// started anew is back, and a second more for each node, in which a slow one has served the 16 MiB that
  /// each asks for at a time. Waiting for a limit of bandwidth is no call. Calls that write to the disk what
  /// lies in memory may take six times as long: they wait for what others have written there, too.
  static std::chrono::milliseconds patience(std::size_t nodes);

  /// Says that a call for this file or folder begins.
  [[nodiscard]] Call call(const std::filesystem::path& path);
  /// Says that a call at this node's disk begins. Within a call at the source it is that one's.
  [[nodiscard]] Call disk_call(bool writes_out = false);
  /// The same for FileSystemAround.
  std::shared_ptr<void> held_disk_call(bool writes_out = false) {
    return std::shared_ptr<Call>(new Call(disk_call(writes_out)));
  }
  /// Returns when `hung` is not being called: before this thread says how staging ended, which that may have
  /// begun to say.
  void wait_for_telling();

 private:
  void watch();
  void ended(std::list<Entry>::iterator entry);

  std::chrono::milliseconds patience_;
  Hung hung_;
  std::string disk_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> calls_;  // the oldest first
  int ticks_ = 0;
  std::list<Entry>::iterator hangs_;  // while telling_
  bool telling_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace lockstep::transfer
