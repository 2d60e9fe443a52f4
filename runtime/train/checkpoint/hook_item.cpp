#include <sstream>

#include "runtime/ddp/comm_hook.h"
#include "runtime/train/checkpoint/items.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kArchive = "archive";

/// A communication hook. Each rank has a state of its own, for example the part of its gradients that was not sent yet.
class HookItem : public Item {
 public:
  HookItem(CommHook& hook, int rank) : hook_(hook), rank_(static_cast<std::size_t>(rank)) {}

  std::string type() const override { return "hook"; }
  Kind kind() const override { return Kind::per_rank; }

  Section save() override {
    torch::serialize::OutputArchive archive;
    hook_.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    const std::string bytes = stream.str();
    auto tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
    std::copy(bytes.begin(), bytes.end(), tensor.data_ptr<std::uint8_t>());
    return {.tensors = {{kArchive, tensor}}};
  }

  void check(const std::vector<Section>& ranks) override { (void)tensor_in(ranks.at(0), kArchive); }

  std::vector<bool> needed(const std::vector<Section>& ranks) override {
    std::vector<bool> needed(ranks.size());
    needed[rank_ % ranks.size()] = true;
    return needed;
  }

  void load(const std::vector<Section>& ranks) override {
    const torch::Tensor& bytes = tensor_in(ranks.at(rank_ % ranks.size()), kArchive);
    torch::serialize::InputArchive archive;
    archive.load_from(reinterpret_cast<const char*>(bytes.data_ptr()), bytes.nbytes());
    hook_.load(archive);
  }

 private:
  CommHook& hook_;
  std::size_t rank_;
};

}  // namespace

ItemPointer hook_item(CommHook& hook, int rank) {
  return std::make_unique<HookItem>(hook, rank);
}

}  // namespace lockstep::checkpoint
