// One rank of the equality test: runs the trainings in cases.json under DistributedDataParallel and writes
// the results. equality_rank.py does the same with PyTorch's DistributedDataParallel.

#include <fmt/format.h>
#include <torch/torch.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "common/tool.h"
#include "runtime/ddp/distributed_data_parallel.h"
#include "runtime/ddp/hooks/compression.h"
#include "runtime/ddp/reducer.h"
#include "tests/peers/model.h"

namespace lockstep::peers {
namespace {

using nlohmann::json;
using Tensors = c10::Dict<std::string, torch::Tensor>;

constexpr std::int64_t kIterations = 12;
constexpr std::int64_t kMaxRanks = 4;
constexpr std::int64_t kSequences = 3;
constexpr std::int64_t kLength = 5;

// Python reads these files and writes such files: LibTorch's pickle_save has the format of torch.save.
void save(const Tensors& tensors, const std::string& path) {
  const auto bytes = torch::pickle_save(tensors);
  std::ofstream file(path, std::ios::binary);
  if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()))) fail("cannot write {}", path);
}

Tensors load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot open {}", path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Tensors tensors;
  for (const auto& item : torch::pickle_load(bytes).toGenericDict()) {
    tensors.insert(item.key().toStringRef(), item.value().toTensor());
  }
  return tensors;
}

/// Parameters and buffers with the names of Python's state_dict.
std::vector<std::pair<std::string, torch::Tensor>> state_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, torch::Tensor>> state;
  for (const auto& item : module.named_parameters()) state.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.emplace_back(item.key(), item.value());
  return state;
}

/// The input of both sides: initial weights, and tokens and targets of each iteration and rank.
Tensors make_data() {
  torch::manual_seed(10);
  Tensors data;
  for (const auto& [name, tensor] : state_of(*Model())) {
    data.insert("weight/" + name, tensor.detach().clone());
  }
  for (const char* name : {"tokens", "targets"}) {
    data.insert(name,
                torch::randint(kVocabulary, {kIterations, kMaxRanks, kSequences, kLength}, torch::kLong));
  }
  return data;
}

std::pair<bool, bool> branches(const json& of, int rank, std::int64_t step) {
  const std::string kind = of.value("branch", "both");
  if (kind == "both") return {true, true};
  if (kind == "first") return {true, false};
  constexpr std::pair<bool, bool> kWays[] = {{true, false}, {false, true}, {false, false}, {true, true}};
  return kWays[(rank + step) % 4];
}

DistributedDataParallelOptions options_of(const json& of) {
  DistributedDataParallelOptions options;
  options.bucket_cap_mb = of.value("bucket_cap_mb", 25.0);
  options.first_bucket_bytes = of.value("first_bucket_bytes", options.first_bucket_bytes);
  options.broadcast_buffers = of.value("broadcast_buffers", true);
  options.find_unused_parameters = of.value("find_unused_parameters", false);
  options.static_graph = of.value("static_graph", false);
  options.gradient_as_bucket_view = of.value("gradient_as_bucket_view", true);
  return options;
}

void register_hook(DistributedDataParallelBase& ddp, const json& of) {
  const std::string hook = of.value("hook", "");
  if (hook == "fp16") ddp.register_comm_hook(fp16_compress_hook());
  if (hook == "bf16") ddp.register_comm_hook(bf16_compress_hook());
}

void zero_gradients(const torch::nn::Module& module, bool to_none) {
  for (auto& parameter : module.parameters()) {
    auto& gradient = parameter.mutable_grad();
    if (to_none) {
      gradient = torch::Tensor();
    } else if (gradient.defined()) {
      gradient.zero_();
    }
  }
}

void run_case(World& world, const json& of, const Tensors& data, Tensors& results) {
  const std::string prefix = of.at("name").get<std::string>() + "/";
  Model model;
  {
    const torch::NoGradGuard no_grad;
    for (auto& [name, tensor] : state_of(*model)) tensor.copy_(data.at("weight/" + name));
  }
  model->train(of.value("training", true));
  DistributedDataParallel ddp(model, world, options_of(of));
  register_hook(ddp, of);
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.05).momentum(of.value("momentum", 0.9)));
  const bool by_count = of.value("by_count", false);
  const std::int64_t micro_batches = of.value("micro_batches", 1);
  const std::int64_t sync_every = of.value("sync_every", 1);
  std::int64_t steps = of.value("steps", 4);
  const auto mine = [&](const char* name, std::int64_t iteration) {
    return data.at(name)[iteration][world.rank()];
  };
  const bool uneven = of.value("uneven", false);
  if (uneven) steps += world.rank();

  const auto train = [&] {
    std::int64_t iteration = 0;
    for (std::int64_t step = 0; step < steps; ++step) {
      for (std::int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch, ++iteration) {
        const auto hold =
            ddp.no_sync_unless(micro_batch + 1 == micro_batches && (step + 1) % sync_every == 0);
        const auto [left, right] = branches(of, world.rank(), step);
        const auto loss = loss_of(ddp(mine("tokens", iteration), left, right), mine("targets", iteration));
        if (by_count) {
          constexpr std::int64_t kTokens = kSequences * kLength;
          ddp.backward(loss * static_cast<double>(kTokens), kTokens);
        } else {
          ddp.backward(loss / static_cast<double>(micro_batches));
        }
        results.insert(fmt::format("{}loss/{}", prefix, iteration), loss.detach());
      }
      for (const auto& item : model->named_parameters()) {
        if (!item.value().grad().defined()) continue;
        const auto gradient = item.value().grad().detach();
        results.insert(fmt::format("{}gradient/{}/{}", prefix, step, item.key()), gradient.clone());
      }
      if ((step + 1) % sync_every == 0) {
        optimizer.step();
        zero_gradients(*model, of.value("zero", "zero") == "none");
      }
    }
  };
  if (uneven) {
    ddp.join(train, {.divide_by_initial_world_size = of.at("divide_by_initial_world_size")});
  } else {
    train();
  }
  if (of.contains("first_bucket_bytes") && ddp.reducer().layout().size() < 2) {
    fail("the case '{}' needs several buckets, but there is only one", of.at("name").get<std::string>());
  }
  for (const auto& [name, tensor] : state_of(*model)) {
    results.insert(prefix + "after/" + name, tensor.detach().clone());
  }
}

}  // namespace
}  // namespace lockstep::peers

int main(int argc, char** argv) {
  namespace peers = lockstep::peers;
  lockstep::Tool tool("ddp_equality_rank", "One rank of the equality test with PyTorch.");
  std::string make;
  std::string out;
  std::string cases;
  std::vector<std::string> data;
  tool.app().add_option("--make", make, "Write weights and batches, then exit");
  tool.app().add_option("--data", data);
  tool.app().add_option("--out", out, "The results for DATA number i on rank r are written to OUT.i.r");
  tool.app().add_option("--cases", cases);
  return tool.run(argc, argv, [&] {
    if (!make.empty()) return peers::save(peers::make_data(), make);
    lockstep::World world(argc, argv);
    const auto list = nlohmann::json::parse(lockstep::read_text_file(cases));
    for (std::size_t i = 0; i < data.size(); ++i) {
      const auto from = peers::load(data[i]);
      peers::Tensors results;
      for (const auto& of : list) peers::run_case(world, of, from, results);
      peers::save(results, fmt::format("{}.{}.{}", out, i, world.rank()));
    }
  });
}
