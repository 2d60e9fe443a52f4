#include "runtime/comm/control/control_channel.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/thread.h"
#include "runtime/comm/control/activity.h"
#include "runtime/comm/job_end.h"

namespace lockstep::comm {
namespace {

using control::Connection;
using control::Message;
using control::MessageKind;
using control::Status;

using std::chrono::milliseconds;

// These times and those of failure.cpp add up: all ranks must end within 5 s after an operation's timeout.
constexpr milliseconds kFailureTime{1000};  // for rank 0's verdict about a failure
constexpr milliseconds kVerdictTime{1900};  // for rank 0's verdict; then another rank gives its own
constexpr milliseconds kAnnounceTime{300};  // for sending a last message
constexpr milliseconds kAbortTime{1000};    // for the abort by the rank that printed; then others abort

constexpr milliseconds kUnreachableCheck{500};  // between two looks whether this rank waits in an operation
constexpr milliseconds kPollPause{100};         // if poll() does not work

std::atomic<ControlChannel*> current_channel{nullptr};
pid_t channel_process = 0;

std::uint64_t after(milliseconds time) {
  return monotonic_ns() + static_cast<std::uint64_t>(time.count()) * 1'000'000U;
}

}  // namespace

// Only the thread uses the members, except the requests, which mutex_ guards.
class ControlChannel::Thread {
 public:
  explicit Thread(control::Tree tree)
      : tree_(std::move(tree)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) fail_errno("eventfd");
    if (tree_.parent >= 0) verdict_delay_ = control::verdict_delay(tree_);
    thread_ = start_thread([this] { serve(); });
  }

  void report_overdue(const std::string& operation, std::chrono::seconds timeout) {
    request([&] {
      if (!overdue_request_) {
        overdue_request_ = control::Overdue{operation, static_cast<std::uint64_t>(timeout.count()), {}};
      }
    });
  }

  void report_failure(const std::string& line) {
    request([&] { failure_request_ = line; });
  }

  void tell_rank_0(const std::string& text) {
    request([&] { note_request_ = text; });
  }

  std::string last_text_of(int rank) {
    const std::scoped_lock lock(mutex_);
    const auto found = notes_.find(rank);
    return found == notes_.end() ? std::string() : found->second;
  }

  void announce_end(int exit_code) {
    request([&] { end_request_ = exit_code; });
    std::unique_lock lock(mutex_);
    announced_.wait_for(lock, kAnnounceTime, [this] { return end_announced_; });
  }

  void stop() {
    request([&] { stop_request_ = true; });
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
    // Fails only if the counter is full, and then the thread wakes anyway.
    static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  }

  void serve() {
    pthread_setname_np(pthread_self(), "lockstep-watch");
    while (!over_) {
      wait();
      handle_requests();
      if (over_) break;
      read_connections();
      handle_timers();
    }
  }

  // Waits for a request, a message or the next timer.
  void wait() {
    std::vector<pollfd> waits{{wake_.get(), POLLIN, 0}};
    const auto add = [&](const Connection& connection) {
      if (connection.open()) {
        waits.push_back(
            {connection.fd(), static_cast<short>(POLLIN | (connection.has_unsent() ? POLLOUT : 0)), 0});
      }
    };
    if (tree_.up) add(*tree_.up);
    for (const auto& child : tree_.down) add(child.connection);

    std::uint64_t due = UINT64_MAX;
    for (const auto& time : {answers_due_, verdict_due_, unreachable_due_})
      due = std::min(due, time.value_or(UINT64_MAX));
    int timeout = -1;
    if (due != UINT64_MAX) {
      const std::uint64_t now = monotonic_ns();
      timeout = due <= now ? 0 : static_cast<int>((due - now) / 1'000'000U) + 1;
    }
    if (::poll(waits.data(), waits.size(), timeout) < 0 && errno != EINTR) handle_failed_poll(errno);
  }

  // Out of memory, or the program has lowered its limit of open files. Looks regularly instead of waiting.
  void handle_failed_poll(int error) {
    if (!std::exchange(poll_failed_, true)) {
      print_line(
          fmt::format("the control channel of {} cannot wait for messages ({}); it looks every {} ms instead",
                      tree_.roster.name(tree_.rank), errno_text(error), kPollPause.count()));
    }
    std::this_thread::sleep_for(kPollPause);
  }

