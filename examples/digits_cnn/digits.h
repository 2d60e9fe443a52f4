// The parts that digits_cnn and finetune_script share: options, the pictures of handwritten digits, the training
// loop, and the accuracy on pictures that are not trained on.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/comm/world.h"
#include "runtime/ddp/distributed_data_parallel.h"
#include "staging/pack/reader.h"

namespace lockstep::digits {

struct Options {
  std::filesystem::path data;     ///< packed pictures to train on
  std::filesystem::path heldout;  ///< packed pictures to measure on
  std::string device = "auto";    ///< cpu, cuda or auto (examples/shared.h)
  std::uint64_t batch = 32;       ///< pictures of a rank in a step
  std::uint64_t epochs = 10;
  double learning_rate = 3e-3;  ///< maximum
  double clip = 1.0;            ///< maximum norm of the gradients
  bool bf16 = false;            ///< forward in bfloat16 where that is precise enough
  std::uint64_t seed = 1;
  std::filesystem::path checkpoint;  ///< folder of checkpoints to resume from and to write; empty: none
  bool json = false;                 ///< print the results as one JSON object, and nothing else
};

/// Reads the command line; `more` adds the program's own options. Returns main's exit code if there is nothing
/// to train (--help, a usage error).
std::optional<int> parse(Options& options, const std::string& program, const std::string& summary,
                         const std::function<void(CLI::App&)>& more, int argc, char** argv);

/// The data of this rank, and its device.
struct Data {
  std::unique_ptr<pack::Reader> training;
  std::unique_ptr<pack::Reader> heldout;
  torch::Device device = torch::kCPU;
};

/// Throws Error if the packs cannot be opened, UsageError if the device cannot be used.
Data open_data(const Options& options, const World& world);

/// Runs the network on pictures (floats from -1 to 1, [n, 1, 8, 8], in the memory format channels_last) and
/// returns the scores of the ten digits, [n, 10]. It calls `ddp`, which communicates in training only.
using Network = std::function<torch::Tensor(const torch::Tensor& pixels)>;

struct Result {
  double accuracy_before = 0;  ///< share of the held-out pictures that are read correctly
  double accuracy_after = 0;
  double loss = 0;  ///< mean over the pictures of all ranks in the last epoch
  std::int64_t steps = 0;
  double seconds = 0;  ///< of training
};

/// Trains the module in `ddp`, and measures it before and after. All ranks call it and get the same result.
Result train(const Network& network, torch::nn::Module& module, DistributedDataParallelBase& ddp,
             const Data& data, const Options& options, World& world);

/// Rank 0 prints the result, as one JSON object with --json.
void print(const Result& result, const Data& data, const Options& options, World& world);

}  // namespace lockstep::digits
