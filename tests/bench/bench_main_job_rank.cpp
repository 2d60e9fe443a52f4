// Lockstep's program of bench_main_job, which starts it (bench_main_job.py): trains the model of the text
// example with README's loop. tests/peers/main_job_rank.py does the same with PyTorch.
//
// It works in turns with the programs that it is compared with: it waits until a file has its name and the
// number of its turn, works, and rank 0 prints a JSON line. The first turn measures the untrained model, each
// further turn trains on the same number of tokens, and the last one measures the trained model.

#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/error.h"
#include "common/tool.h"
#include "examples/text_lm/evaluate.h"
#include "runtime/data/loader.h"
#include "runtime/data/plan/planner.h"
#include "runtime/lockstep.h"
#include "staging/pack/reader.h"

namespace lockstep::bench {
namespace {

using text_lm::LanguageModel;
using Ddp = DistributedDataParallel<text_lm::LanguageModelImpl>;

struct Options : text_lm::Options {
  std::filesystem::path turn_file;
  std::string name;
  int rounds = 4;
  std::int64_t round_tokens = 16'000;
  bool copy_gradients = false;
  std::string optimizer = "fused";
};

/// Values of all ranks together.
template <std::size_t n>
std::array<double, n> reduced(World& world, std::array<double, n> values, comm::ReduceOp op) {
  world.communicator()
      .all_reduce({values.data(), n, comm::DataType::f64}, "a block's numbers", {.op = op})
      ->wait();
  return values;
}

void print(const World& world, const nlohmann::json& line) {
  if (world.rank() == 0) Tool::print(line);
}

class Turns {
 public:
  Turns(const Options& options, World& world)
      : file_(options.turn_file), name_(options.name), world_(world) {}

  /// Waits for this program's next turn. Throws Error if the benchmark has ended.
  void wait() {
    const std::string mine = fmt::format("{} {}", name_, next_++);
    while (current() != mine) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    world_.communicator().barrier("before a turn")->wait();
  }

 private:
  std::string current() const {
    std::ifstream file(file_);
    std::string turn;
    if (!std::getline(file, turn)) fail("cannot read {}: the benchmark has ended", file_.string());
    return turn;
  }

  std::filesystem::path file_;
  std::string name_;
  World& world_;
  int next_ = 0;
};

/// Divides the training into turns of equally many tokens.
class Blocks {
 public:
  Blocks(const Options& options, Turns& turns, World& world)
      : rounds_(options.rounds), round_tokens_(options.round_tokens), turns_(turns), world_(world) {
    begin();
  }

  void add(const data::Batch& batch) {
    tokens_ += static_cast<double>(batch.token_count);
    slots_ += static_cast<double>(batch.token_count + batch.padding);
  }

  /// `tokens`: those in the loss of the step, all ranks together.
  void end_step(std::int64_t tokens) {
    ++steps_;
    trained_ += tokens;
    if (trained_ < (round_ + 1) * round_tokens_) return;
    const double seconds =
        reduced<1>(world_, {seconds_between(begin_ns_, monotonic_ns())}, comm::ReduceOp::max)[0];
    const auto sums = reduced<2>(world_, {tokens_, slots_}, comm::ReduceOp::sum);
    print(world_, {{"seconds", seconds}, {"tokens", sums[0]}, {"slots", sums[1]}, {"steps", steps_}});
    ++round_;
    if (!over()) begin();
  }

  bool over() const { return round_ == rounds_; }
  std::int64_t trained() const { return trained_; }

 private:
  void begin() {
    turns_.wait();
    tokens_ = slots_ = 0;
    steps_ = 0;
    begin_ns_ = monotonic_ns();
  }

