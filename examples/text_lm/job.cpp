#include "examples/text_lm/job.h"

#include "common/units.h"
#include "examples/shared.h"
#include "examples/text_lm/progress.h"
#include "runtime/lockstep.h"

namespace lockstep::text_lm {

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

}  // namespace lockstep::text_lm
