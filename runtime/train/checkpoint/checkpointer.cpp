#include "runtime/train/checkpoint/checkpointer.h"

#include <algorithm>
#include <cctype>
#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/file_system.h"
#include "common/leaf/random.h"
#include "runtime/comm/run_on_all_ranks.h"
#include "runtime/ddp/replicas.h"
#include "runtime/train/checkpoint/background.h"
#include "runtime/train/checkpoint/files_of_items.h"

namespace lockstep {

using checkpoint::Contents;
using checkpoint::Item;

namespace {

constexpr const char* kRandom = "random";

void require_options(const std::filesystem::path& folder, const CheckpointerOptions& options) {
  if (folder.empty()) fail_usage("Checkpointer: the name of the folder is empty");
  if (options.keep < 1) fail_usage("Checkpointer: keep is {}; it must be at least 1", options.keep);
  if (!(options.timeout > 0)) fail_usage("Checkpointer: timeout is {}; it must be above 0", options.timeout);
}

checkpoint::WriterOptions writer_options(World& world, std::filesystem::path folder,
                                         const CheckpointerOptions& options) {
  require_options(folder, options);
  return {.folder = std::move(folder),
          .local_dir = options.local_dir,
          .keep = options.keep,
          .timeout_seconds = options.timeout,
          .rank = world.rank(),
          .ranks = world.size(),
          .node = world.node_name(),
          .run = ddp::broadcast_text(world.communicator(), random_hex(8), 0, "the name of this run")};
}

}  // namespace

struct Checkpointer::State {
  State(World& the_world, std::filesystem::path the_folder, const CheckpointerOptions& options)
      : world(the_world),
        folder(std::move(the_folder)),
        system(options.file_system != nullptr ? *options.file_system : FileSystem::real()),
        writer(writer_options(world, folder, options), system) {}

  void run_everywhere(const std::string& label, const std::function<void()>& work) const {
    const auto failure = comm::run_on_all_ranks(world.communicator(), label, work);
    if (failure) fail("{}", failure->reason);
  }

  // The newest checkpoint, which rank 0 reads: on a shared file system other nodes may see an older state.
  std::optional<Contents> read_on_all_ranks() const;

  // Rank 0, before it writes. Throws Error if the folder has checkpoints of another training.
  void prepare_folder();

