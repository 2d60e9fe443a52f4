// text_lm: trains a language model on packed pages of text, on all ranks that the launcher starts. Any model
// can be trained with a loop like the one in train().

#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "common/error.h"
#include "common/tool.h"
#include "common/units.h"
#include "examples/shared.h"
#include "examples/text_lm/evaluate.h"
#include "examples/text_lm/model.h"
#include "examples/text_lm/options.h"
#include "examples/text_lm/progress.h"
#include "examples/text_lm/samples_seen.h"
#include "examples/text_lm/update.h"
#include "examples/text_lm/vocabulary.h"
#include "runtime/data/loader.h"
#include "runtime/lockstep.h"
#include "staging/pack/reader.h"

namespace lockstep::text_lm {
namespace {

std::unique_ptr<pack::Reader> open_pages(const std::filesystem::path& path, const char* option) {
  if (path.empty()) fail("no data: give {} DIR, or submit with --stage (LOCKSTEP_DATA is not set)", option);
  auto pages = pack::open(path);
  if (pages->token_bytes() == 0) {
    fail("{} does not contain tokens: pack token files with lockstep-pack create --token-bytes 2",
         path.string());
  }
  return pages;
}

/// The data and the model of this rank. Only the loader needs the other ranks to be constructed.
struct Job {
  Job(const Options& options, torch::Device where)
      : device(where),
        pages(open_pages(options.data, "--data")),
        heldout(open_pages(options.heldout, "--heldout")),
        model(options.model) {
    model->to(device);
    if (!options.vocabulary_file.empty()) vocabulary.emplace(options.vocabulary_file);
  }

  torch::Device device;
  std::unique_ptr<pack::Reader> pages;
  std::unique_ptr<pack::Reader> heldout;
  LanguageModel model;
  std::optional<Vocabulary> vocabulary;
  std::unique_ptr<data::Loader> loader;
};

std::unique_ptr<data::Loader> make_loader(const Job& job, const Options& options, World& world) {
  const data::PlanOptions plan{
      .cap = options.cap,
      .accumulate = options.accumulate,
      .step_tokens = options.step_tokens,
      .cost = data::transformer_cost({.width = options.model.width,
                                      .layers = options.model.layers,
                                      .vocabulary = options.model.vocabulary}),
      .seed = Seeds(options.seed).data(),
      .padded = options.padded,
      .speeds = options.speeds,
  };
  // On a GPU the loader copies each batch there while the one before is used.
  return std::make_unique<data::Loader>(*job.pages, plan, world, data::LoaderOptions{.device = job.device});
}

std::uint64_t tokens_of(const pack::Reader& pages) {
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < pages.size(); ++i) tokens += pages.tokens(i);
  return tokens;
}

torch::Tensor forward(Ddp& ddp, const data::Batch& batch, const Options& options, World& world) {
  const auto scope = world.timer().phase(profile::Phase::forward);
  check_tokens(batch.tokens, ddp->options().vocabulary);
  const Autocast autocast(batch.tokens.device().type(), torch::kBFloat16, options.bf16);
  return loss_sum(ddp, batch);
}

/// Prints a line on rank 0, unless --json is given.
template <typename... Args>
void say(const Options& options, const World& world, fmt::format_string<Args...> format, Args&&... args) {
  if (world.rank() != 0 || options.json) return;
  fmt::print(format, std::forward<Args>(args)...);
  std::fflush(stdout);
}

/// The results of a training.
struct Result {
  Summary summary;
  std::optional<std::int64_t> resumed_at;  ///< the step, if it was resumed
  int stopped_by = 0;                      ///< the signal, if it was not trained to the end
  torch::Tensor seen;                      ///< how often each sample was trained on in the last epoch
};

/// Options that the parameters' shapes do not show: a checkpoint of other ones is refused.
struct ModelOptionsText {
  std::string text;

