// text_lm: trains a language model on packed pages of text, on all ranks that the launcher starts. Any model
// can be trained with a loop like the one in train_with().

#include <torch/torch.h>

#include <memory>
#include <optional>

#include "common/error.h"
#include "common/tool.h"
#include "common/units.h"
#include "examples/shared.h"
#include "examples/text_lm/evaluate.h"
#include "examples/text_lm/progress.h"
#include "runtime/data/loader.h"
#include "runtime/lockstep.h"

namespace lockstep::text_lm {
namespace {

using Ddp = DistributedDataParallel<LanguageModelImpl>;

data::PlanOptions plan_of(const Options& options) {
  return {.cap = options.cap,
          .accumulate = options.accumulate,
          .step_tokens = options.step_tokens,
          .cost = data::transformer_cost({.width = options.model.width,
                                          .layers = options.model.layers,
                                          .vocabulary = options.model.vocabulary}),
          .seed = Seeds(options.seed).data(),
          .padded = options.padded,
          .speeds = options.speeds};
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
    checkpointer.emplace(world, options.checkpoint);
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

int train(LanguageModel& model, data::Loader& loader, Progress& progress, const Options& options,
          World& world) {
  Ddp ddp(model, world, {.check_model = true});
  if (options.compress) ddp.register_comm_hook(bf16_compress_hook());
  const auto settings =
      torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.95}).weight_decay(0.05);
  if (options.distributed_optimizer) {
    DistributedOptimizer<FusedAdamW> optimizer(ddp, decay_groups(*model, settings));
    return train_with(optimizer, ddp, loader, progress, options);
  }
  FusedAdamW optimizer(decay_groups(*model, settings));
  return train_with(optimizer, ddp, loader, progress, options);
}

int run(const Options& options, int argc, char** argv) {
  World world(argc, argv);
  apply_settings(world, {.deterministic = options.deterministic});
  const Seeds seeds(options.seed);
  seeds.seed_model();
  torch::Device device = torch::kCPU;
  std::unique_ptr<pack::Reader> pages;
  std::unique_ptr<pack::Reader> heldout;
  LanguageModel model{nullptr};
  std::optional<Vocabulary> vocabulary;
  std::unique_ptr<data::Loader> loader;
  const auto done = [&](const char* label, const std::function<void()>& work) {
    return done_on_all_ranks(world, "text_lm", label, work);
  };
  if (!done("choosing the device", [&] { device = choose_device(options.device, world); })) return 2;
  const auto open = [&] {
    pages = open_pack(options.data, "--data");
    heldout = open_pack(options.heldout, "--heldout");
    if (!options.vocabulary_file.empty()) vocabulary.emplace(options.vocabulary_file);
    model = LanguageModel(options.model);
    model->to(device);
  };
  if (!done("opening the data", open)) return 1;
  seeds.seed_rank(world);
  // On a GPU the loader copies each batch there while the one before is used.
  const auto make_loader = [&] {
    loader = std::make_unique<data::Loader>(
        *pages, plan_of(options), world,
        data::LoaderOptions{.device = device, .transform = token_check(options.model.vocabulary)});
  };
  if (!done("making the loader", make_loader)) return 1;

  say(options, world,
      "text_lm on {}: {} parameters ({} layers, width {}); {} samples, {} tokens; steps for {} ranks x {} micro-batches of at most {} tokens\n",
      device.str(), format_count(static_cast<double>(model->parameter_count())), options.model.layers,
      options.model.width, pages->size(), format_count(static_cast<double>(tokens_of(*pages))), world.size(),
      options.accumulate, options.cap);
  say(options, world, "loader of each rank: {}\n", loader->describe());
  const auto before = evaluate(model, *heldout, options, world);
  say(options, world, "perplexity before training: {}\n", to_text(before));
  Progress progress(options, *pages, world, device);
  if (const int signal = train(model, *loader, progress, options, world)) {
    say(options, world, "stopped by signal {} after {} steps: start it again to continue from {}\n", signal,
        progress.steps(), options.checkpoint.string());
    return StopSignal::kExitCode;
  }
  auto results = progress.report();
  const auto advice = loader->advice();
  say(options, world, "waited {} for data after each epoch's first batch; {}\n",
      format_seconds(advice.waited_seconds), data::to_text(advice));
  const auto after = evaluate(model, *heldout, options, world);
  say(options, world, "perplexity after training: {}\n", to_text(after));
  say(options, world, "perplexity on held-out pages: {:.1f} -> {:.1f}\n", before.perplexity,
      after.perplexity);
  if (options.json) {
    results.update({{"data_wait_seconds", advice.waited_seconds},
                    {"perplexity_before", before.perplexity},
                    {"perplexity_after", after.perplexity}});
    if (world.rank() == 0) Tool::print(results);
    return 0;
  }
  if (vocabulary && world.rank() == 0) {
    model->to(torch::kCPU);
    say(options, world, "the model writes:\n{}\n", write_text(model, *vocabulary));
  }
  print_verdict(world);
  return 0;
}

}  // namespace
}  // namespace lockstep::text_lm

int main(int argc, char** argv) {
  lockstep::text_lm::Options options;
  if (const auto exit_code = parse(options, argc, argv)) return *exit_code;
  return lockstep::text_lm::run(options, argc, argv);
}