  void handle_requests() {
    std::uint64_t count = 0;
    static_cast<void>(!::read(wake_.get(), &count, sizeof count));
    std::optional<control::Overdue> overdue;
    std::optional<std::string> line;
    std::optional<std::string> note;
    std::optional<int> end;
    bool stop = false;
    {
      const std::scoped_lock lock(mutex_);
      note = std::exchange(note_request_, std::nullopt);
      overdue = std::exchange(overdue_request_, std::nullopt);
      line = std::exchange(failure_request_, std::nullopt);
      end = end_request_;
      stop = stop_request_;
    }
    if (note) handle_note(control::pack_number(tree_.rank) + *note);
    if (end) {
      send_to_all(MessageKind::end, control::pack_number(*end), nullptr);
      {
        const std::scoped_lock lock(mutex_);
        end_announced_ = true;
      }
      announced_.notify_all();
      over_ = true;  // the requesting thread ends the process
    } else if (stop) {
      send_to_all(MessageKind::goodbye, control::pack(std::vector{my_status()}), nullptr);
      over_ = true;
    } else if (line) {
      handle_failure(*line);
    } else if (overdue) {
      overdue->status = my_status();
      handle_overdue(*overdue);
    }
  }

  void read_connections() {
    if (tree_.up && tree_.up->open()) read_messages(*tree_.up, tree_.parent, true);
    for (auto& child : tree_.down) {
      if (child.connection.open()) read_messages(child.connection, child.rank, false);
    }
  }

  void read_messages(Connection& connection, int rank, bool is_parent) {
    if (connection.has_unsent()) connection.send_rest();
    std::vector<Message> messages;
    Connection::End end = connection.receive(messages);
    try {
      for (const Message& message : messages) handle(message, connection, rank, is_parent);
    } catch (const Error&) {
      end = Connection::End::broken;
    }
    if (end == Connection::End::none) return;
    connection.close();
    // A rank that said goodbye may go.
    if (!departed_.contains(rank)) {
      if (end == Connection::End::unreachable) {
        handle_unreachable_rank(rank, is_parent);
      } else if (end == Connection::End::closed && is_parent) {
        parent_lost_ = true;  // the ranks above can no longer give a verdict
        verdict_due_ = after(2 * verdict_delay_);
      } else if (end == Connection::End::closed) {
        handle_lost_rank(rank);
      }
    }
    note_answers(rank);
  }

  void handle(const Message& message, Connection& connection, int rank, bool is_parent) {
    switch (message.kind) {
      case MessageKind::overdue:
        return handle_overdue(control::unpack_overdue(message.body));
      case MessageKind::ask:
        parent_asked_ = true;
        return begin_collecting();
      case MessageKind::answer:
        for (Status& status : control::unpack_statuses(message.body))
          answers_[status.rank] = std::move(status);
        return note_answers(rank);
      case MessageKind::failure:
        return handle_failure(message.body);
      case MessageKind::rank_lost:
        return handle_lost_rank(control::unpack_number(message.body));
      case MessageKind::note:
        return handle_note(message.body);
      case MessageKind::end:
        send_to_all(MessageKind::end, message.body, &connection);
        leave_ended_job(control::unpack_number(message.body));
      case MessageKind::goodbye:
        for (Status& status : control::unpack_statuses(message.body)) {
          if (is_parent) status.rank = rank;
          status.state = control::RankState::left;
          answers_[status.rank] = status;
          departed_[rank] = std::move(status);
        }
        return;
    }
    fail("unknown message on the control channel");
  }

  bool is_root() const { return tree_.parent < 0; }

  Status my_status() const { return control::status_of_this_process(tree_.rank); }

  // An operation took too long on this rank or one below.
  void handle_overdue(const control::Overdue& overdue) {
    if (overdue_) return;
    overdue_ = overdue;
    if (!is_root()) {
      if (tree_.up->open()) tree_.up->send(MessageKind::overdue, control::pack(overdue));
      if (!verdict_due_) verdict_due_ = after(kVerdictTime + verdict_delay_);
    }
    begin_collecting();
  }

  void handle_failure(const std::string& line) {
    if (is_root()) give_verdict(line);
    if (failure_) return;
    failure_ = line;
    if (tree_.up->open()) tree_.up->send(MessageKind::failure, line);
    verdict_due_ = std::min(verdict_due_.value_or(UINT64_MAX), after(kFailureTime + verdict_delay_));
  }

