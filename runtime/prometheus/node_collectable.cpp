#include "runtime/prometheus/node_collectable.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "common/environment.h"
#include "common/files.h"
#include "exporters/families/rank_families.h"
#include "exporters/record/record.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

exporter::JobRecords read_records(const fs::path& own_record) {
  const record::Identity own = record::Reader(own_record).identity();
  exporter::JobRecords job{.user = std::to_string(::geteuid()),
                           .user_name = environment::get_or("USER", ""),
                           .job = std::to_string(own.job_id),
                           .step = std::to_string(own.step_id),
                           .ranks = {}};
  const UniqueFd folder = open_file(own_record.parent_path(), O_RDONLY | O_DIRECTORY);
  for (const fs::directory_entry& entry : fs::directory_iterator(own_record.parent_path())) {
    const std::string file = entry.path().filename();
    const std::optional<int> rank = record::rank_of(file);
    if (!rank) continue;
    try {
      record::Snapshot snapshot = record::read_without_steps(folder.get(), file, *rank);
      const record::Identity& identity = snapshot.identity;
      const bool same = identity.job_id == own.job_id && identity.step_id == own.step_id &&
                        identity.size == own.size && identity.node == own.node;
      if (same) job.ranks.push_back(std::move(snapshot));
    } catch (const Error&) {  // this rank has no metrics now
    }
  }
  std::sort(job.ranks.begin(), job.ranks.end(),
            [](const auto& a, const auto& b) { return a.identity.rank < b.identity.rank; });
  return job;
}

}  // namespace

std::vector<::prometheus::MetricFamily> NodeCollectable::Collect() const {
  std::vector<::prometheus::MetricFamily> families;
  if (record_.empty()) return families;
  try {
    const exporter::JobRecords job = read_records(record_);
    if (job.ranks.empty()) return families;
    exporter::FamilyStream stream(
        [&](::prometheus::MetricFamily&& family) { families.push_back(std::move(family)); });
    exporter::stream_rank_families({job}, job.ranks.front().identity.node, stream);
    stream.finish();
  } catch (const std::exception&) {  // the folder is gone; no metrics are better than no process
    families.clear();
  }
  return families;
}

}  // namespace lockstep
