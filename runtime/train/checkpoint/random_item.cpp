#include <algorithm>
#include <optional>

#include "common/error.h"
#include "runtime/profile/accelerator.h"
#include "runtime/train/checkpoint/files_of_items.h"
#include "runtime/train/checkpoint/items.h"
#include "runtime/train/random_state.h"

namespace lockstep::checkpoint {
namespace {

/// A generator of this process, and its name in the checkpoint.
struct Generator {
  std::string name;
  at::Generator generator;
};

at::Generator generator_of(torch::Device device) {
  return train::default_generators(device).at(1);
}

// The device of the rank's modules, else the current one.
torch::Device device_of_rank(const Modules& modules, torch::DeviceType type) {
  for (const auto& [name, module] : modules) {
    if (const auto device = train::device_of(module->parameters())) return *device;
  }
  return type;
}

// The generator of the rank's own device has a name too, because a resumed job may number devices differently. It
// comes last: its state counts if a device has two.
std::vector<Generator> generators(const Modules& modules) {
  std::vector<Generator> all = {{"cpu", train::default_generators(std::nullopt).at(0)}};
  if (const auto type = accelerator()) {
    const std::string name = torch::Device(*type).str();
    for (int i = 0; i < device_count(*type); ++i)
      all.push_back({fmt::format("{}:{}", name, i), generator_of({*type, static_cast<c10::DeviceIndex>(i)})});
    all.push_back({name, generator_of(device_of_rank(modules, *type))});
  }
  return all;
}

class RandomItem : public Item {
 public:
  RandomItem(int rank, const Modules& modules) : rank_(rank), modules_(modules) {}

  std::string type() const override { return "random"; }
  Kind kind() const override { return Kind::per_node; }

  Section save() override {
    Section section;
    for (const Generator& generator : generators(modules_))
      section.tensors.push_back({generator.name, train::state_of(generator.generator)});
    return section;
  }

  void check(const Section& section) override {
    const torch::Tensor saved = tensor_in(section, "cpu");
    const torch::Tensor mine = train::state_of(generators(modules_).at(0).generator);
    if (saved.sizes() != mine.sizes())
      fail("the state of the CPU's random generator is {} in the checkpoint, but {} here", describe(saved),
           describe(mine));
  }

  bool reads() const override { return true; }

  void read(const Section& /*saved*/, const ItemFiles& files) override {
    additional_ = rank_ >= files.ranks();
    const FileEntry& file = files.of_rank(rank_ % files.ranks());
    FileBuffer bytes;
    files.read(file, bytes);
    read_ = section_in(file, bytes.bytes(), rank_ % files.ranks());
    for (NamedTensor& tensor : read_.tensors) tensor.tensor = tensor.tensor.clone();
  }

  // On more ranks than before, an additional rank gets a seed that is derived from a saved state.
  void load(const Section& /*saved*/) override {
    const Section& saved = read_;
    for (const Generator& generator : generators(modules_)) {
      const auto found =
          std::find_if(saved.tensors.begin(), saved.tensors.end(),
                       [&](const NamedTensor& tensor) { return tensor.name == generator.name; });
      if (found != saved.tensors.end()) train::set_state(generator.generator, found->tensor.clone());
    }
    if (!additional_) return;
    const auto drawn = static_cast<std::uint64_t>(
        torch::randint(std::int64_t{1} << 62, {1}, torch::kInt64).item<std::int64_t>());
    torch::manual_seed(drawn + static_cast<std::uint64_t>(rank_));
  }

 private:
  int rank_;
  const Modules& modules_;
  Section read_;
  bool additional_ = false;
};

}  // namespace

ItemPointer random_item(int rank, const Modules& modules) {
  return std::make_unique<RandomItem>(rank, modules);
}

}  // namespace lockstep::checkpoint
