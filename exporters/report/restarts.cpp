#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "common/units.h"
#include "exporters/report/run.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kMaxLines = 10;

// A start of the program, and what became of it, as far as it is known.
struct Start {
  double at = 0;
  std::vector<std::string> nodes{};
  double load_end = 0;
  double load_seconds = 0;
  std::optional<std::int64_t> loaded{};  // the steps of the checkpoint
  std::optional<double> end{};
  double failed = 0;
  std::string cause{};
  std::optional<std::int64_t> steps{};  // of this start
};

Start parse_start(const nlohmann::json& line) {
  Start start{.at = line.at("at")};
  for (const nlohmann::json& node : line.at("nodes"))
    start.nodes.push_back(printable(node.get<std::string>()));
  return start;
}

void add_load(const nlohmann::json& line, Start& start) {
  start.load_end = line.at("at");
  start.load_seconds = line.at("seconds");
  start.loaded = line.at("loaded").get<std::int64_t>();
}

void add_end(const nlohmann::json& line, Start& start) {
  const auto cause = line.at("cause").get<std::string>();
  start.failed = line.at("failed");
  start.cause = cause.empty() ? fmt::format("exit code {}", line.at("end").get<int>()) : printable(cause);
  if (const auto steps = line.find("steps"); steps != line.end() && !steps->is_null())
    start.steps = steps->get<std::int64_t>();
  start.end = line.at("at").get<double>();
}

std::vector<Start> read_starts(const std::filesystem::path& path) {
  std::vector<Start> starts;
  bool over = false;  // a start succeeded, so the job script has started another program
  std::istringstream lines(read_text_file(path));
  int number = 0;
  for (std::string text; std::getline(lines, text);) {
    ++number;
    try {
      const auto line = nlohmann::json::parse(text);
      if (line.contains("start")) {
        if (std::exchange(over, false)) starts.clear();
        starts.push_back(parse_start(line));
      } else if (!starts.empty() && line.contains("loaded")) {
        add_load(line, starts.back());
      } else if (!starts.empty()) {
        add_end(line, starts.back());
        over = line.contains("end") && line.at("end") == 0;
      }
    } catch (const nlohmann::json::exception& error) {
      fail("{}:{} is damaged: {}", path.string(), number, printable(error.what()));
    }
  }
  return starts;
}

// `reached`: the steps that were done before.
Restart restart_of(const Start& before, const Start& after, std::optional<std::int64_t> reached) {
  Restart restart{.cause = "lockstep-run was lost with its node, or killed", .begin_unix = after.at};
  if (before.end) {
    restart.cause = before.cause;
    restart.stop_seconds = std::max(0.0, *before.end - before.failed);
    restart.start_seconds = std::max(0.0, after.at - *before.end);
  }
  if (after.loaded) {
    restart.launch_seconds = std::max(0.0, after.load_end - after.load_seconds - after.at);
    restart.load_seconds = after.load_seconds;
    restart.loaded = after.loaded;
    if (reached) restart.steps_lost = std::max<std::int64_t>(0, *reached - *after.loaded);
  }
  for (const std::string& node : before.nodes) {
    if (std::find(after.nodes.begin(), after.nodes.end(), node) == after.nodes.end())
      restart.without.push_back(node);
  }
  return restart;
}

// The steps that were done when the start ended. One that ended before it loaded a checkpoint has done none.
std::optional<std::int64_t> reached_by(const Start& start, std::optional<std::int64_t> before) {
  if (!start.loaded) return before;
  if (!start.end || !start.steps) return std::nullopt;
  return *start.loaded + *start.steps;
}

std::string seconds_text(const Restart& restart) {
  std::string text = "its time is not known";
  if (restart.stop_seconds) {
    text = fmt::format("{} until the ranks had ended, {} until the new start",
                       format_seconds(*restart.stop_seconds), format_seconds(*restart.start_seconds));
  }
  if (restart.loaded) {
    text +=
        fmt::format(", {} until it could load, {} to load step {}", format_seconds(*restart.launch_seconds),
                    format_seconds(*restart.load_seconds), *restart.loaded);
  }
  if (restart.steps_lost)
    text += fmt::format("; {} step{} lost", *restart.steps_lost, *restart.steps_lost == 1 ? "" : "s");
  return text;
}

}  // namespace

double Restarts::seconds() const {
  double sum = 0;
  for (const Restart& restart : list)
    sum += restart.stop_seconds.value_or(0) + restart.start_seconds.value_or(0);
  return sum;
}

std::int64_t Restarts::steps_lost() const {
  std::int64_t sum = 0;
  for (const Restart& restart : list) sum += restart.steps_lost.value_or(0);
  return sum;
}

Restarts read_restarts(const std::filesystem::path& path) {
  const std::vector<Start> starts = read_starts(path);
  Restarts restarts;
  if (starts.empty()) return restarts;
  restarts.begin_unix = starts.front().at;
  auto reached = reached_by(starts.front(), std::nullopt);
  for (std::size_t i = 1; i < starts.size(); ++i) {
    restarts.list.push_back(restart_of(starts[i - 1], starts[i], reached));
    reached = reached_by(starts[i], reached);
  }
  return restarts;
}

double job_goodput(const Restarts& restarts, const LastStart& last) {
  const double all = last.end_unix - restarts.begin_unix;
  const double goodput = last.goodput.value_or(0);
  if (restarts.list.empty() || all <= 0) return goodput;
  const double again = static_cast<double>(restarts.steps_lost()) * last.step_seconds;
  return goodput * std::max(0.0, 1 - (restarts.seconds() + again) / all);
}

std::vector<std::string> restart_lines(const Restarts& restarts, const LastStart& last) {
  if (restarts.list.empty()) return {};
  const std::size_t count = restarts.list.size();
  std::vector<std::string> lines{
      fmt::format("restarts: {}; no rank ran in {} of the {} since the first start", count,
                  format_seconds(restarts.seconds()),
                  format_seconds(std::max(0.0, last.end_unix - restarts.begin_unix)))};
  if (const std::int64_t lost = restarts.steps_lost(); lost > 0)
    lines[0] += fmt::format(", and {} step{} done twice", lost, lost == 1 ? " was" : "s were");
  if (last.goodput) {
    lines[0] +=
        fmt::format(", so at most {:.0f} % of the job's time trained", 100 * job_goodput(restarts, last));
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
  nlohmann::json list = nlohmann::json::array();
  for (const Restart& restart : restarts.list) {
    list.push_back({{"cause", restart.cause},
                    {"begin_unix", restart.begin_unix},
                    {"stop_seconds", or_null(restart.stop_seconds)},
                    {"start_seconds", or_null(restart.start_seconds)},
                    {"launch_seconds", or_null(restart.launch_seconds)},
                    {"load_seconds", or_null(restart.load_seconds)},
                    {"loaded", or_null(restart.loaded)},
                    {"steps_lost", or_null(restart.steps_lost)},
                    {"without", restart.without}});
  }
  return list;
}

}  // namespace lockstep::report
