// The checks' common tools: find the plugin's configuration, and run the node's programs.
//
// Threads: values; run_quickly() is safe from any.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/leaf/options/config.h"
#include "common/process.h"
#include "plugin/doctor/finding.h"

namespace lockstep::doctor {

/// The line of plugstack.conf that names the plugin.
struct PluginLine {
  std::filesystem::path file;    ///< where the line is
  std::filesystem::path plugin;  ///< lockstep.so, as written
  std::string config;            ///< of conf=, or the default
  int number = 0;                ///< of the line in `file`
  std::string place() const { return file.string() + ":" + std::to_string(number); }
};

/// The file plugstack.conf of this node's Slurm, or where it would be.
std::filesystem::path plugstack_file();

/// The plugin's line in a plugstack.conf or in the files that it includes; nullopt if there is none.
std::optional<PluginLine> find_plugin_line(const std::filesystem::path& plugstack);

/// A file beside `plugstack`, in plugstack.conf.d, that has the plugin's line; nullopt if there is none. The packages
/// install one, which has no effect until plugstack.conf includes it.
std::optional<PluginLine> find_line_not_included(const std::filesystem::path& plugstack);

/// Reads the lockstep.conf that `path` or the plugin's line names, or the one at the default path, for the partition of this
/// job. nullopt if it has a mistake, which `report` then says, or if nothing names it and it does not exist.
std::optional<Config> read_configuration(const std::string& path, const std::optional<PluginLine>& line,
                                         Report& report);

/// A file of this installation, such as "share/lockstep/lockstep.conf", as an absolute path; "" if it does not exist.
std::string installed_file(const std::string& name);

/// Runs a program and ends it after 5 seconds: then its exit code is 124, and 127 if there is no such
/// program.
ProcessResult run_quickly(std::vector<std::string> command);

/// The first text in a file, also in a binary one, that matches an extended regular expression; "" if there is none.
std::string text_in(const std::filesystem::path& file, const std::string& expression);

}  // namespace lockstep::doctor
