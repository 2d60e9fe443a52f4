#include <array>
#include <cstdio>

#include "exporters/record/snapshot.h"

namespace lockstep::record {

std::string uuid_text(const Gpu& gpu) {
  std::array<char, 48> text{};
  const auto [high, low] = gpu.uuid;
  std::snprintf(text.data(), text.size(), "GPU-%08llx-%04llx-%04llx-%04llx-%012llx",
                static_cast<unsigned long long>(high >> 32U),
                static_cast<unsigned long long>(high >> 16U & 0xffffU),
                static_cast<unsigned long long>(high & 0xffffU), static_cast<unsigned long long>(low >> 48U),
                static_cast<unsigned long long>(low & 0xffff'ffff'ffffU));
  return text.data();
}

}  // namespace lockstep::record
