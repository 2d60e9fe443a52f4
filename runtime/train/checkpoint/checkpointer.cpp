#include "runtime/train/checkpoint/checkpointer.h"

#include <algorithm>
#include <cctype>
#include <deque>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/file_system.h"
#include "common/leaf/random.h"
#include "common/units.h"
#include "runtime/comm/alike.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/control/control_channel.h"
#include "runtime/comm/failure.h"
#include "runtime/ddp/comm_hook.h"
#include "runtime/train/checkpoint/file_progress.h"
#include "runtime/train/checkpoint/files_of_items.h"
#include "runtime/train/checkpoint/folder_lock.h"
#include "runtime/train/checkpoint/reader.h"
#include "runtime/train/learning_rate.h"

namespace lockstep {

using checkpoint::Item;

namespace {

constexpr const char* kRandom = "random";

void require_options(const std::filesystem::path& folder, const CheckpointerOptions& options) {
  if (folder.empty()) fail_usage("Checkpointer: the name of the folder is empty");
  if (options.keep < 1) fail_usage("Checkpointer: keep is {}; it must be at least 1", options.keep);
  if (!(options.timeout > 0)) fail_usage("Checkpointer: timeout is {}; it must be above 0", options.timeout);
}

// The program may change its working folder later.
std::filesystem::path absolute(const std::filesystem::path& folder, const CheckpointerOptions& options) {
  require_options(folder, options);
  const auto path = std::filesystem::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// The folder of a Checkpointer of this process, as long as it lives.
class OwnFolder {
 public:
  OwnFolder(std::filesystem::path folder, bool read_only) : folder_(std::move(folder)), counts_(!read_only) {
    if (counts_ && !all().insert(folder_).second) {
      fail_usage("Checkpointer: another Checkpointer of this program uses {}: give each a folder of its own",
                 folder_.string());
    }
  }
  ~OwnFolder() {
    if (counts_) all().erase(folder_);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

 private:
  static std::set<std::filesystem::path>& all() {
    static std::set<std::filesystem::path> folders;
    return folders;
  }
  std::filesystem::path folder_;
  bool counts_;
};

}  // namespace

struct Checkpointer::State {
  using SavedItems = std::map<std::string, checkpoint::SavedItem>;

  State(World& the_world, const std::filesystem::path& the_folder, const CheckpointerOptions& the_options)
      : world(the_world),
        options(the_options),
        folder(absolute(the_folder, options)),
        own_folder(folder, options.read_only),
        system(options.file_system != nullptr ? *options.file_system : FileSystem::real()),
        writer(writer_options(), system) {}

  checkpoint::WriterOptions writer_options();
  void run_everywhere(const std::string& label, const std::function<void()>& work) const {
    const auto failure = comm::run_on_all_ranks(world.communicator(), label, work);
    if (failure) fail("{}", failure->reason);
  }
  void run_with_files(const std::string& label, const std::function<void()>& work) {
    checkpoint::run_with_files(world.communicator(), progress, label, work);
  }
  void wait_until_written();
  // The communicator of this node's ranks. The first call makes it, on all ranks together.
  comm::Communicator& node_ranks();
  // The ranks that have files.
  std::vector<int> writers(bool have_files);

  // The next checkpoint, which rank 0 finds: on a shared file system other nodes may see an older state.
  std::optional<checkpoint::Headers> next_on_all_ranks(checkpoint::CheckpointSearch& search);
  // Reads what this rank needs of the items that read their files. Returns the damage that the first rank found.
  std::string read(const checkpoint::Headers& headers, const SavedItems& saved);
  void load(const checkpoint::Headers& headers, const SavedItems& saved);
  checkpoint::ItemFiles files_of(const std::string& item, const checkpoint::Manifest& manifest) {
    return {system, folder / checkpoint::folder_name(manifest.step), manifest, item, progress};
  }

  // Rank 0, before it writes. Throws Error if the folder has checkpoints of another training.
  void prepare_folder();
  void check_lock() const;
  void check_room(std::uint64_t bytes_here);

  World& world;
  CheckpointerOptions options;
  std::filesystem::path folder;
  OwnFolder own_folder;
  FileSystem& system;
  checkpoint::FileProgress progress;
  std::optional<checkpoint::FolderLock> lock;  // on rank 0
  std::unique_ptr<comm::Communicator> node_ranks_;
  std::vector<checkpoint::NamedItem> items;
  checkpoint::Modules modules;
  std::deque<checkpoint::FileBuffer> buffers;
  checkpoint::Writer writer;
  checkpoint::Background background;  // destroyed first: its work uses the writer and the buffers
  std::int64_t last = -1;
  bool last_failed = false;
  bool folder_is_ours = false;
  bool folder_is_prepared = false;
  std::vector<std::filesystem::path> damaged;  // checkpoints that load_latest() skipped; on rank 0 only
  int exceptions = std::uncaught_exceptions();
};

checkpoint::WriterOptions Checkpointer::State::writer_options() {
  checkpoint::WriterOptions writing{
      .folder = folder,
      .local_dir = options.local_dir,
      .keep = options.keep,
      .timeout_seconds = options.timeout,
      .rank = world.rank(),
      .ranks = world.size(),
      .node = world.node_name(),
      .run = comm::broadcast_text(world.communicator(), random_hex(8), 0, "the name of this run")};
  if (!options.read_only) {
    run_with_files("the folder of checkpoints", [&] {
      if (world.rank() != 0) return;
      progress.begin("locking " + folder.string());
      checkpoint::make_folders(system, folder);
      checkpoint::FolderLockOptions lock_options;
      lock_options.force = options.force;
      lock_options.waiting = [this] { progress.touch(); };
      lock.emplace(system, folder, checkpoint::LockHolder::here(writing.run), lock_options);
    });
  }
  if (lock) writing.dead_run = lock->dead_run();
  writing.check_lock = [this] { check_lock(); };
  if (auto* const channel = comm::ControlChannel::current()) {
    writing.tell_rank_0 = [channel](const std::string& text) { channel->tell_rank_0(text); };
    writing.last_text_of = [channel](int rank) { return channel->last_text_of(rank); };
  }
  writing.progress = &progress;
  return writing;
}

void Checkpointer::State::check_lock() const {
  if (lock && lock->lost()) {
    fail("another program has taken over the folder of checkpoints {} while this one stood still",
         folder.string());
  }
}

Checkpointer::Checkpointer(World& world, std::filesystem::path folder, const CheckpointerOptions& options)
    : state_(std::make_unique<State>(world, folder, options)) {
  state_->items.push_back({kRandom, checkpoint::random_item(world.rank(), state_->modules)});
}

Checkpointer::~Checkpointer() {
  if (std::uncaught_exceptions() > state_->exceptions) {
    state_->writer.cancel();
    state_->background.wait_for_all();
  }
  try {
    if (std::uncaught_exceptions() <= state_->exceptions) state_->wait_until_written();
    state_->background.rethrow();
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
  }
}

void Checkpointer::State::wait_until_written() {
  checkpoint::wait_for_files(world.communicator(), progress, [this](std::chrono::milliseconds pause) {
    return background.wait_for_all(pause);
  });
}

comm::Communicator& Checkpointer::State::node_ranks() {
  if (world.nodes() == 1) return world.communicator();
  if (!node_ranks_) node_ranks_ = world.communicator().split(world.node(), "a node's ranks, for checkpoints");
  return *node_ranks_;
}

std::vector<int> Checkpointer::State::writers(bool have_files) {
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(world.size()));
  std::uint8_t& mine = flags[static_cast<std::size_t>(world.rank())] = have_files ? 1 : 0;
  world.communicator()
      .all_gather({&mine, 1, comm::DataType::u8}, flags.data(), "the writers of a checkpoint")
      ->wait();
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (flags[static_cast<std::size_t>(rank)] != 0) ranks.push_back(rank);
  }
  return ranks;
}

void Checkpointer::save(std::int64_t step) {
  const auto scope = state_->world.timer().phase(profile::Phase::checkpoint);
  if (state_->options.read_only) fail_usage("Checkpointer: save() was called, but its options say read_only");
  if (step < 0 || step < state_->last)
    fail_usage("Checkpointer: save({}) must be called with a step after the last one, {}", step,
               state_->last);
  if (step == state_->last && !state_->last_failed) return;
  state_->last_failed = true;  // until it is certain on all ranks that it is being written
  checkpoint::wait_for_files(
      state_->world.communicator(), state_->progress,
      [this](std::chrono::milliseconds pause) { return state_->background.wait_for_memory(pause); });
  if (!state_->folder_is_prepared) {
    state_->run_with_files("the folder of checkpoints", [this] {
      if (state_->world.rank() == 0) state_->prepare_folder();
    });
  }
  const auto of_node = checkpoint::gather_sections(state_->items, state_->world.rank(), state_->node_ranks());
  std::vector<checkpoint::OutgoingFile> files;
  state_->run_everywhere(fmt::format("the checkpoint of step {}", step), [&] {
    state_->background.rethrow();
    state_->check_lock();
    files = checkpoint::snapshot(state_->items, state_->world.rank(), of_node, state_->buffers);
  });
  if (!state_->folder_is_prepared) {
    std::uint64_t bytes = 0;
    for (const auto& file : files) bytes += file.bytes.size();
    state_->check_room(bytes);
  }
  state_->folder_is_ours = state_->folder_is_prepared = true;
  state_->last = step;
  state_->last_failed = false;
  auto writers = state_->writers(!files.empty());
  state_->background.start([this, step, files = std::move(files),
                            writers = std::move(writers)](const std::function<void()>& released) {
    state_->writer.write(step, files, writers, released);
  });
}

void Checkpointer::State::prepare_folder() {
  progress.begin("looking at " + folder.string());
  if (!folder_is_ours) {
    const auto steps = checkpoint::steps_in(system, folder);
    if (!steps.empty()) {
      fail(
          "{} has checkpoints of another training, of step {} and before: continue from them with load_latest(), or use another folder (docs/users/checkpoints.md)",
          folder.string(), steps.front());
    }
  }
  // A damaged one must not count among those that are kept.
  for (const auto& checkpoint : damaged) writer.rename_damaged(checkpoint);
  damaged.clear();
}

// Says before the first checkpoint, and not after hours, that not all of them will fit.
void Checkpointer::State::check_room(std::uint64_t bytes_here) {
  auto bytes = static_cast<std::int64_t>(bytes_here);
  world.communicator().all_reduce({&bytes, 1, comm::DataType::i64}, "the size of a checkpoint")->wait();
  run_with_files("the folder of checkpoints", [&] {
    if (world.rank() != 0) return;
    const auto kept = static_cast<std::int64_t>(checkpoint::steps_in(system, folder).size());
    const std::int64_t missing = std::max<std::int64_t>(1, options.keep + 1 - kept);
    const std::uint64_t free = system.free_bytes(folder);
    if (free / static_cast<std::uint64_t>(missing) >= static_cast<std::uint64_t>(bytes)) return;
    fmt::print(
        stderr,
        "lockstep: {} has {} free, but {} more checkpoints of {} must fit (keep is {}, and one is being written): free some space, or keep fewer\n",
        folder.string(), format_bytes(free), missing, format_bytes(static_cast<std::uint64_t>(bytes)),
        options.keep);
  });
}

void Checkpointer::wait() {
  state_->wait_until_written();
  try {
    state_->run_everywhere("writing checkpoints", [&] { state_->background.rethrow(); });
  } catch (...) {
    state_->last_failed = true;
    throw;
  }
}

std::optional<checkpoint::Headers> Checkpointer::State::next_on_all_ranks(
    checkpoint::CheckpointSearch& search) {
  auto& ranks = world.communicator();
  std::optional<checkpoint::Headers> headers;
  run_with_files("reading the checkpoint", [&] {
    if (world.rank() != 0) return;
    while (const auto found = search.next()) {
      try {
        headers = checkpoint::read_headers(system, *found, progress);
        return;
      } catch (const checkpoint::Damaged& damage) {
        search.reject(damage.what());
      }
    }
  });
  const std::string manifest =
      comm::broadcast_text(ranks, headers ? to_text(headers->manifest) : std::string(), 0, "the manifest");
  if (manifest.empty()) return std::nullopt;
  if (!headers) {
    headers = checkpoint::Headers{.manifest = checkpoint::manifest_from_text(manifest), .bytes = {}};
    for (const std::size_t number : first_files(headers->manifest)) headers->bytes[number];
  }
  for (auto& [number, bytes] : headers->bytes)
    bytes = comm::broadcast_text(ranks, std::move(bytes), 0, headers->manifest.files[number].name);
  return headers;
}

std::string Checkpointer::State::read(const checkpoint::Headers& headers, const SavedItems& saved) {
  std::string damage;
  run_with_files("reading the checkpoint", [&] {
    try {
      for (const auto& [name, item] : items) {
        if (item->reads()) item->read(saved.at(name).section, files_of(name, headers.manifest));
      }
    } catch (const checkpoint::Damaged& error) {
      damage = error.what();
    }
  });
  auto& ranks = world.communicator();
  std::int32_t first = damage.empty() ? ranks.size() : ranks.rank();
  ranks.all_reduce({&first, 1, comm::DataType::i32}, "the vote on a checkpoint", {.op = comm::ReduceOp::min})
      ->wait();
  if (first == ranks.size()) return {};
  return comm::broadcast_text(ranks, std::move(damage), first, "the damage of a checkpoint");
}

// One item after the other, so that the file of one is in memory at a time.
void Checkpointer::State::load(const checkpoint::Headers& headers, const SavedItems& saved) {
  std::exception_ptr failure;  // the other ranks go on
  for (const Item::Order order : {Item::Order::tensors, Item::Order::last}) {
    for (const auto& [name, item] : items) {
      if (item->order() != order) continue;
      checkpoint::Section section = saved.at(name).section;
      checkpoint::FileBuffer content;
      if (item->kind() != Item::Kind::small && !item->reads()) {
        const auto files = files_of(name, headers.manifest);
        run_with_files("reading the checkpoint", [&] { files.read(files.of_rank(0), content); });
        section = checkpoint::section_in(files.of_rank(0), content.bytes(), 0);
      }
      try {
        item->load(section);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

std::optional<std::int64_t> Checkpointer::load_latest() {
  std::optional<checkpoint::LoadLog> log;
  if (state_->world.rank() == 0 && !state_->options.read_only) log.emplace();
  checkpoint::CheckpointSearch search(
      state_->system, state_->folder, state_->progress,
      [](const std::string& line) { fmt::print(stderr, "lockstep: {}\n", line); });
  std::optional<checkpoint::Headers> headers;
  State::SavedItems saved;
  const auto on_all_ranks = [&](const std::string& label, const std::function<void()>& work) {
    state_->run_everywhere(label, [&] {
      try {
        work();
      } catch (const std::exception& error) {
        fail("cannot resume from {}: {}",
             (state_->folder / checkpoint::folder_name(headers->manifest.step)).string(), error.what());
      }
    });
  };
  std::string damage;
  do {
    headers = state_->next_on_all_ranks(search);
    if (!headers) {
      state_->folder_is_ours = true;
      if (log) log->write(0);
      return std::nullopt;
    }
    on_all_ranks("comparing the checkpoint", [&] {
      saved = checkpoint::saved_items(*headers);
      checkpoint::check_fit(state_->items, saved);
    });
    damage = state_->read(*headers, saved);
    if (!damage.empty() && state_->world.rank() == 0) search.reject(damage);
  } while (!damage.empty());
  on_all_ranks("comparing the checkpoint", [&] {
    for (const auto& [name, item] : state_->items) {
      if (item->order() == Item::Order::refusing) item->load(saved.at(name).section);
    }
  });
  std::exception_ptr failure;
  try {
    state_->load(*headers, saved);
  } catch (...) {
    failure = std::current_exception();
  }
  const std::int64_t step = headers->manifest.step;
  state_->run_everywhere("loading the checkpoint", [&] {
    if (failure)
      fail("cannot resume from {}, and a part of it is loaded already: {}",
           (state_->folder / checkpoint::folder_name(step)).string(), comm::first_line_of(failure));
  });
  state_->damaged = search.damaged();
  state_->folder_is_ours = true;
  state_->folder_is_prepared = false;
  state_->writer.continue_training(headers->manifest.training);
  state_->last = step;
  state_->last_failed = false;
  if (log) log->write(step);
  return step;
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

void Checkpointer::add(const std::string& name, LearningRate& learning_rate) {
  add_item(name, checkpoint::archive_item([&](auto& archive) { learning_rate.save(archive); },
                                          [&](auto& archive) { learning_rate.load(archive); },
                                          {.order = Item::Order::last}));
}

void Checkpointer::add_value(const std::string& name,
                             std::variant<std::int64_t*, double*, std::string*, torch::Tensor*> value) {
  add_item(name, std::visit([](auto* pointer) { return checkpoint::value_item(*pointer); }, value));
}

void Checkpointer::add_object(const std::string& name, checkpoint::SaveObject save,
                              checkpoint::LoadObject load) {
  add_item(name, checkpoint::archive_item(std::move(save), std::move(load)));
}

void Checkpointer::add_item(const std::string& name, std::unique_ptr<Item> item) {
  require_name(name, state_->items);
  state_->items.push_back({name, std::move(item)});
}

}  // namespace lockstep
