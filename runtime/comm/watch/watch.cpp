#include "runtime/comm/watch/watch.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/thread.h"
#include "runtime/comm/watch/activity.h"

namespace lockstep::comm {
namespace {

using watch::Kind;
using watch::Link;
using watch::Message;
using watch::Overdue;
using watch::State;
using watch::Status;

using std::chrono::milliseconds;

// Survivors are to be gone 5 s after an operation's time is over: this long for answers, and failure.cpp's
// time for leaving.
constexpr milliseconds kNodeAnswers{1000};
constexpr milliseconds kAllAnswer{1500};
constexpr milliseconds kNoVerdict{1900};  // then rank 0 is taken to be in trouble itself
constexpr milliseconds kTellEnd{300};
constexpr milliseconds kOtherAborts{
    1000};  // who printed the line aborts the job; if it cannot, the others do

std::atomic<Watch*> the_watch{nullptr};
pid_t watched_process = 0;

std::uint64_t after(milliseconds time) {
  return monotonic_ns() + static_cast<std::uint64_t>(time.count()) * 1'000'000U;
}

std::string pack_number(std::int32_t number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

std::int32_t unpack_number(const std::string& bytes) {
  std::int32_t number = 0;
  if (bytes.size() != sizeof number) fail("a message of the watch is damaged");
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// How much later than the first a rank speaks up for itself, so that, when rank 0 cannot, usually one does.
milliseconds seniority(const watch::Tree& tree) {
  const auto& node_of = tree.roster.node_of;
  const int node = node_of.at(static_cast<std::size_t>(tree.rank));
  if (node == 0) return milliseconds(tree.rank == tree.roster.ranks_on(0).at(1) ? 0 : 100);
  const bool alone = std::count(node_of.begin(), node_of.end(), 0) == 1;  // rank 0 on its node
  if (tree.parent == 0) return milliseconds(node == 1 ? (alone ? 0 : 250) : 500);
  return milliseconds(600);
}

}  // namespace

// Everything below belongs to the thread, but for the requests.
class Watch::Thread {
 public:
  explicit Thread(watch::Tree tree)
      : tree_(std::move(tree)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) fail_errno("eventfd");
    if (tree_.parent >= 0) seniority_ = seniority(tree_);
    thread_ = start_thread([this] { serve(); });
  }

  void report_overdue(const std::string& operation, std::chrono::seconds given) {
    request([&] {
      if (!overdue_asked_) {
        overdue_asked_ = Overdue{operation, static_cast<std::uint64_t>(given.count()), {}};
      }
    });
  }

  void report_line(const std::string& line) {
    request([&] { line_asked_ = line; });
  }

  void tell_end(int exit_code) {
    request([&] { end_asked_ = exit_code; });
    std::unique_lock lock(mutex_);
    answered_.wait_for(lock, kTellEnd, [this] { return end_told_; });
  }

  void stop() {
    request([&] { stop_asked_ = true; });
    thread_.join();
  }

 private:
  template <typename Change>
  void request(Change change) {
    {
      const std::scoped_lock lock(mutex_);
      change();
    }
    const std::uint64_t one = 1;
    // Fails only where the thread is about to wake anyhow.
    static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  }

  void serve() {
    pthread_setname_np(pthread_self(), "lockstep-watch");
    while (!over_) {
      wait();
      look_at_requests();
      if (over_) break;
      look_at_links();
      look_at_clock();
    }
  }

  // Until something happens or the next thing is due.
  void wait() {
    std::vector<pollfd> waits{{wake_.get(), POLLIN, 0}};
    const auto add = [&](const Link& link) {
      if (link.open()) {
        waits.push_back({link.fd(), static_cast<short>(POLLIN | (link.has_unsent() ? POLLOUT : 0)), 0});
      }
    };
    if (tree_.up) add(*tree_.up);
    for (const auto& child : tree_.down) add(child.link);

    std::uint64_t due = UINT64_MAX;
    for (const auto& time : {answers_due_, verdict_due_}) due = std::min(due, time.value_or(UINT64_MAX));
    int timeout = -1;
    if (due != UINT64_MAX) {
      const std::uint64_t now = monotonic_ns();
      timeout = due <= now ? 0 : static_cast<int>((due - now) / 1'000'000U) + 1;
    }
    if (::poll(waits.data(), waits.size(), timeout) < 0 && errno != EINTR) {
      // No memory, or no such descriptor: the runtime is as it would be without a watch.
      over_ = true;
    }
  }

  void look_at_requests() {
    std::uint64_t count = 0;
    static_cast<void>(!::read(wake_.get(), &count, sizeof count));
    std::optional<Overdue> overdue;
    std::optional<std::string> line;
    std::optional<int> end;
    bool stop = false;
    {
      const std::scoped_lock lock(mutex_);
      overdue = std::exchange(overdue_asked_, std::nullopt);
      line = std::exchange(line_asked_, std::nullopt);
      end = end_asked_;
      stop = stop_asked_;
    }
    if (end) {
      tell_all(Kind::end, pack_number(*end), nullptr);
      {
        const std::scoped_lock lock(mutex_);
        end_told_ = true;
      }
      answered_.notify_all();
      over_ = true;  // that thread ends the process
    } else if (stop) {
      tell_all(Kind::goodbye, watch::pack(std::vector{my_status()}), nullptr);
      over_ = true;
    } else if (line) {
      learn_of_line(*line);
    } else if (overdue) {
      overdue->status = my_status();
      learn_of(*overdue);
    }
  }

  void look_at_links() {
    if (tree_.up && tree_.up->open()) look_at(*tree_.up, tree_.parent, true);
    for (auto& child : tree_.down) {
      if (child.link.open()) look_at(child.link, child.rank, false);
    }
  }

  void look_at(Link& link, int rank, bool is_parent) {
    if (link.has_unsent()) link.send_rest();
    std::vector<Message> messages;
    Link::End end = link.receive(messages);
    try {
      for (const Message& message : messages) act_on(message, link, rank, is_parent);
    } catch (const Error&) {
      end = Link::End::broken;
    }
    if (end == Link::End::none) return;
    link.close();
    const bool said_goodbye = left_.contains(rank);
    if (is_parent) {
      // Nobody above answers any more.
      if (!said_goodbye && end == Link::End::closed) {
        gone_parent_ = true;
        verdict_due_ = after(2 * seniority_);
      }
    } else if (!said_goodbye && end == Link::End::closed) {
      learn_gone(rank);
    } else {
      note_answers(rank);
    }
  }

  void act_on(const Message& message, Link& link, int rank, bool is_parent) {
    switch (message.kind) {
      case Kind::overdue:
        return learn_of(watch::unpack_overdue(message.body));
      case Kind::ask:
        asked_from_above_ = true;
        return begin_collecting();
      case Kind::answer:
        for (Status& status : watch::unpack_statuses(message.body)) answers_[status.rank] = std::move(status);
        return note_answers(rank);
      case Kind::line:
        return learn_of_line(message.body);
      case Kind::gone:
        return learn_gone(unpack_number(message.body));
      case Kind::end:
        tell_all(Kind::end, message.body, &link);
        leave_ended_job(unpack_number(message.body));
      case Kind::goodbye:
        for (Status& status : watch::unpack_statuses(message.body)) {
          if (is_parent) status.rank = rank;
          status.state = State::left;
          answers_[status.rank] = status;
          left_[rank] = std::move(status);
        }
        return;
    }
    fail("the watch knows no such message");
  }

  bool is_top() const { return tree_.parent < 0; }

  Status my_status() const { return watch::status_of_this_process(tree_.rank); }

  // An operation took too long, here or below.
  void learn_of(const Overdue& overdue) {
    if (overdue_) return;
    overdue_ = overdue;
    if (!is_top()) {
      if (tree_.up->open()) tree_.up->send(Kind::overdue, watch::pack(overdue));
      if (!verdict_due_) verdict_due_ = after(kNoVerdict + seniority_);
    }
    begin_collecting();
  }

  void learn_of_line(const std::string& line) {
    if (is_top()) give_verdict(line);
    if (line_) return;
    line_ = line;
    if (tree_.up->open()) tree_.up->send(Kind::line, line);
    verdict_due_ = std::min(verdict_due_.value_or(UINT64_MAX), after(kNodeAnswers + seniority_));
  }

  void begin_collecting() {
    if (!collecting_ && !collected_) {
      collecting_ = true;
      answers_[tree_.rank] = my_status();
      answers_due_ = after(is_top() ? kAllAnswer : kNodeAnswers);
      for (auto& child : tree_.down) {
        if (child.link.open()) {
          child.link.send(Kind::ask);
          unanswered_.push_back(child.rank);
        }
      }
    }
    note_answers(-1);
  }

  // A child has said all that it will say.
  void note_answers(int rank) {
    std::erase(unanswered_, rank);
    if (collecting_ && unanswered_.empty()) end_collecting();
    if (collected_ && asked_from_above_ && tree_.up && tree_.up->open()) {
      asked_from_above_ = false;
      tree_.up->send(Kind::answer, watch::pack(statuses_below()));
    }
  }

  void end_collecting() {
    collecting_ = false;
    collected_ = true;
    answers_due_.reset();
    if (is_top() && overdue_) give_verdict(watch::explain_overdue(tree_.roster, *overdue_, statuses_below()));
  }

  // Of this rank and all below it; who has not answered is silent.
  std::vector<Status> statuses_below() {
    std::vector<Status> statuses;
    const auto add = [&](int rank) {
      const auto found = answers_.find(rank);
      statuses.push_back(found != answers_.end() ? found->second : Status{.rank = rank});
    };
    add(tree_.rank);
    for (const auto& child : tree_.down) {
      const int node = tree_.roster.node_of.at(static_cast<std::size_t>(child.rank));
      if (node == tree_.roster.node_of.at(static_cast<std::size_t>(tree_.rank))) {
        add(child.rank);
      } else {
        for (const int rank : tree_.roster.ranks_on(node)) add(rank);
      }
    }
    return statuses;
  }

  void learn_gone(int rank) {
    if (is_top()) give_verdict(watch::explain_gone(tree_.roster, rank, my_status()));
    answers_[rank] = {.rank = rank, .state = State::gone};
    gone_ = rank;
    if (tree_.up->open()) tree_.up->send(Kind::gone, pack_number(rank));
    verdict_due_ = std::min(verdict_due_.value_or(UINT64_MAX), after(kNoVerdict + seniority_));
    note_answers(rank);
  }

  void look_at_clock() {
    const std::uint64_t now = monotonic_ns();
    if (answers_due_ && *answers_due_ <= now) {
      unanswered_.clear();
      note_answers(-1);
    }
    if (!verdict_due_ || *verdict_due_ > now) return;
    // Nobody above has spoken.
    if (gone_parent_) give_verdict(watch::explain_gone(tree_.roster, tree_.parent, my_status()));
    if (line_) give_verdict(*line_);
    if (gone_) give_verdict(watch::explain_gone(tree_.roster, *gone_, my_status()));
    auto statuses = statuses_below();
    const auto parent = left_.find(tree_.parent);
    statuses.push_back(parent != left_.end() ? parent->second : Status{.rank = tree_.parent});
    give_verdict(watch::explain_overdue(tree_.roster, *overdue_, std::move(statuses)));
  }

  [[noreturn]] void give_verdict(const std::string& line) {
    if (claim_end()) {
      // Below the top others may say the same.
      const bool speaks = is_top() || watch::is_first_to_speak(tree_.node_key);
      if (speaks) print_line(line);
      tell_all(Kind::end, pack_number(1), nullptr);
      leave_job(1, speaks ? milliseconds(0) : kOtherAborts);
    }
    // Another thread of this process ends the job and has printed why.
    tell_all(Kind::end, pack_number(1), nullptr);
    wait_for_the_end();
  }

  [[noreturn]] static void leave_ended_job(int exit_code) {
    if (!claim_end()) wait_for_the_end();
    // Whoever printed the reason aborts the job; this is for the case that it cannot.
    leave_job(exit_code == 0 ? 1 : exit_code, kOtherAborts);
  }

  // Waits until it is sent, for a moment: the process is about to end.
  void tell_all(Kind kind, const std::string& body, const Link* except) {
    std::vector<Link*> links;
    if (tree_.up && tree_.up->open()) links.push_back(&*tree_.up);
    for (auto& child : tree_.down) {
      if (child.link.open()) links.push_back(&child.link);
    }
    std::erase(links, except);
    for (Link* link : links) link->send(kind, body);
    const std::uint64_t end = after(kTellEnd);
    for (;;) {
      std::vector<pollfd> waits;
      for (Link* link : links) {
        link->send_rest();
        if (link->has_unsent()) waits.push_back({link->fd(), POLLOUT, 0});
      }
      const std::uint64_t now = monotonic_ns();
      if (waits.empty() || now >= end) return;
      ::poll(waits.data(), waits.size(), static_cast<int>((end - now) / 1'000'000U) + 1);
    }
  }

  watch::Tree tree_;
  milliseconds seniority_{0};
  bool over_ = false;

  std::map<int, Status> left_;  // by the rank at the other end; those that said goodbye
  std::optional<Overdue> overdue_;
  std::optional<std::string> line_;  // reported to the parent
  std::optional<int> gone_;          // reported to the parent
  bool gone_parent_ = false;
  bool asked_from_above_ = false;
  bool collecting_ = false;
  bool collected_ = false;
  std::vector<int> unanswered_;  // children
  std::map<int, Status> answers_;
  std::optional<std::uint64_t> answers_due_;
  std::optional<std::uint64_t> verdict_due_;  // when this rank speaks for itself

  UniqueFd wake_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  std::optional<Overdue> overdue_asked_;
  std::optional<std::string> line_asked_;
  std::optional<int> end_asked_;
  bool end_told_ = false;
  bool stop_asked_ = false;

  std::thread thread_;  // the last member: it uses the others
};

Watch::Watch(watch::Tree tree) : thread_(std::make_unique<Thread>(std::move(tree))) {
  watched_process = ::getpid();
  the_watch = this;
}

Watch::~Watch() {
  the_watch = nullptr;
  thread_->stop();
}

std::unique_ptr<Watch> Watch::start(const Place& place, const watch::AllGather& all_gather) {
  const std::string choice = environment::get_or("LOCKSTEP_WATCH", "on");
  if (choice != "on" && choice != "off") fail_usage("LOCKSTEP_WATCH='{}' is neither on nor off", choice);
  if (choice == "off" || place.size == 1) return nullptr;
  auto tree = watch::grow_tree(place, all_gather);
  if (!tree) return nullptr;
  return std::unique_ptr<Watch>(new Watch(std::move(*tree)));
}

Watch* Watch::current() {
  Watch* const current = the_watch;
  return current != nullptr && watched_process == ::getpid() ? current : nullptr;
}

void Watch::report_overdue(const std::string& operation, std::chrono::seconds given) {
  thread_->report_overdue(operation, given);
}

void Watch::report_line(const std::string& line) {
  thread_->report_line(line);
}

void Watch::tell_end(int exit_code) {
  thread_->tell_end(exit_code);
}

}  // namespace lockstep::comm
