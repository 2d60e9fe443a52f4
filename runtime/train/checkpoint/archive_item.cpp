// Items that write themselves into a LibTorch archive, which is stored as bytes.

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <utility>

#include "common/error.h"
#include "runtime/archive.h"
#include "runtime/train/checkpoint/items.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kArchive = "archive";
// The types that objects had in checkpoints of earlier versions.
constexpr std::array kEarlierTypes = {"text", "grad_scaler", "learning_rate", "reduce_on_plateau"};

std::string bytes_of(torch::serialize::OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

std::string text_in(const torch::Tensor& tensor) {
  const torch::Tensor bytes = tensor.contiguous();
  return {static_cast<const char*>(bytes.data_ptr()), bytes.nbytes()};
}

bool has_archive(const Section& section) {
  return std::any_of(section.tensors.begin(), section.tensors.end(),
                     [](const NamedTensor& tensor) { return tensor.name == kArchive; });
}

// The program may have set a locale with a decimal comma, which strtod() would expect.
double number_of(const std::string& name, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    fail("its '{}' is not a number: {}", name, text);
  return number;
}

// Earlier versions stored a text as a tensor, and values as JSON with floating-point numbers as texts.
std::string archive_of_earlier(const Section& section) {
  torch::serialize::OutputArchive archive;
  for (const auto& [name, value] : section.values.items()) {
    if (value.is_string()) {
      archive.write(name, number_of(name, value));
    } else if (value.is_boolean()) {
      archive.write(name, value.get<bool>());
    } else {
      archive.write(name, value.get<std::int64_t>());
    }
  }
  for (const NamedTensor& text : section.tensors) archive.write("state", text_in(text.tensor));
  return bytes_of(archive);
}

class ArchiveItem : public Item {
 public:
  ArchiveItem(ArchiveItemOptions options, SaveObject save, LoadObject load)
      : options_(std::move(options)), save_(std::move(save)), load_(std::move(load)) {}

  std::string type() const override { return options_.type; }
  bool reads(const std::string& type) const override {
    return type == options_.type ||
           (options_.type == kObject &&
            std::find(kEarlierTypes.begin(), kEarlierTypes.end(), type) != kEarlierTypes.end());
  }
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

  void check(const std::vector<Section>& /*ranks*/) override {}

  void load(const std::vector<Section>& ranks) override {
    const Section& saved = ranks.at(0);
    const std::string bytes =
        has_archive(saved) ? text_in(tensor_in(saved, kArchive)) : archive_of_earlier(saved);
    torch::serialize::InputArchive archive;
    archive.load_from(bytes.data(), bytes.size());
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
