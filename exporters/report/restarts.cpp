#include "exporters/report/restarts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "common/units.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kMaxLines = 10;

struct Start {
  double at = 0;
  std::vector<std::string> nodes;
};

struct End {
  double at = 0;
  double failed = 0;
  std::string cause;
};

Start parse_start(const nlohmann::json& line) {
  Start start{.at = line.at("at"), .nodes = {}};
  for (const nlohmann::json& node : line.at("nodes"))
    start.nodes.push_back(printable(node.get<std::string>()));
  return start;
}

End parse_end(const nlohmann::json& line) {
  const auto cause = line.at("cause").get<std::string>();
  return {.at = line.at("at"),
          .failed = line.at("failed"),
          .cause = cause.empty() ? fmt::format("exit code {}", line.at("end").get<int>()) : printable(cause)};
}

Restart restart_of(const Start& before, const std::optional<End>& end, const Start& after) {
  Restart restart{.cause = "lockstep-run was lost with its node, or killed", .begin_unix = after.at};
  if (end) {
    restart.cause = end->cause;
    restart.stop_seconds = std::max(0.0, end->at - end->failed);
    restart.start_seconds = std::max(0.0, after.at - end->at);
  }
  for (const std::string& node : before.nodes) {
    if (std::find(after.nodes.begin(), after.nodes.end(), node) == after.nodes.end())
      restart.without.push_back(node);
  }
  return restart;
}

std::string seconds_text(const Restart& restart) {
  if (!restart.stop_seconds) return "its time is not known";
  return fmt::format("{} until the ranks had ended, {} until the new start",
                     format_seconds(*restart.stop_seconds), format_seconds(*restart.start_seconds));
}

}  // namespace

double Restarts::seconds() const {
  double sum = 0;
  for (const Restart& restart : list)
    sum += restart.stop_seconds.value_or(0) + restart.start_seconds.value_or(0);
  return sum;
}

std::string restarts_name(std::uint64_t job) {
  return fmt::format("restarts-{}.jsonl", job);
}

Restarts read_restarts(const std::filesystem::path& path) {
  Restarts restarts;
  std::optional<Start> start;
  std::optional<End> end;
  std::istringstream lines(read_text_file(path));
  int number = 0;
  for (std::string text; std::getline(lines, text);) {
    ++number;
    try {
      const auto line = nlohmann::json::parse(text);
      if (line.contains("end")) {
        end = parse_end(line);
        continue;
      }
      Start next = parse_start(line);
      if (start) restarts.list.push_back(restart_of(*start, end, next));
      if (!start) restarts.begin_unix = next.at;
      start = std::move(next);
      end.reset();
    } catch (const nlohmann::json::exception& error) {
      fail("{}:{} is damaged: {}", path.string(), number, printable(error.what()));
    }
  }
  return restarts;
}

double running_share(const Restarts& restarts, double end_unix) {
  const double all = end_unix - restarts.begin_unix;
  if (restarts.list.empty() || all <= 0) return 1;
  return std::max(0.0, 1 - restarts.seconds() / all);
}

std::vector<std::string> restart_lines(const Restarts& restarts, double end_unix,
                                       std::optional<double> goodput) {
  if (restarts.list.empty()) return {};
  const std::size_t count = restarts.list.size();
  std::vector<std::string> lines{fmt::format(
      "restarts: {}; no rank ran in {} of the {} since the first start", count,
      format_seconds(restarts.seconds()), format_seconds(std::max(0.0, end_unix - restarts.begin_unix)))};
  if (goodput) {
    lines[0] += fmt::format(", so at most {:.0f} % of the job's time trained",
                            100 * *goodput * running_share(restarts, end_unix));
  }
  for (std::size_t i = count - std::min(count, kMaxLines); i < count; ++i) {
    const Restart& restart = restarts.list[i];
    lines.push_back(fmt::format(
        "restart {} after {}: {}: {}{}", i + 1, format_seconds(restart.begin_unix - restarts.begin_unix),
        restart.cause, seconds_text(restart),
        restart.without.empty() ? "" : fmt::format("; without {}", fmt::join(restart.without, ","))));
  }
  return lines;
}

nlohmann::json restarts_json(const Restarts& restarts) {
  const auto known = [](const std::optional<double>& seconds) {
    return seconds ? nlohmann::json(*seconds) : nlohmann::json();
  };
  nlohmann::json list = nlohmann::json::array();
  for (const Restart& restart : restarts.list) {
    list.push_back({{"cause", restart.cause},
                    {"begin_unix", restart.begin_unix},
                    {"stop_seconds", known(restart.stop_seconds)},
                    {"start_seconds", known(restart.start_seconds)},
                    {"without", restart.without}});
  }
  return list;
}

}  // namespace lockstep::report
