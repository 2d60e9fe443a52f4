#include "runtime/ddp/backward.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/error.h"

namespace lockstep::ddp {

Backward::Backward(Buckets& buckets, const DistributedDataParallelOptions& options, SyncObserver& observer,
                   std::vector<std::uint32_t>& expected, bool collects,
                   std::function<CommFuture(Bucket&)> reduce)
    : buckets_(buckets),
      options_(options),
      observer_(observer),
      expected_(expected),
      collects_(collects),
      reduce_(std::move(reduce)),
      arrivals_(buckets.parameters().size()) {
}

void Backward::gradient_arrived(std::size_t parameter) {
  Arrivals& arrivals = arrivals_[parameter];
  ++arrivals.count;
  arrivals.last = arrived_++;
  observer_.gradient_ready(parameter);
  if (collects_) return;
  if (arrivals.ready) return arrived_again(parameter);
  if (arrivals.count < expected_[parameter]) return;
  mark_ready(parameter);
  launch();
}

// The parameter got more gradients than expected, which is harmless until its bucket is being reduced.
void Backward::arrived_again(std::size_t parameter) {
  const std::string& name = buckets_.parameters()[parameter].name;
  if (options_.static_graph) refuse_count(parameter);
  if (buckets_.bucket_of(parameter) >= reductions_.size()) return buckets_.take_gradient(parameter);
  if (arrivals_[parameter].count <= expected_[parameter]) {  // it was assumed to be unused
    fail(
        "parameter '{}' got a gradient, but find_unused_parameters did not find it in the graph of forward's outputs; reentrant checkpointing hides the parameters that it uses: set static_graph instead",
        name);
  }
  fail(
      "parameter '{}' got another gradient after the reduction of its bucket had begun; it got {} in the first step, and must get as many in every synchronised backward",
      name, expected_[parameter]);
}

void Backward::mark_ready(std::size_t parameter) {
  buckets_.take_gradient(parameter);
  arrivals_[parameter].ready = true;
}

void Backward::launch() {
  for (; reductions_.size() < buckets_.list().size(); ready_in_bucket_ = 0) {
    Bucket& next = buckets_.list()[reductions_.size()];
    while (ready_in_bucket_ < next.parameters.size() && arrivals_[next.parameters[ready_in_bucket_]].ready)
      ++ready_in_bucket_;
    if (ready_in_bucket_ < next.parameters.size()) return;
    observer_.launching(reductions_.size(), next.parameters, next.flat->buffer().bytes());
    reductions_.push_back(reduce_(next));
    observer_.launched();
  }
}

void Backward::learn() {
  const bool first = expected_.empty();
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    const std::uint32_t count = arrivals_[i].count;
    if (first) {
      expected_.push_back(options_.static_graph ? count : std::max(1U, count));
    } else if (options_.static_graph && count != expected_[i]) {
      refuse_count(i);
    }
  }
}

std::vector<std::size_t> Backward::order() const {
  if (arrived_ == 0) return {};
  std::vector<std::size_t> order(arrivals_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [this](std::size_t left, std::size_t right) {
    return arrivals_[left].last < arrivals_[right].last;
  });
  return order;
}

// Parameters may also have got fewer gradients than expected.
void Backward::complete(bool may_miss_gradients) {
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    if (arrivals_[i].ready) continue;
    if (arrivals_[i].count == 0) {
      if (!may_miss_gradients) refuse_missing(i);
      observer_.gradient_ready(i);
    }
    mark_ready(i);
  }
}

// Goes stage by stage, so that the second stages of all buckets run together, in the same order on all ranks.
void Backward::wait() {
  bool first_stage = true;
  for (bool more = true; more; first_stage = false) {
    more = false;
    for (std::size_t i = 0; i < reductions_.size(); ++i) {
      CommFuture& stage = reductions_[i];
      if (stage.works.empty() && !stage.then) continue;
      for (const auto& work : stage.works) work->wait();
      if (first_stage && !stage.works.empty()) observer_.reduced(i, stage.works.front()->times());
      const bool ended =
          first_stage && stage.works.size() == 1 && !stage.then;  // at the time of its only work
      const auto then = std::move(stage.then);
      stage = then ? then() : CommFuture{};
      more = more || !stage.works.empty() || stage.then;
      if (!ended) observer_.stage_ended(i);
    }
  }
}

void Backward::abandon() {
  static auto* const kept = new std::vector<std::pair<CommFuture, std::shared_ptr<void>>>;
  for (std::size_t i = 0; i < reductions_.size(); ++i) {
    const auto& works = reductions_[i].works;
    if (std::any_of(works.begin(), works.end(), [](const auto& work) { return !work->done(); }))
      kept->emplace_back(std::move(reductions_[i]), buckets_.list()[i].flat->memory());
  }
}

void Backward::refuse_frozen(std::size_t parameter) const {
  const auto& [name, tensor] = buckets_.parameters()[parameter];
  if (tensor.requires_grad()) return;
  fail(
      "parameter '{}' was frozen after DistributedDataParallel was constructed, which still expects its gradient; after freezing, construct a new DistributedDataParallel on all ranks",
      name);
}

void Backward::refuse_missing(std::size_t parameter) const {
  refuse_frozen(parameter);
  const auto others =
      std::count_if(arrivals_.begin(), arrivals_.end(),
                    [](const Arrivals& arrivals) { return !arrivals.ready && arrivals.count == 0; }) -
      1;
  fail(
      "parameter '{}'{} did not get a gradient in this backward; use every parameter in forward, or set find_unused_parameters, or freeze untrained parameters before constructing DistributedDataParallel (docs/users/ddp.md)",
      buckets_.parameters()[parameter].name, others == 0 ? "" : fmt::format(" (and {} more)", others));
}

void Backward::refuse_count(std::size_t parameter) const {
  refuse_frozen(parameter);
  fail(
      "parameter '{}' got {} gradients in this backward and {} in the first one; with static_graph every step must use the same parameters equally often",
      buckets_.parameters()[parameter].name, arrivals_[parameter].count, expected_[parameter]);
}

}  // namespace lockstep::ddp
