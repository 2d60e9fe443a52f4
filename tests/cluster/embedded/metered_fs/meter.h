// Makes the cost of a shared file system deterministic: counters for each machine of the cluster, a bandwidth
// that all machines share, and a delay for each operation. All of it is in a small file, which the machines'
// file systems and the readers of the numbers map.
//
// Threads: may be used from any thread of any number of processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::metered_fs {

using Counter = std::atomic<std::uint64_t>;

/// The operations of one machine since the last reset.
struct Counters {
  Counter bytes_read;     ///< returned by reads
  Counter bytes_written;  ///< accepted by writes
  Counter reads;
  Counter writes;
  Counter opens;    ///< of files, including those that create
  Counter lookups;  ///< of one name in a folder; a path takes one for each of its parts
  Counter getattrs;
  Counter others;  ///< changes and listings of folders, and changes of attributes
};

class Meter {
 public:
  /// Creates the file, with all counters at 0 and no limits. Throws Error naming the path.
  static void create(const std::filesystem::path& file);

  /// Maps a file made by create(). Throws Error naming the path.
  explicit Meter(const std::filesystem::path& file);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  /// The counters of a machine; the first call for a name allocates them. Throws Error if the table is
  /// full.
  Counters& machine(const std::string& name);

  void set_bandwidth(std::uint64_t bytes_per_second);  ///< 0: no limit
  void set_latency(double seconds);

  /// Sets all counters to 0.
  void reset();

  /// {"bandwidth":…, "latency_ms":…, "machines":{"n1":{"bytes_read":…, …}, …}, "total":{…}}
  nlohmann::json to_json() const;

  /// Counts an operation and waits for its delay.
  void operation(Counter& counter);

  /// Waits for the time that a transfer takes with the shared bandwidth.
  void transfer(std::uint64_t bytes);

 private:
  struct Layout;
  Layout* layout_ = nullptr;
};

}  // namespace lockstep::metered_fs
