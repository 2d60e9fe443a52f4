// text_lm: trains a language model on packed pages of text, on all ranks that the launcher starts. Any model
// can be trained with a loop like the one in train_with().

#include <fmt/ranges.h>
#include <torch/torch.h>

#include <memory>
#include <optional>

#include "common/error.h"
#include "common/files.h"
#include "common/tool.h"
#include "common/units.h"
#include "examples/shared.h"
#include "examples/text_lm/evaluate.h"
#include "examples/text_lm/progress.h"
#include "runtime/lockstep.h"

namespace lockstep::text_lm {
namespace {

using Ddp = DistributedDataParallel<LanguageModelImpl>;

/// The device, the data, the model and the loader of a rank.
struct Job {
  torch::Device device = torch::kCPU;
  std::unique_ptr<pack::Reader> pages{};
  std::unique_ptr<pack::Reader> heldout{};
  LanguageModel model{nullptr};
  std::unique_ptr<data::Loader> loader{};  // of the pages
};

/// Opens the data, and makes the model and the loader. All ranks call it. Returns main's exit code if a rank failed,
/// whose line is then printed.
std::optional<int> open(Job& job, const Options& options, World& world) {
  const Seeds seeds(options.seed);
  const ModelOptions& sizes = options.model;
  const data::PlanOptions plan{
      .cap = options.cap,
      .accumulate = options.accumulate,
      .step_tokens = options.step_tokens,
      .cost = data::transformer_cost(
          {.width = sizes.width, .layers = sizes.layers, .vocabulary = sizes.vocabulary}),
      .seed = seeds.data(),
      .padded = options.padded,
  };
  const auto choose = [&] { job.device = choose_device(options.device, world); };
  const auto open_data = [&] {
    job.pages = open_pack(options.data, "--data");
    job.heldout = open_pack(options.heldout, "--heldout");
    seeds.seed_model();  // the same on all ranks
    job.model = LanguageModel(sizes);
    job.model->to(job.device);
    seeds.seed_rank(world);
  };
  const auto make_loader = [&] {
    // On a GPU the loader copies each batch there while the one before is used.
    job.loader = std::make_unique<data::Loader>(
        *job.pages, plan, world,
        data::LoaderOptions{.device = job.device, .transform = token_check(sizes.vocabulary)});
  };
  if (!done_on_all_ranks(world, "text_lm", "choosing the device", choose)) return 2;
  if (!done_on_all_ranks(world, "text_lm", "opening the data", open_data)) return 1;
  if (!done_on_all_ranks(world, "text_lm", "making the loader", make_loader)) return 1;

  say(options, world,
      "text_lm on {}: {} parameters ({} layers, width {}); {} samples, {} tokens; steps for {} ranks x {} micro-batches of at most {} tokens\n",
      job.device.str(), format_count(static_cast<double>(job.model->parameter_count())), sizes.layers,
      sizes.width, job.pages->size(), format_count(static_cast<double>(tokens_of(*job.pages))), world.size(),
      options.accumulate, options.cap);
  say(options, world, "loader of each rank: {}\n", job.loader->describe());
  return std::nullopt;
}

torch::Tensor forward(Ddp& ddp, const data::Batch& batch, const Options& options) {
  const auto scope = ddp.world().timer().phase(profile::Phase::forward);
  const Autocast autocast(batch.tokens.device().type(), torch::kBFloat16, options.bf16);
  return loss_sum(ddp, batch);
}

/// Returns the signal that stopped it, 0 at its end. The optimizer is FusedAdamW, or a DistributedOptimizer of it.
template <typename Optimizer>
int train_with(Optimizer& optimizer, Ddp& ddp, data::Loader& loader, Progress& progress,
               const Options& options) {
  World& world = ddp.world();
  // By time, tokens or steps. Where only steps count, use the schedules of lockstep::schedule.
  LearningRate learning_rate(optimizer, [&](std::int64_t) { return progress.learning_rate_factor(); });
  std::int64_t heads = options.model.heads;
  std::optional<StopSignal> stop;
  std::optional<Checkpointer> checkpointer;
  if (!options.checkpoint.empty()) {
    stop.emplace(world);
    checkpointer.emplace(world, options.checkpoint,
                         CheckpointerOptions{.local_dir = options.checkpoint_local});
    checkpointer->add("model", ddp.module());
    checkpointer->add("heads", heads);  // the shapes of the parameters do not show it
    checkpointer->add("optimizer", optimizer);
    checkpointer->add("loader", loader);
    progress.add_to(*checkpointer);
    if (const auto step = checkpointer->load_latest()) {
      if (heads != options.model.heads)
        fail("{}: its model has {} heads, but this one has {} heads", options.checkpoint.string(), heads,
             options.model.heads);
      progress.resume();
      say(options, world, "resumed from {}: {} steps were done\n", options.checkpoint.string(), *step);
    }
  }
  const auto save = [&] {
    progress.settle();
    if (checkpointer) checkpointer->save(progress.steps());
  };

  int signal = 0;
  for (auto epoch = loader.epoch(); signal == 0 && !progress.over(epoch); ++epoch) {
    loader.set_epoch(epoch);
    for (const auto& batch : loader) {
      const auto hold = ddp.no_sync_unless(batch.last_of_step);  // exchange gradients once per optimizer step
      if (batch.empty) {
        ddp.skip();  // this rank has no samples in this step
      } else {
        const auto loss = forward(ddp, batch, options);
        ddp.backward(loss, batch.loss_tokens);
        progress.add(loss, batch);  // loss.item() would wait for a GPU
      }
      if (!batch.last_of_step) continue;

      {
        const auto scope = world.timer().phase(profile::Phase::optimizer);
        learning_rate.set_step(progress.steps());
        clip_grad_norm(optimizer, options.clip);
        optimizer.step();
        optimizer.zero_grad();
      }
      progress.end_step();
      if (progress.over(epoch)) break;
      if (stop && stop->poll()) {
        signal = stop->signal();
        break;
      }
      if (progress.steps() % options.checkpoint_steps == 0) save();
    }
  }
  save();
  if (checkpointer) checkpointer->wait();
  return signal;
}

int train(Job& job, Progress& progress, const Options& options, World& world) {
  Ddp ddp(job.model, world, {.check_model = true});
  if (options.compress) ddp.register_comm_hook(bf16_compress_hook());
  const auto settings =
      torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.95}).weight_decay(0.05);
  const auto groups = decay_groups(*job.model, settings);  // weight decay for matrices only
  if (options.distributed_optimizer) {
    DistributedOptimizer<FusedAdamW> optimizer(ddp, groups);
    return train_with(optimizer, ddp, *job.loader, progress, options);
  }
  FusedAdamW optimizer(groups);
  return train_with(optimizer, ddp, *job.loader, progress, options);
}