  void save(torch::serialize::OutputArchive& archive) const { archive.write("state", text); }
  void load(torch::serialize::InputArchive& archive) const {
    c10::IValue saved;
    archive.read("state", saved);
    if (saved.toStringRef() != text) fail("its model has {}, but this one has {}", saved.toStringRef(), text);
  }
};

/// The part of a checkpoint that is this program's own.
struct Saved {
  ModelOptionsText model;
  Progress::State progress;
  torch::Tensor seen;
};

void add_all(Checkpointer& checkpointer, Job& job, Update& update, Saved& saved) {
  checkpointer.add("model_options", saved.model);
  checkpointer.add("model", *job.model);
  update.add_to(checkpointer);
  checkpointer.add("loader", *job.loader);
  checkpointer.add("steps", saved.progress.steps);
  checkpointer.add("tokens", saved.progress.tokens);
  checkpointer.add("seconds", saved.progress.seconds);
  checkpointer.add("seen", saved.seen);
}

Result train(Job& job, const Options& options, World& world) {
  Ddp ddp(job.model, world, {.check_model = true});
  if (options.compress) ddp.register_comm_hook(bf16_compress_hook());
  Update update(ddp, job.model, options);
  SamplesSeen seen(job.pages->size());
  Progress progress(options, tokens_of(*job.pages), world);
  // By time, tokens or steps. Where only steps count, use the schedules of lockstep::schedule.
  LearningRate learning_rate(update.optimizer(),
                             [&](std::int64_t) { return progress.learning_rate_factor(); });
  Result result;
  Saved saved{.model = {fmt::format("{} heads", options.model.heads)}, .progress = {}, .seen = {}};
  std::optional<Checkpointer> checkpointer;
  std::optional<StopSignal> stop;
  if (!options.checkpoint.empty()) {
    stop.emplace(world);
    checkpointer.emplace(world, options.checkpoint,
                         CheckpointerOptions{.local_dir = options.checkpoint_local});
    add_all(*checkpointer, job, update, saved);
    if ((result.resumed_at = checkpointer->load_latest())) {
      progress.resume(saved.progress);
      seen.resume(saved.seen, world);
      say(options, world, "resumed from {}: {} steps were done\n", options.checkpoint.string(),
          *result.resumed_at);
    }
  }
  const auto save = [&] {
    if (!checkpointer || checkpointer->last_step() == progress.steps()) return;
    saved.progress = progress.state();
    saved.seen = seen.on_all_ranks(world);
    checkpointer->save(progress.steps());
  };

  while (!progress.over()) {
    for (const auto& batch : *job.loader) {
      const auto hold = ddp.no_sync_unless(batch.last_of_step);  // covers forward and backward
      if (batch.empty) {
        ddp.skip();
      } else {
        const auto loss = forward(ddp, batch, options, world);
        ddp.backward(loss, batch.loss_tokens);
        const auto value = loss.item<double>();
        check_loss(world, value, progress.steps());
        progress.add(value, batch);
        seen.add(batch.sample_ids);
      }
      if (!batch.last_of_step) continue;

      {
        const auto scope = world.timer().phase(profile::Phase::optimizer);
        learning_rate.set_step(progress.steps());
        update.apply();
      }
      progress.end_step();
      if (progress.over()) break;
      if (stop && stop->poll()) {
        result.stopped_by = stop->signal();
        break;
      }
      if (progress.steps() % options.checkpoint_steps == 0) save();
    }
    if (result.stopped_by != 0 || progress.over_after(job.loader->epoch())) break;
    job.loader->set_epoch(job.loader->epoch() + 1);
    seen.clear();
  }
  save();
  if (checkpointer) checkpointer->wait();
  result.seen = seen.on_all_ranks(world);
  result.summary = progress.finish();
  return result;
}

void print_setup(const Job& job, const Options& options, const World& world) {
  say(options, world,
      "text_lm on {}: {} parameters ({} layers, width {}); {} samples, {} tokens; steps for {} ranks x {} micro-batches of at most {} tokens\n",
      job.device.str(), format_count(static_cast<double>(job.model->parameter_count())), options.model.layers,
      options.model.width, job.pages->size(), format_count(static_cast<double>(tokens_of(*job.pages))),
      world.size(), options.accumulate, options.cap);
  say(options, world, "loader of each rank: {}\n", job.loader->describe());
}

Evaluation measure(Job& job, const Options& options, World& world, const char* when) {
  const auto result = evaluate(job.model, *job.heldout, options, world);
  say(options, world, "perplexity {} training: {:.1f} ({} held-out tokens{}, {})\n", when, result.perplexity,
      format_count(static_cast<double>(result.tokens)),
      options.padded ? fmt::format(" and {} of padding", format_count(static_cast<double>(result.padding)))
                     : "",
      format_seconds(result.seconds));
  return result;
}

void write_results(Job& job, const Options& options, World& world) {
  if (world.rank() != 0) return;
  job.model->to(torch::kCPU);
  if (!options.save.empty()) {
    torch::save(job.model, options.save.string());
    say(options, world, "parameters: {}\n", options.save.string());
  }
  if (job.vocabulary && !options.json) {
    say(options, world, "the model writes:\n{}\n",
        write_text(job.model, *job.vocabulary, options.sample_tokens));
  }
}

int run(const Options& options, int argc, char** argv) {
  World world(argc, argv);
  apply_settings(world, {.deterministic = options.deterministic});
  const Seeds seeds(options.seed);
  seeds.seed_model();
  torch::Device device = torch::kCPU;
  const auto choose = [&] { device = choose_device(options.device, world); };
  if (!done_on_all_ranks(world, "text_lm", "choosing the device", choose)) return 2;
  std::unique_ptr<Job> job;
  const auto open_data = [&] { job = std::make_unique<Job>(options, device); };
  if (!done_on_all_ranks(world, "text_lm", "opening the data", open_data)) return 1;
  const auto set_up_loader = [&] { job->loader = make_loader(*job, options, world); };
  if (!done_on_all_ranks(world, "text_lm", "making the loader", set_up_loader)) return 1;
  seeds.seed_rank(world);

  print_setup(*job, options, world);
  const auto before = measure(*job, options, world, "before");
  const auto result = train(*job, options, world);
  const Summary& summary = result.summary;
  if (result.stopped_by != 0) {
    say(options, world, "stopped by signal {} after {} steps: start it again to continue from {}\n",
        result.stopped_by, summary.steps, options.checkpoint.string());
    return StopSignal::kExitCode;
  }
  const auto tokens = static_cast<double>(summary.tokens_here);
  const double rate = tokens > 0 ? tokens / summary.seconds : 0;
  say(options, world, "trained {} steps on {} tokens in {}: {} tokens/s\n",
      summary.steps - result.resumed_at.value_or(0), format_count(tokens), format_seconds(summary.seconds),
      format_count(rate));
  say(options, world, "waited {} for data after the first step; {}\n", format_seconds(summary.data_wait),
      data::to_text(job->loader->advice()));
  const auto after = measure(*job, options, world, "after");
  say(options, world, "perplexity on held-out pages: {:.1f} -> {:.1f}\n", before.perplexity,
      after.perplexity);
  write_results(*job, options, world);
  if (!options.json) print_verdict(world);
  if (options.json && world.rank() == 0) {
    Tool::print({{"ranks", world.size()},
                 {"nodes", world.nodes()},
                 {"device", device.str()},
                 {"parameters", job->model->parameter_count()},
                 {"steps", summary.steps},
                 {"tokens", summary.tokens},
                 {"seconds", summary.seconds},
                 {"tokens_per_second", rate},
                 {"data_wait_seconds", summary.data_wait},
                 {"loss", summary.loss},
                 {"resumed_at_step", result.resumed_at ? nlohmann::json(*result.resumed_at) : nullptr},
                 {"epoch", job->loader->epoch()},
                 {"samples", result.seen.numel()},
                 {"samples_seen_once", result.seen.eq(1).sum().item<std::int64_t>()},
                 {"samples_not_seen", result.seen.eq(0).sum().item<std::int64_t>()},
                 {"perplexity_before", before.perplexity},
                 {"perplexity_after", after.perplexity}});
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::text_lm

int main(int argc, char** argv) {
  lockstep::text_lm::Options options;
  if (const auto exit_code = parse(options, argc, argv)) return *exit_code;
  return lockstep::text_lm::run(options, argc, argv);
}
