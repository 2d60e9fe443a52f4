// Items that are a few numbers. Floating-point numbers are kept as text, since JSON has neither infinities
// nor NaN.

#include <charconv>
#include <utility>

#include "common/error.h"
#include "runtime/train/checkpoint/items.h"
#include "runtime/train/grad_scaler.h"
#include "runtime/train/learning_rate.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

class ValueItem : public Item {
 public:
  using Save = std::function<json()>;
  using Load = std::function<void(const json&)>;

  ValueItem(std::string type, Save save, Load load)
      : type_(std::move(type)), save_(std::move(save)), load_(std::move(load)) {}

  std::string type() const override { return type_; }
  Kind kind() const override { return Kind::small; }
  Order order() const override { return Order::last; }

  Section save() override {
    Section section;
    section.values = save_();
    return section;
  }
  void check(const std::vector<Section>& /*ranks*/) override {}
  void load(const std::vector<Section>& ranks) override { load_(ranks.at(0).values); }

 private:
  std::string type_;
  Save save_;
  Load load_;
};

ItemPointer make(const char* type, ValueItem::Save save, ValueItem::Load load) {
  return std::make_unique<ValueItem>(type, std::move(save), std::move(load));
}

std::string text_of(double number) {
  return fmt::format("{}", number);
}

// The program may have set a locale with a decimal comma, which strtod() would expect.
double number_in(const json& values, const char* name) {
  const auto& text = values.at(name).get_ref<const std::string&>();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    fail("its '{}' is not a number: {}", name, text);
  return number;
}

}  // namespace

ItemPointer value_item(GradScaler& scaler) {
  return make(
      "grad_scaler",
      [&scaler] {
        return json{{"scale", text_of(scaler.state().scale)}, {"good_steps", scaler.state().good_steps}};
      },
      [&scaler](const json& saved) {
        scaler.set_state({.scale = number_in(saved, "scale"), .good_steps = saved.at("good_steps")});
      });
}

// Loaded after the optimizer, whose state also has learning rates: the schedule's are right.
ItemPointer value_item(LearningRate& learning_rate) {
  return make(
      "learning_rate",
      [&learning_rate] {
        return json{{"step", learning_rate.current_step()}};
      },
      [&learning_rate](const json& saved) { learning_rate.set_step(saved.at("step")); });
}

ItemPointer value_item(ReduceOnPlateau& learning_rate) {
  return make(
      "reduce_on_plateau",
      [&learning_rate] {
        const auto& state = learning_rate.state();
        return json{
            {"best", text_of(state.best)}, {"observations", state.observations}, {"begun", state.begun}};
      },
      [&learning_rate](const json& saved) {
        learning_rate.set_state({.best = number_in(saved, "best"),
                                 .observations = saved.at("observations"),
                                 .begun = saved.at("begun")});
      });
}

ItemPointer value_item(std::int64_t& value) {
  return make(
      "integer",
      [&value] {
        return json{{"value", value}};
      },
      [&value](const json& saved) { value = saved.at("value"); });
}

ItemPointer value_item(double& value) {
  return make(
      "number",
      [&value] {
        return json{{"value", text_of(value)}};
      },
      [&value](const json& saved) { value = number_in(saved, "value"); });
}

}  // namespace lockstep::checkpoint
