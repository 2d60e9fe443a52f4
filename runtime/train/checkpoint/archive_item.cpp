// Items that write themselves into a LibTorch archive, which is stored as bytes.

#include <algorithm>
#include <sstream>
#include <utility>

#include "runtime/torch_archive.h"
#include "runtime/train/checkpoint/items.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kArchive = "archive";

std::string bytes_of(torch::serialize::OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

class ArchiveItem : public Item {
 public:
  ArchiveItem(ArchiveItemOptions options, SaveObject save, LoadObject load)
      : options_(std::move(options)), save_(std::move(save)), load_(std::move(load)) {}

  std::string type() const override { return options_.type; }
  Kind kind() const override { return Kind::small; }
  Order order() const override { return options_.order; }

  Section save() override {
    torch::serialize::OutputArchive archive;
    save_(archive);
    const std::string bytes = bytes_of(archive);
    auto tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
    std::copy(bytes.begin(), bytes.end(), tensor.data_ptr<std::uint8_t>());
    return {.tensors = {{kArchive, tensor}}};
  }

  void check(const Section& /*saved*/) override {}

  void load(const Section& saved) override {
    const torch::Tensor bytes = tensor_in(saved, kArchive).contiguous();
    torch::serialize::InputArchive archive;
    archive.load_from(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes());
    load_(archive);
  }

 private:
  ArchiveItemOptions options_;
  SaveObject save_;
  LoadObject load_;
};

template <typename Type, typename Read>
ItemPointer value_item(const char* type, Type& value, Read read) {
  return archive_item([&value](auto& archive) { archive.write("value", value); },
                      [&value, read](auto& archive) { value = read(value_in(archive, "value")); },
                      {.type = type});
}

}  // namespace

ItemPointer archive_item(SaveObject save, LoadObject load, ArchiveItemOptions options) {
  return std::make_unique<ArchiveItem>(std::move(options), std::move(save), std::move(load));
}

ItemPointer value_item(std::int64_t& value) {
  return value_item("integer", value, [](const c10::IValue& saved) { return saved.toInt(); });
}

ItemPointer value_item(double& value) {
  return value_item("number", value, [](const c10::IValue& saved) { return saved.toDouble(); });
}

ItemPointer value_item(std::string& value) {
  return archive_item([&](auto& archive) { archive.write("state", value); },
                      [&](auto& archive) { value = value_in(archive, "state").toStringRef(); },
                      {.type = "text"});
}

}  // namespace lockstep::checkpoint