  void handle_note(const std::string& body) {
    constexpr std::size_t kNumber = sizeof(std::int32_t);
    const std::int32_t rank = control::unpack_number(body.substr(0, kNumber));
    if (!is_root()) {
      if (tree_.up->open()) tree_.up->send(MessageKind::note, body);
      return;
    }
    const std::scoped_lock lock(mutex_);
    notes_[rank] = body.substr(kNumber);
  }

  void begin_collecting() {
    if (!collecting_ && !collected_) {
      collecting_ = true;
      answers_[tree_.rank] = my_status();
      answers_due_ = after(control::answer_time(tree_));
      for (auto& child : tree_.down) {
        if (child.connection.open()) {
          child.connection.send(MessageKind::ask);
          unanswered_.push_back(child.rank);
        }
      }
    }
    note_answers(-1);
  }

  // The child `rank` has answered, or never will.
  void note_answers(int rank) {
    std::erase(unanswered_, rank);
    if (collecting_ && unanswered_.empty()) end_collecting();
    if (collected_ && parent_asked_ && tree_.up && tree_.up->open()) {
      parent_asked_ = false;
      tree_.up->send(MessageKind::answer, control::pack(statuses_below()));
    }
  }

  void end_collecting() {
    collecting_ = false;
    collected_ = true;
    answers_due_.reset();
    if (is_root() && overdue_)
      give_verdict(control::explain_overdue(tree_.roster, *overdue_, statuses_below()));
  }

  // The statuses of this rank and of all ranks below it. A rank that has not answered is silent.
  std::vector<Status> statuses_below() {
    std::vector<Status> statuses;
    const auto add = [&](int rank) {
      const auto found = answers_.find(rank);
      statuses.push_back(found != answers_.end() ? found->second : Status{.rank = rank});
    };
    add(tree_.rank);
    for (const auto& child : tree_.down) {
      for (const int rank : control::ranks_behind(tree_, child.rank)) add(rank);
    }
    return statuses;
  }

  void handle_lost_rank(int rank) {
    if (is_root()) give_verdict(control::explain_lost_rank(tree_.roster, rank, my_status()));
    answers_[rank] = {.rank = rank, .state = control::RankState::ended};
    lost_rank_ = rank;
    if (tree_.up->open()) tree_.up->send(MessageKind::rank_lost, control::pack_number(rank));
    verdict_due_ = std::min(verdict_due_.value_or(UINT64_MAX), after(kVerdictTime + verdict_delay_));
    note_answers(rank);
  }

  void handle_unreachable_rank(int rank, bool is_parent) {
    if (unreachable_rank_) return;
    unreachable_rank_ = rank;
    asked_before_ = current_activity().asked;
    unreachable_due_ = after(is_parent ? 2 * verdict_delay_ : milliseconds(0));
  }

  void handle_timers() {
    const std::uint64_t now = monotonic_ns();
    if (answers_due_ && *answers_due_ <= now) {
      unanswered_.clear();
      note_answers(-1);
    }
    if (unreachable_due_ && *unreachable_due_ <= now) check_unreachable();
    if (verdict_due_ && *verdict_due_ <= now) give_verdict(own_verdict());
  }

  // The line of this rank when no verdict has come from above.
  std::string own_verdict() {
    if (parent_lost_) return control::explain_lost_rank(tree_.roster, tree_.parent, my_status());
    if (failure_) return *failure_;
    if (lost_rank_) return control::explain_lost_rank(tree_.roster, *lost_rank_, my_status());
    auto statuses = statuses_below();
    const auto parent = departed_.find(tree_.parent);
    statuses.push_back(parent != departed_.end() ? parent->second : Status{.rank = tree_.parent});
    return control::explain_overdue(tree_.roster, *overdue_, std::move(statuses));
  }

  // The network of the control channel may fail while MPI's works. So the job ends only if this rank also waits in
  // an operation, and none that began later has ended.
  void check_unreachable() {
    if (current_activity().ended > asked_before_) {
      print_line(fmt::format(
          "the control channel lost {}, but its operations go on; if it ends, other ranks time out",
          tree_.roster.name(*unreachable_rank_)));
      unreachable_rank_.reset();
      unreachable_due_.reset();
      return;
    }
    const Status mine = my_status();
    const auto time = std::chrono::nanoseconds(mine.duration_ns);
    if (control::is_in_operation(mine.state) && time >= control::kUnreachableTime)
      give_verdict(control::explain_unreachable_rank(tree_.roster, *unreachable_rank_, mine));
    unreachable_due_ = after(kUnreachableCheck);
  }

