// What a shared file system costs, made deterministic: counters for each machine of the cluster, and one
// budget of bytes per second and a delay per operation that all of them share. It lives in a small file that
// the machines' file systems and whoever looks at the numbers map.
//
// Threads: safe from any, in any number of processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::metered_fs {

using Counter = std::atomic<std::uint64_t>;

/// What one machine did since the last reset.
struct Counters {
  Counter bytes_read;     ///< that reads returned
  Counter bytes_written;  ///< that writes took
  Counter reads;
  Counter writes;
  Counter opens;    ///< of files, those that create included
  Counter lookups;  ///< of one name in a folder; a path takes one for each of its parts
  Counter getattrs;
  Counter others;  ///< all that changes or lists folders, and attributes that are set
};

class Meter {
 public:
  /// Makes the file, with all counters at 0 and no limits. Throws Error naming the path.
  static void create(const std::filesystem::path& file);

  /// Maps a file made by create(). Throws Error naming the path.
  explicit Meter(const std::filesystem::path& file);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  /// The counters of a machine, which get a place when first asked for. Throws Error when there is none left.
  Counters& machine(const std::string& name);

  void set_bandwidth(std::uint64_t bytes_per_second);  ///< 0: no limit
  void set_latency(double seconds);

  /// Sets all counters to 0.
  void reset();

  /// {"bandwidth":…, "latency_ms":…, "machines":{"n1":{"bytes_read":…, …}, …}, "total":{…}}
  nlohmann::json to_json() const;

  /// Counts an operation and takes the time it costs.
  void operation(Counter& counter);

  /// Takes the time that so many bytes cost on a pipe that all machines share.
  void transfer(std::uint64_t bytes);

 private:
  struct Layout;
  Layout* layout_ = nullptr;
};

}  // namespace lockstep::metered_fs
