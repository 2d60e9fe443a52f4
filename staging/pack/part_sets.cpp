#include "staging/pack/part_sets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/leaf/text.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

constexpr std::size_t kMaxShown = 60;

using Kinds = std::set<std::string>;

std::string shown(const Kinds& kinds) {
  std::string text;
  for (const std::string& kind : kinds) {
    if (!text.empty()) text += ", ";
    text += kind.empty() ? "no ending" : printable(kind, kMaxShown);
  }
  return printable(text, 2 * kMaxShown);
}

struct Group {
  std::size_t samples = 0;
  std::size_t first = 0;
};

}  // namespace

std::string describe_unequal_parts(const Index& index, std::size_t begin, std::size_t end) {
  // By the numbers of the kinds first, as most samples have the same ones.
  std::map<std::set<std::uint32_t>, Group> by_number;
  std::map<std::uint32_t, std::string> names;
  for (std::size_t i = begin; i < end; ++i) {
    std::set<std::uint32_t> numbers;
    for (std::size_t p = index.first_part(i); p < index.first_part(i + 1); ++p) {
      const layout::PartRecord& part = index.part(p);
      numbers.insert(part.kind);
      if (names.find(part.kind) == names.end()) names[part.kind] = lower_case(index.kind(part));
    }
    const auto [found, added] = by_number.try_emplace(std::move(numbers), Group{.samples = 0, .first = i});
    ++found->second.samples;
  }
  std::map<Kinds, Group> groups;
  for (const auto& [numbers, group] : by_number) {
    Kinds kinds;
    for (const std::uint32_t number : numbers) kinds.insert(names[number]);
    const auto [found, added] = groups.try_emplace(std::move(kinds), group);
    if (added) continue;
    found->second.samples += group.samples;
    found->second.first = std::min(found->second.first, group.first);
  }
  if (groups.size() < 2) return {};
  const auto most = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    if (a.second.samples != b.second.samples) return a.second.samples < b.second.samples;
    return a.second.first > b.second.first;
  });
  auto first = groups.end();
  for (auto group = groups.begin(); group != groups.end(); ++group) {
    if (group != most && (first == groups.end() || group->second.first < first->second.first)) first = group;
  }
  return fmt::format("{} of {} samples have other parts than the others ({}): the first is '{}' ({})",
                     end - begin - most->second.samples, end - begin, shown(most->first),
                     printable(index.key(first->second.first), kMaxShown), shown(first->first));
}

}  // namespace lockstep::pack
