#include "runtime/ddp/known_parameters.h"

#include <algorithm>

#include "common/error.h"

namespace lockstep::ddp {
namespace {

// Module's public functions copy its parameters and build their names. A derived class may read them
// directly.
struct Registered : torch::nn::Module {
  static const torch::OrderedDict<std::string, torch::Tensor>& of(const torch::nn::Module& module) {
    return module.*(&Registered::parameters_);
  }
};

// Calls `visit` for all parameters in the order of named_parameters() until it returns false.
template <typename Visit>
bool visit_parameters(const torch::nn::Module& module, const Visit& visit) {
  for (const auto& entry : Registered::of(module)) {
    if (entry.value().defined() && !visit(entry.value())) return false;
  }
  const auto children = module.children();
  return std::all_of(children.begin(), children.end(),
                     [&](const auto& child) { return visit_parameters(*child, visit); });
}

// Inference tensors have no version; they cannot be changed outside of InferenceMode either.
std::uint32_t version_of(const torch::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

}  // namespace

KnownParameters::KnownParameters(const torch::nn::Module& module) {
  for (const auto& entry : module.named_parameters()) {
    const torch::Tensor& tensor = entry.value();
    known_.push_back({.name = entry.key(),
                      .tensor = tensor,
                      .sizes = tensor.sizes().vec(),
                      .storage = tensor.storage().getWeakStorageImpl(),
                      .accumulator = tensor.requires_grad() ? torch::autograd::impl::grad_accumulator(tensor)
                                                            : torch_compat::NodeHandle(),
                      .version = version_of(tensor)});
  }
}

const char* KnownParameters::difference(const Known& known, const torch::Tensor& now, bool memory) {
  if (!now.is_same(known.tensor)) return "was replaced";
  if (known.accumulator == nullptr) {
    if (now.requires_grad()) return "was unfrozen";
  } else if (torch::autograd::impl::try_get_grad_accumulator(now) != known.accumulator) {
    return "was loaded or converted";
  }
  if (now.sizes() != known.sizes) return "has another shape";
  if (memory && now.storage().unsafeGetStorageImpl() != known.storage._unsafe_get_target())
    return "was given other memory";
  return nullptr;
}

std::string KnownParameters::change_in(const torch::nn::Module& module, bool memory) const {
  std::size_t at = 0;
  const bool same = visit_parameters(module, [&](const torch::Tensor& tensor) {
    if (at == known_.size() || difference(known_[at], tensor, memory) != nullptr) return false;
    ++at;
    return true;
  });
  if (same && at == known_.size()) return {};
  return describe(module, at, memory);
}

void KnownParameters::note_versions() {
  for (auto& known : known_) known.version = version_of(known.tensor);
}

std::string KnownParameters::changed_values() const {
  const auto changed = [](const Known& known) { return version_of(known.tensor) != known.version; };
  const auto found = std::find_if(known_.begin(), known_.end(), changed);
  return found == known_.end() ? std::string() : found->name;
}

std::string KnownParameters::describe(const torch::nn::Module& module, std::size_t at, bool memory) const {
  const auto now = module.named_parameters();
  if (at == known_.size()) return fmt::format("'{}' was added", now[at].key());
  const auto has_name = [](const std::string& name) {
    return [&name](const Known& known) { return known.name == name; };
  };
  if (at < now.size() && std::none_of(known_.begin(), known_.end(), has_name(now[at].key())))
    return fmt::format("'{}' was added", now[at].key());
  if (at == now.size() || now[at].key() != known_[at].name)
    return fmt::format("'{}' was removed", known_[at].name);
  return fmt::format("'{}' {}", known_[at].name, difference(known_[at], now[at].value(), memory));
}

}  // namespace lockstep::ddp
