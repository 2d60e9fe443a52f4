// The switches that tests set: the seed, waits to drop, faults, findings.
#include <utility>

#include "tests/device/simulator.h"

namespace lockstep::simulated {

void Simulator::set_seed(std::uint64_t seed) {
  const std::scoped_lock lock(mutex_);
  random_.seed(static_cast<std::minstd_rand::result_type>(seed * 2654435761U + 1));
}

int Simulator::choose(int end) {
  const std::scoped_lock lock(mutex_);
  return static_cast<int>((random_() >> 8U) % static_cast<unsigned>(end));
}

void Simulator::drop_wait(Wait kind, int n) {
  const std::scoped_lock lock(mutex_);
  drops_ = {};
  drops_.at(static_cast<std::size_t>(kind)).n = n;
}

int Simulator::waits(Wait kind) {
  const std::scoped_lock lock(mutex_);
  return drops_.at(static_cast<std::size_t>(kind)).seen;
}

bool Simulator::drops(Wait kind, const Label& label, int number) {
  const std::scoped_lock lock(mutex_);
  Drop& drop = drops_.at(static_cast<std::size_t>(kind));
  if (number == 0) number = ++drop.seen;
  if (number != drop.n) return false;
  dropped_.push_back(label);
  return true;
}

void Simulator::inject(Fault kind, int n) {
  const std::scoped_lock lock(mutex_);
  faults_.at(static_cast<std::size_t>(kind)) = n;
  fault_thread_ = &this_thread();
}

bool Simulator::due(Fault kind) {
  const std::scoped_lock lock(mutex_);
  if (kind == Fault::cudart && fault_thread_ != &this_thread()) return false;
  int& left = faults_.at(static_cast<std::size_t>(kind));
  return left > 0 && --left == 0;
}

std::vector<std::string> Simulator::take_findings() {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> texts;
  for (const Finding& finding : std::exchange(findings_, {})) texts.push_back(finding());
  return texts;
}

std::size_t Simulator::drop_findings() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(findings_, {}).size();
}

std::set<std::string> Simulator::take_dropped_sites() {
  const std::scoped_lock lock(mutex_);
  std::set<std::string> sites;
  for (const Label& label : std::exchange(dropped_, {})) {
    if (const std::string site = label.site(); !site.empty()) sites.insert(site);
  }
  return sites;
}

std::set<int> Simulator::contexts() {
  const std::scoped_lock lock(mutex_);
  return contexts_;
}

void Simulator::access_from_host(Range range, const Label& label) {
  HostThread& thread = this_thread();
  const std::scoped_lock lock(mutex_);
  const Stamp stamp{thread.queue, ++thread.number};
  thread.clock.add(stamp);
  VectorClock known = thread.clock;
  known.join(synchronised_);
  races_.access(block_of(range), range, stamp, known, label, findings_);
}

void Simulator::learn_from_other_threads() {
  HostThread& thread = this_thread();
  const std::scoped_lock lock(mutex_);
  for (const HostThread* other : threads_) thread.clock.join(other->clock);
}

bool Simulator::knows_all_collectives() {
  VectorClock known = this_thread().clock;
  const std::scoped_lock lock(mutex_);
  known.join(synchronised_);
  return races_.knows_all("nccl", known);
}

void set_seed(std::uint64_t seed) {
  Simulator::get().set_seed(seed);
}
std::vector<std::string> take_findings() {
  return Simulator::get().take_findings();
}
std::size_t drop_findings() {
  return Simulator::get().drop_findings();
}
std::set<int> contexts() {
  return Simulator::get().contexts();
}
void access_from_host(const void* memory, std::size_t bytes, bool write, const char* label) {
  Simulator::get().access_from_host({static_cast<const std::byte*>(memory), bytes, write}, Label(label));
}
void learn_from_other_threads() {
  Simulator::get().learn_from_other_threads();
}
bool knows_all_collectives() {
  return Simulator::get().knows_all_collectives();
}
void drop_wait(Wait kind, int n) {
  Simulator::get().drop_wait(kind, n);
}
int waits(Wait kind) {
  return Simulator::get().waits(kind);
}
std::set<std::string> take_dropped_sites() {
  return Simulator::get().take_dropped_sites();
}
void inject(Fault kind, int n) {
  Simulator::get().inject(kind, n);
}

}  // namespace lockstep::simulated
