// What the plugin asks of lockstep-stage for a step on one of its nodes: a JSON object on standard input, with all fields
// of StepRequest and no others. Every user of the node could read a command line.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/json_bytes.h"

namespace lockstep::transfer {

/// Whether the step waits until its data is staged, or reads from the source meanwhile.
enum class StepMode : std::uint8_t { block, background };
/// If staging fails, the step ends, or it reads from the source.
enum class OnError : std::uint8_t { fail, source };

struct StepRequest {
  std::uint32_t job = 0;
  std::uint32_t restart = 0;  ///< how often Slurm has queued the job again
  std::string step{};         ///< "0", "batch", "interactive"
  std::string node{};         ///< Slurm's name of this node
  std::uint32_t node_id = 0;  ///< among the step's nodes
  std::uint32_t nodes = 1;    ///< 1 also for a batch or interactive step, which stages for its node alone
  std::string node_list{};    ///< the step's nodes, in Slurm's brackets
  std::string component{};    ///< distinguishes a heterogeneous step's components, which stage separately
  int srun_port = 0;          ///< of the step's rendezvous; 0: there is none
  std::vector<std::string> srun_hosts{};  ///< srun's machine; tried in turn
  std::string key{};                      ///< secret of the step
  std::vector<std::string> sources{};     ///< absolute paths of packs, shards, patterns
  std::string problem{};                  ///< why this node cannot stage, or ""
  StepMode mode = StepMode::block;
  OnError on_error = OnError::fail;
  std::string verify = "quick";  ///< how a copy in the cache is checked before it is used: quick, full or off
  std::string store{};           ///< the user's store on this node
  std::string shared{};          ///< the store that the administrator fills, or ""
  std::string lease{};           ///< file whose lock the step holds, or ""
  std::string record{};          ///< folder of the step's records, or ""
  std::uint64_t quota = 0;       ///< bytes that the user may have in the store; 0: any
  std::uint64_t min_free = 0;    ///< bytes of the disk that a copy leaves free
  int keep = 600;                ///< seconds that an object stays after its last use
  std::uint64_t bandwidth = 0;   ///< bytes a second read from the source; 0: any
  int source_patience = 0;       ///< seconds for a system call; 0: default_call_timeout()
  int watch_fd = -1;             ///< pipe: background staging ends when its other end is closed
  std::string cpus{};            ///< to run on, as "0-3,8"; "" for all
  bool cooperate = true;         ///< each byte is read from the source once for all nodes of the step
  int first_port = 0;            ///< ports to exchange chunks on; 0: any
  int last_port = 0;
  std::vector<std::string> peer_networks{};  ///< in CIDR notation; the step's nodes reach each other there
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepRequest, job, restart, step, node, node_id, nodes, node_list,
                                   component, srun_port, srun_hosts, key, sources, problem, mode, on_error,
                                   verify, store, shared, lease, record, quota, min_free, keep, bandwidth,
                                   source_patience, watch_fd, cpus, cooperate, first_port, last_port,
                                   peer_networks)

inline std::string to_text(const StepRequest& request) {
  return dump_any_bytes(request);
}

}  // namespace lockstep::transfer
