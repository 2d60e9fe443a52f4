// The administrator's file, /etc/lockstep/lockstep.conf: key = value lines. A [section] for a partition
// overrides the lines before it. Every process that loads the plugin reads the file, so a change takes effect
// at the next submission, step or job end, and no daemon must be restarted.
//
// Threads: safe from any.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/leaf/options/options.h"

namespace lockstep {

/// A value for each option, in the order of the enumeration.
template <typename T>
using PerOption = std::array<T, kOptions>;

struct Config {
  std::string cache;           ///< folder of the users' stores on the nodes
  std::uint64_t total = 0;     ///< bytes of all users' data on a node that gc leaves; 0: no limit
  std::uint64_t min_free = 0;  ///< bytes of the cache's disk that copies leave free
  std::uint64_t quota = 0;     ///< limit in bytes for a user's data on a node; 0: none
  std::uint64_t ram = 0;       ///< the same in the RAM tier; 0: there is no such tier
  std::string ram_cache = "/dev/shm/lockstep";
  std::string shared;  ///< the store that the administrator fills, or ""
  std::uint64_t source_bandwidth =
      0;                        ///< limit for the reads of all nodes of a step, bytes a second; 0: none
  std::uint64_t bandwidth = 0;  ///< limit for a user's reads from sources on a node, bytes a second; 0: none
  std::vector<std::string> sources;  ///< prefixes of sources that may be staged; none: all
  std::string helpers = "/usr/bin";  ///< folder of lockstep-stage and lockstep-pin
  std::string prefix;                ///< begins every option's name
  std::string records = "/run/lockstep/records";
  static constexpr const char* kLinks = "/run/lockstep/links";
  std::string links = kLinks;      ///< folder of the links to the sources, for nodes with an unusable cache
  std::string group = "lockstep";  ///< the exporter's group; without such a group there are no records
  int keep = 600;                  ///< seconds after its last use in which data is not evicted
  int first_port = 0;              ///< ports for srun's rendezvous and the nodes; 0: the system chooses
  int last_port = 0;
  std::vector<std::string> peer_networks;  ///< in CIDR notation; the nodes of a step reach each other there
  int source_patience = 0;     ///< seconds for a call to a source or a node's disk; 0: lockstep-stage chooses
  int wait = 60;               ///< seconds for every node of a step to reach the rendezvous
  int keep_records = 3600;     ///< seconds for which an ended job's records stay
  bool must_be_mount = false;  ///< `cache` or the folder that contains it must be a mount point
  std::uint64_t reserve = 0;   ///< bytes of `total` that gc leaves free
  bool enabled = true;
  bool cooperate = true;       ///< each byte is read from the source once for all nodes of a step
  bool check_sources = true;   ///< check the sources where the job is submitted
  bool ram_somewhere = false;  ///< some partition has a RAM tier

  PerOption<std::optional<std::string>> defaults;              ///< for options without a value
  PerOption<std::optional<std::vector<std::string>>> allowed;  ///< permitted words; nullopt: all

  // Of all partitions together: for a submission, which does not know its partition yet, and for a job's end.
  std::vector<std::string> caches;
  std::vector<std::string> all_links{kLinks};
  std::vector<std::string> partitions;  ///< that have a section
  PerOption<std::vector<std::string>> allowed_somewhere;
};

/// The settings for a partition ("": the general part). Throws Error naming file, line and key, also if the
/// file does not belong to root or others may write it.
Config read_config(const std::string& path, std::string_view partition);

/// The limits of one folder of stores.
struct CacheLimits {
  std::string cache;
  std::uint64_t quota = 0, total = 0, reserve = 0;  ///< bytes; 0: none
  int keep = 0;                                     ///< seconds
};

/// The limits of each cache and RAM tier that the file names. Where partitions differ, the widest: a node does not know
/// its partitions. Throws as read_config().
std::vector<CacheLimits> cache_limits(const std::string& path);

/// The options' prefix in a file that read_config() refuses for its owner or mode. The options need their names even
/// then, to report the refusal. "" if the file cannot be read or has a mistake.
std::string prefix_of_refused(const std::string& path);

/// read_config() of a text; `path` appears in messages only.
Config parse_config(std::string_view text, const std::string& path, std::string_view partition);

/// Throws Error if the administrator does not allow this value of the option, or, without
/// `partition_known`, allows it in no partition.
void check_allowed(const Config& config, Option option, const Settings& settings, bool partition_known);

}  // namespace lockstep