  World& world;
  std::filesystem::path folder;
  FileSystem& system;
  std::vector<checkpoint::NamedItem> items;
  checkpoint::Modules modules;
  std::deque<checkpoint::FileBuffer> buffers;
  checkpoint::Writer writer;
  checkpoint::Background background;  // destroyed first: its work uses the writer and the buffers
  std::int64_t last = -1;
  bool folder_is_ours = false;
  std::vector<std::filesystem::path> damaged;  // checkpoints that load_latest() skipped; on rank 0 only
  int exceptions = std::uncaught_exceptions();
};

Checkpointer::Checkpointer(World& world, std::filesystem::path folder, const CheckpointerOptions& options)
    : state_(std::make_unique<State>(world, std::move(folder), options)) {
  state_->items.push_back({kRandom, checkpoint::random_item(world.rank(), state_->modules)});
}

Checkpointer::~Checkpointer() {
  if (std::uncaught_exceptions() > state_->exceptions) state_->writer.cancel();
  state_->background.wait_for_all();
  try {
    state_->background.rethrow();
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
  }
}

void Checkpointer::save(std::int64_t step) {
  const auto scope = state_->world.timer().phase(profile::Phase::checkpoint);
  if (step < 0 || step <= state_->last)
    fail_usage("Checkpointer: save({}) must be called with a step after the last one, {}", step,
               state_->last);
  std::vector<checkpoint::OutgoingFile> files;
  state_->run_everywhere(fmt::format("the checkpoint of step {}", step), [&] {
    state_->background.wait_for_memory();
    state_->background.rethrow();
    if (state_->world.rank() == 0) state_->prepare_folder();
    files = checkpoint::snapshot(state_->items, state_->world.rank(), state_->buffers);
  });
  state_->folder_is_ours = true;
  state_->last = step;
  state_->background.start([this, step, files = std::move(files)](const std::function<void()>& released) {
    state_->writer.write(step, files, released);
  });
}

void Checkpointer::State::prepare_folder() {
  if (!folder_is_ours) {
    const auto steps = checkpoint::steps_in(system, folder);
    if (!steps.empty()) {
      fail(
          "{} has checkpoints of another training, of step {} and before: continue from them with "
          "load_latest(), "
          "or use another folder",
          folder.string(), steps.front());
    }
  }
  // A damaged one must not count among those that are kept.
  for (const auto& checkpoint : damaged) writer.set_aside(checkpoint);
  damaged.clear();
}

void Checkpointer::wait() {
  state_->run_everywhere("writing checkpoints", [&] {
    state_->background.wait_for_all();
    state_->background.rethrow();
  });
}

std::optional<Contents> Checkpointer::State::read_on_all_ranks() const {
  auto& ranks = world.communicator();
  std::optional<Contents> contents;
  run_everywhere("reading the checkpoint", [&] {
    if (world.rank() != 0) return;
    contents = checkpoint::read_newest(
        system, folder, [](const std::string& line) { fmt::print(stderr, "lockstep: {}\n", line); });
  });
  const std::string manifest =
      ddp::broadcast_text(ranks, contents ? to_text(contents->manifest) : std::string(), 0, "the manifest");
  if (manifest.empty()) return std::nullopt;
  if (!contents) {
    contents.emplace();
    contents->manifest = checkpoint::manifest_from_text(manifest);
    contents->folder = folder / checkpoint::folder_name(contents->manifest.step);
    contents->files.resize(contents->manifest.files.size());
  }
  for (std::string& file : contents->files)
    file = ddp::broadcast_text(ranks, std::move(file), 0, "a file of the checkpoint");
  return contents;
}

std::optional<std::int64_t> Checkpointer::load_latest() {
  const auto contents = state_->read_on_all_ranks();
  if (!contents) {
    state_->folder_is_ours = true;
    return std::nullopt;
  }
  std::map<std::string, checkpoint::SavedItem> saved;
  const auto load = [&](Item::Order order) {
    for (const auto& [name, item] : state_->items) {
      if (item->order() == order) item->load(saved.at(name).ranks);
    }
  };
  state_->run_everywhere("comparing the checkpoint", [&] {
    try {
      saved = checkpoint::saved_items(*contents);
      checkpoint::check_fit(state_->items, saved);
      load(Item::Order::refusing);
    } catch (const std::exception& error) {
      fail("cannot resume from {}: {}", contents->folder.string(), error.what());
    }
  });
  load(Item::Order::tensors);
  load(Item::Order::last);
  state_->folder_is_ours = true;
  state_->damaged = contents->damaged;
  state_->last = contents->manifest.step;
  return state_->last;
}

std::int64_t Checkpointer::last_step() const {
  return state_->last;
}

namespace {

void require_name(const std::string& name, const std::vector<checkpoint::NamedItem>& items) {
  const bool valid = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  if (!valid) fail_usage("Checkpointer: the name '{}' must consist of letters, digits, '_' and '-'", name);
  const bool taken = name == "state" || std::any_of(items.begin(), items.end(),
                                                    [&](const auto& item) { return item.name == name; });
  if (taken) fail_usage("Checkpointer: the name '{}' is taken", name);
}

}  // namespace

void Checkpointer::add(const std::string& name, torch::nn::Module& module) {
  add_item(name, checkpoint::module_item(module));
  state_->modules.emplace_back(name, &module);
}

void Checkpointer::add(const std::string& name, torch::optim::Optimizer& optimizer) {
  add_item(name, checkpoint::optimizer_item(optimizer, state_->modules));
}

void Checkpointer::add(const std::string& name, DistributedOptimizerBase& optimizer) {
  add_item(name, checkpoint::optimizer_item(optimizer));
}

void Checkpointer::add(const std::string& name, GradScaler& scaler) {
  add_item(name, checkpoint::value_item(scaler));
}

void Checkpointer::add(const std::string& name, LearningRate& learning_rate) {
  add_item(name, checkpoint::value_item(learning_rate));
}

void Checkpointer::add(const std::string& name, ReduceOnPlateau& learning_rate) {
  add_item(name, checkpoint::value_item(learning_rate));
}

void Checkpointer::add(const std::string& name, EarlyStopping& stopping) {
  add_item(name, checkpoint::value_item(stopping));
}

void Checkpointer::add(const std::string& name, WeightAverage& average) {
  add_item(name, checkpoint::tensor_item(average));
}

void Checkpointer::add(const std::string& name, torch::Tensor& value) {
  add_item(name, checkpoint::tensor_item(value));
}

void Checkpointer::add(const std::string& name, std::string& value) {
  add_item(name, checkpoint::value_item(value));
}

void Checkpointer::add(const std::string& name, std::int64_t& value) {
  add_item(name, checkpoint::value_item(value));
}

void Checkpointer::add(const std::string& name, double& value) {
  add_item(name, checkpoint::value_item(value));
}

void Checkpointer::add(const std::string& name, std::function<std::string()> save,
                       std::function<void(const std::string&)> load) {
  add_item(name, checkpoint::text_item(std::move(save), std::move(load)));
}

void Checkpointer::add_item(const std::string& name, std::unique_ptr<Item> item) {
  require_name(name, state_->items);
  state_->items.push_back({name, std::move(item)});
}

}  // namespace lockstep
