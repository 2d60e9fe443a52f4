// The administrator's file, /etc/lockstep/lockstep.conf: key = value lines, with a [section] per partition
// that overrides what stands before it. Read anew by every process that loads the plugin, so a change holds
// from the next submission, step or job end on, without restarting a daemon.
//
// Threads: safe from any.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/spank/options.h"

namespace lockstep::spank {

/// Something per option, in the order of the enumeration.
template <typename T>
using PerOption = std::array<T, kOptions>;

struct Config {
  std::string cache;        ///< the nodes' store; users' folders are made in it
  std::uint64_t total = 0;  ///< bytes that all users' data may take on a node; 0: any
  std::uint64_t quota = 0;  ///< bytes that a user's data may take on a node; 0: any
  std::uint64_t ram = 0;    ///< bytes that a user's data may take in a node's RAM; 0: no such tier
  std::string ram_cache = "/dev/shm/lockstep";
  std::string shared;                ///< the store that the administrator fills, or ""
  std::uint64_t bandwidth = 0;       ///< bytes a second that a node reads from sources; 0: any
  std::vector<std::string> sources;  ///< prefixes that may be staged; none: all
  std::string helpers = "/usr/bin";  ///< folder of lockstep-stage and lockstep-pin
  std::string prefix;                ///< before every option's name
  std::string records = "/run/lockstep/records";
  static constexpr const char* kLinks = "/run/lockstep/links";
  std::string links = kLinks;      ///< where jobs find their sources where the cache cannot be used
  std::string group = "lockstep";  ///< the exporter's group; records are off where it does not exist
  int keep = 600;                  ///< seconds since its last use for which data is not evicted
  int first_port = 0;              ///< ports that srun's rendezvous and nodes may use; 0: the system chooses
  int last_port = 0;
  int source_patience = 0;  ///< seconds for a call at a source or a node's disk; 0: lockstep-stage chooses
  int wait = 60;            ///< seconds for every node of a step to reach the rendezvous
  int keep_records = 3600;  ///< seconds that an ended job's records stay
  bool enabled = true;
  bool cooperate = true;       ///< a step's nodes pass each other what one of them has read
  bool check_sources = true;   ///< look at the sources where the job is submitted
  bool ram_somewhere = false;  ///< some partition has a RAM tier

  PerOption<std::optional<std::string>> defaults;              ///< values of options that are not given
  PerOption<std::optional<std::vector<std::string>>> allowed;  ///< words that may be given; none: all

  // Of all partitions together, for where a job's partition is not known yet, and for its end.
  std::vector<std::string> caches;
  std::vector<std::string> all_links{kLinks};
  PerOption<std::vector<std::string>> allowed_somewhere;
};

/// The settings for a partition ("": what holds for all). Throws Refusal naming file, line and key, and where
/// the file is not root's or others may write it.
Config read_config(const std::string& path, std::string_view partition);

/// The prefix that a file which read_config() refuses for its owner or mode gives the options: under their
/// names users are told why they do not work. "" where the file cannot be read or has a mistake.
std::string prefix_of_refused(const std::string& path);

/// The same as read_config() from text; `path` only names it in messages.
Config parse_config(std::string_view text, const std::string& path, std::string_view partition);

/// Throws Refusal where the administrator does not allow what is given or, without `partition_known`, allows
/// it in no partition.
void check_allowed(const Config& config, Option option, const Settings& settings, bool partition_known);

}  // namespace lockstep::spank
