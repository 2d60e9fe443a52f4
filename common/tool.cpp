#include "common/tool.h"

#include <cstdio>

#include "common/error.h"

namespace lockstep {
namespace {

int report(const std::string& name, const std::exception& error, int code) {
  fmt::print(stderr, "{}: {}\n", name, error.what());
  return code;
}

// CLI11 says of what its PositiveNumber and NonNegativeNumber refuse that the range ends at the greatest
// double, with its 309 digits; --help says POSITIVE and NONNEGATIVE.
std::string without_endless_range(std::string text) {
  const auto range = text.find(" not in range 0.000000 to 179769");
  return range == std::string::npos ? text : text.substr(0, range) + " is out of range";
}

}  // namespace

Tool::Tool(std::string name, std::string summary) : name_(std::move(name)), app_(std::move(summary), name_) {
  app_.set_version_flag("--version", fmt::format("{} {}", name_, version()));
  app_.add_flag("--json", json_, "Print JSON, and nothing else, on standard output");
  app_.fallthrough();
}

CLI::App& Tool::verb(const std::string& name, const std::string& summary, std::function<void()> work) {
  app_.require_subcommand(1);
  CLI::App& sub = *app_.add_subcommand(name, summary);
  sub.callback([this, work = std::move(work)] { chosen_ = work; });
  return sub;
}

void Tool::print(const nlohmann::json& value) {
  // Names of files are bytes; what is not UTF-8 in them is shown as the replacement character.
  fmt::print("{}\n", value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

int Tool::run(int argc, char** argv, const std::function<void()>& work) {
  chosen_ = work;
  try {
    app_.parse(argc, argv);
    if (chosen_) chosen_();
    if (std::fflush(stdout) != 0) fail_errno("cannot write to standard output");
    return 0;
  } catch (const CLI::Success& success) {  // --help, --version
    return app_.exit(success);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "{}: {}; see {} --help\n", name_, without_endless_range(error.what()), name_);
    return 2;
  } catch (const UsageError& error) {
    return report(name_, error, 2);
  } catch (const std::exception& error) {
    return report(name_, error, 1);
  }
}

const char* version() {
  return LOCKSTEP_VERSION;
}

}  // namespace lockstep