  [[noreturn]] void give_verdict(const std::string& line) {
    if (claim_job_end()) {
      // Other ranks below rank 0 may give the same verdict.
      const bool prints = is_root() || control::is_first_to_print(tree_.node_key);
      if (prints) print_line(line);
      send_to_all(MessageKind::end, control::pack_number(1), nullptr);
      leave_job(1, prints ? milliseconds(0) : kAbortTime, true);
    }
    // Another thread of this process ends the job and has printed why.
    send_to_all(MessageKind::end, control::pack_number(1), nullptr);
    wait_for_job_end();
  }

  [[noreturn]] static void leave_ended_job(int exit_code) {
    if (!claim_job_end()) wait_for_job_end();
    // The rank that printed the reason aborts the job; this is for the case that it cannot.
    leave_job(exit_code == 0 ? 1 : exit_code, kAbortTime, true);
  }

  // Waits until the message is sent, up to kAnnounceTime, because the process is about to end.
  void send_to_all(MessageKind kind, const std::string& body, const Connection* except) {
    std::vector<Connection*> connections;
    if (tree_.up && tree_.up->open()) connections.push_back(&*tree_.up);
    for (auto& child : tree_.down) {
      if (child.connection.open()) connections.push_back(&child.connection);
    }
    std::erase(connections, except);
    control::send_to_all(connections, kind, body, kAnnounceTime);
  }

  control::Tree tree_;
  milliseconds verdict_delay_{0};
  bool over_ = false;

  std::map<int, Status> departed_;  // the ranks at the other ends that said goodbye
  std::optional<control::Overdue> overdue_;
  std::optional<std::string> failure_;  // reported to the parent
  std::optional<int> lost_rank_;        // reported to the parent
  bool parent_lost_ = false;
  bool parent_asked_ = false;
  bool collecting_ = false;
  bool collected_ = false;
  std::vector<int> unanswered_;  // children
  std::map<int, Status> answers_;
  std::optional<std::uint64_t> answers_due_;
  std::optional<std::uint64_t> verdict_due_;  // when this rank gives its own verdict
  std::optional<int> unreachable_rank_;       // the first one
  std::uint64_t asked_before_ = 0;            // this rank's operations when it was lost
  std::optional<std::uint64_t> unreachable_due_;
  bool poll_failed_ = false;

  UniqueFd wake_;
  std::mutex mutex_;  // guards the members below, except thread_
  std::condition_variable announced_;
  std::optional<control::Overdue> overdue_request_;
  std::optional<std::string> failure_request_;
  std::optional<std::string> note_request_;
  std::map<int, std::string> notes_;  // of rank 0, by rank
  std::optional<int> end_request_;
  bool end_announced_ = false;
  bool stop_request_ = false;

  std::thread thread_;  // the last member: it uses the others
};

ControlChannel::ControlChannel(control::Tree tree) : thread_(std::make_unique<Thread>(std::move(tree))) {
  channel_process = ::getpid();
  current_channel = this;
}

ControlChannel::~ControlChannel() {
  current_channel = nullptr;
  thread_->stop();
}

std::unique_ptr<ControlChannel> ControlChannel::start(const RankInfo& place,
                                                      const control::AllGather& all_gather) {
  if (!environment::is_on("LOCKSTEP_WATCH", true) || place.size == 1) return nullptr;
  auto tree = control::build_tree(place, all_gather);
  if (!tree) return nullptr;
  return std::unique_ptr<ControlChannel>(new ControlChannel(std::move(*tree)));
}

ControlChannel* ControlChannel::current() {
  ControlChannel* const current = current_channel;
  return current != nullptr && channel_process == ::getpid() ? current : nullptr;
}

void ControlChannel::report_overdue(const std::string& operation, std::chrono::seconds timeout) {
  thread_->report_overdue(operation, timeout);
}

void ControlChannel::report_failure(const std::string& line) {
  thread_->report_failure(line);
}

void ControlChannel::tell_rank_0(const std::string& text) {
  thread_->tell_rank_0(text);
}

std::string ControlChannel::last_text_of(int rank) {
  return thread_->last_text_of(rank);
}

void ControlChannel::announce_end(int exit_code) {
  thread_->announce_end(exit_code);
}

}  // namespace lockstep::comm
