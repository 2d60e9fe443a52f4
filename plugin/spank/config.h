// The administrator's file, /etc/lockstep/lockstep.conf: key = value lines, with a [section] per partition
// that overrides what stands before it. Read anew by every process that loads the plugin, so a change holds
// from the next submission, step or job end on, without restarting a daemon.
//
// Threads: safe from any.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/spank/options.h"

namespace lockstep::spank {

struct Config {
  bool enabled = true;
  std::string cache;                 ///< the nodes' store; users' folders are made in it
  std::vector<std::string> sources;  ///< prefixes that may be staged; none: all
  std::string helpers = "/usr/bin";  ///< folder of lockstep-stage and lockstep-pin
  std::string prefix;                ///< before every option's name
  int first_port = 0;                ///< ports that srun's rendezvous may use; 0: the system chooses
  int last_port = 0;
  std::string records = "/run/lockstep/records";
  std::string group = "lockstep";  ///< the exporter's group; records are off where it does not exist
  bool check_sources = true;       ///< look at the sources where the job is submitted
  int wait = 60;                   ///< seconds for every node of a step to reach the rendezvous
  int keep_records = 3600;         ///< seconds that an ended job's records stay
  std::array<std::optional<std::string>, kOptions> defaults;  ///< values of options that are not given
  std::vector<std::string> caches;  ///< the caches of all partitions, for the job's end
};

/// The settings for a partition ("": what holds for all). Throws Refusal naming file, line and key.
Config read_config(const std::string& path, std::string_view partition);

/// The same from text; `path` only names it in messages.
Config parse_config(std::string_view text, const std::string& path, std::string_view partition);

}  // namespace lockstep::spank
