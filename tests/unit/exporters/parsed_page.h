// A page of metrics as the tests look at it.
#pragma once

#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::testing {

struct Sample {
  std::map<std::string, std::string> labels;
  double value = 0;
};

struct ParsedPage {
  std::map<std::string, std::vector<Sample>> samples;  ///< by name, which may end in _bucket, _sum or _count
  std::vector<std::string> families;                   ///< in the order of the page
  std::vector<std::string> wrong;                      ///< lines that are not in the text format

  bool has(const std::string& name) const { return samples.contains(name); }

  /// The value of the first sample of this name, with this label; -1 if there is none.
  double value(const std::string& name, const std::string& label = "",
               const std::string& content = "") const {
    const auto found = samples.find(name);
    if (found == samples.end()) return -1;
    for (const Sample& sample : found->second) {
      if (label.empty() || (sample.labels.contains(label) && sample.labels.at(label) == content))
        return sample.value;
    }
    return -1;
  }

  std::string label(const std::string& name, const std::string& label) const {
    return samples.at(name).at(0).labels.at(label);
  }
};

inline ParsedPage parse_page(const std::string& text) {
  static const std::regex line(R"(([a-z_]+)(\{(.*)\})? (\S+))");
  static const std::regex label(R"re(([a-z_]+)="((\\.|[^"\\])*)"(,|$))re");
  ParsedPage page;
  std::istringstream lines(text);
  for (std::string each; std::getline(lines, each);) {
    std::smatch match;
    if (each.starts_with("# TYPE ")) {
      page.families.push_back(each.substr(7, each.rfind(' ') - 7));
    } else if (each.starts_with("# HELP ")) {
      continue;
    } else if (std::regex_match(each, match, line)) {
      Sample sample{.labels = {}, .value = std::stod(match[4])};
      const std::string labels = match[3];
      for (std::sregex_iterator at(labels.begin(), labels.end(), label), end; at != end; ++at) {
        sample.labels[(*at)[1]] = (*at)[2];
      }
      page.samples[match[1]].push_back(std::move(sample));
    } else {
      page.wrong.push_back(each);
    }
  }
  return page;
}

}  // namespace lockstep::testing