  int rounds_;
  std::int64_t round_tokens_;
  Turns& turns_;
  World& world_;
  int round_ = 0;
  std::int64_t trained_ = 0;
  std::int64_t steps_ = 0;  // of this block
  double tokens_ = 0;       // of this block and rank
  double slots_ = 0;        // the same with padding
  std::uint64_t begin_ns_ = 0;
};

torch::Tensor forward(Ddp& ddp, const data::Batch& batch, bool bf16) {
  const Autocast autocast(torch::kCPU, torch::kBFloat16, bf16);
  return text_lm::loss_sum(ddp, batch);
}

/// Warm-up, then half a cosine down to a tenth. It counts trained tokens instead of steps, so that programs
/// with steps of other sizes have the same learning rate after the same number of tokens.
schedule::Schedule make_schedule(const Options& options) {
  const std::int64_t tokens = options.rounds * options.round_tokens;
  const std::int64_t warm_up = tokens / 10 + 1;
  return schedule::sequence(
      {{schedule::linear(0.01, 1, warm_up), warm_up}, {schedule::cosine(tokens - warm_up, 0.1)}});
}

data::PlanOptions plan_options(const Options& options, const World& world) {
  return {
      .ranks = world.size(),
      .cap = options.cap,
      .accumulate = options.accumulate,
      .cost = {.a = 6.0 * static_cast<double>(options.model.width), .b = 1},
      .seed = options.seed,
      .padded = options.padded,
  };
}

/// Mean tokens of a step of the first epoch, so that other programs can have steps of the same size.
double step_tokens(const pack::Reader& pages, const data::PlanOptions& options) {
  const auto lengths = data::lengths_from_pack(pages, "the pack").tokens;
  const auto steps = data::make_plan(lengths, options).steps();
  return std::accumulate(lengths.begin(), lengths.end(), 0.0) / static_cast<double>(steps);
}

template <typename Optimizer>
void train_with(Optimizer& optimizer, Ddp& ddp, data::Loader& loader, const Options& options, Turns& turns,
                World& world) {
  LearningRate learning_rate(optimizer, make_schedule(options));
  Blocks blocks(options, turns, world);
  while (!blocks.over()) {
    for (const auto& batch : loader) {
      const auto hold = ddp.no_sync_unless(batch.last_of_step);
      if (batch.empty) {
        ddp.skip();
      } else {
        ddp.backward(forward(ddp, batch, options.bf16), batch.loss_tokens);
      }
      blocks.add(batch);
      if (!batch.last_of_step) continue;
      clip_grad_norm(optimizer, options.clip);
      optimizer.step();
      optimizer.zero_grad();
      blocks.end_step(ddp.tokens_of_last_step());
      learning_rate.set_step(blocks.trained());
      if (blocks.over()) return;
    }
    loader.set_epoch(loader.epoch() + 1);
  }
}

void train(const pack::Reader& pages, LanguageModel& model, const Options& options, Turns& turns,
           World& world) {
  data::Loader loader(pages, plan_options(options, world), world);
  Ddp ddp(model, world, {.gradient_as_bucket_view = !options.copy_gradients});
  if (options.compress) ddp.register_comm_hook(bf16_compress_hook());
  const auto groups = decay_groups(
      *model, torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.95}).weight_decay(0.05));
  if (options.optimizer == "distributed") {
    DistributedOptimizer<FusedAdamW> optimizer(ddp, groups);
    train_with(optimizer, ddp, loader, options, turns, world);
  } else if (options.optimizer == "libtorch") {
    torch::optim::AdamW optimizer(groups);
    train_with(optimizer, ddp, loader, options, turns, world);
  } else {
    FusedAdamW optimizer(groups);
    train_with(optimizer, ddp, loader, options, turns, world);
  }
}

void run(const Options& options, World& world) {
  Turns turns(options, world);
  turns.wait();
  const auto pages = pack::open(options.data);
  const auto heldout = pack::open(options.heldout);
  torch::manual_seed(options.seed);
  LanguageModel model(options.model);
  const auto loss = [&] { return std::log(evaluate(model, *heldout, options, world).perplexity); };
  print(world, {{"loss", loss()},
                {"parameters", model->parameter_count()},
                {"step_tokens", step_tokens(*pages, plan_options(options, world))},
                {"threads", at::get_num_threads()},
                {"torch", TORCH_VERSION}});
  train(*pages, model, options, turns, world);
  turns.wait();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double memory =
      reduced<1>(world, {static_cast<double>(usage.ru_maxrss) * 1024}, comm::ReduceOp::max)[0];
  print(world, {{"loss", loss()}, {"memory_bytes", memory}});
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("--data", options.data, "Pack to train on")->required();
  app.add_option("--heldout", options.heldout, "Pack to measure on")->required();
  app.add_option("--turn-file", options.turn_file)->required();
  app.add_option("--name", options.name, "In the turn file")->required();
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--round-tokens", options.round_tokens, "Tokens of a turn")->check(CLI::PositiveNumber);
  app.add_option("--vocabulary", options.model.vocabulary);
  app.add_option("--width", options.model.width);
  app.add_option("--layers", options.model.layers);
  app.add_option("--heads", options.model.heads);
  app.add_option("--cap", options.cap, "Maximum tokens of a micro-batch");
  app.add_option("--lr", options.learning_rate);
  app.add_option("--accumulate", options.accumulate, "Micro-batches of each rank in a step");
  app.add_flag("--padded", options.padded, "Padded rows instead of packed batches");
  app.add_flag("--activation-checkpointing", options.model.activation_checkpointing);
  app.add_flag("--bf16", options.bf16, "Forward in bfloat16");
  app.add_flag("--compress", options.compress, "Send gradients as bfloat16");
  app.add_flag("--copy-gradients", options.copy_gradients, "Gradients are copied into the buckets and back");
  app.add_option("--optimizer", options.optimizer)
      ->check(CLI::IsMember({"fused", "libtorch", "distributed"}));
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_main_job_rank", "One rank of bench_main_job.");
  lockstep::bench::Options options;
  lockstep::bench::add_options(tool.app(), options);
  return tool.run(argc, argv, [&] {
    lockstep::World world(argc, argv);
    lockstep::bench::run(options, world);
  });
}