int run(const Options& options, int argc, char** argv) {
  World world(argc, argv);
  apply_settings(world, {.deterministic = options.deterministic});
  Job job;
  if (const auto exit_code = open(job, options, world)) return *exit_code;
  const auto before = evaluate(job.model, *job.heldout, options, world);
  say(options, world, "perplexity before training: {}\n", to_text(before));
  Progress progress(options, *job.pages, world, job.device);
  if (const int signal = train(job, progress, options, world)) {
    say(options, world, "stopped by signal {} after {} steps: start it again to continue from {}\n", signal,
        progress.steps(), options.checkpoint.string());
    return StopSignal::kExitCode;
  }
  auto results = progress.report(*job.loader);
  const auto after = evaluate(job.model, *job.heldout, options, world);
  say(options, world, "perplexity after training: {}\n", to_text(after));
  say(options, world, "perplexity on held-out pages: {:.1f} -> {:.1f}\n", before.perplexity,
      after.perplexity);
  results["perplexity_before"] = before.perplexity;
  results["perplexity_after"] = after.perplexity;
  if (world.rank() == 0 && !options.sample.empty()) {
    job.model->to(torch::kCPU);
    const auto text = write_text(job.model);
    const auto* const ids = text.data_ptr<std::int64_t>();
    write_file_atomically(options.sample, fmt::format("{}\n", fmt::join(ids, ids + text.size(0), " ")));
  }
  if (!options.json) print_verdict(world);
  if (options.json && world.rank() == 0) Tool::print(results);
  return 0;
}

}  // namespace
}  // namespace lockstep::text_lm

int main(int argc, char** argv) {
  lockstep::text_lm::Options options;
  if (const auto exit_code = parse(options, argc, argv)) return *exit_code;
  return lockstep::text_lm::run(options, argc, argv);
}
