// lockstep-top: shows the ranks of a job live in a terminal, from their records on this node.

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigset_t
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "common/tool.h"
#include "exporters/report/run.h"
#include "exporters/top/live.h"

namespace lockstep::top {
namespace {

constexpr std::chrono::seconds kRefresh{1};
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";  // the other screen, no cursor
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kRestOfLine = "\x1b[K";
constexpr std::string_view kRestOfScreen = "\x1b[J";

UniqueFd take_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) fail_errno("cannot wait for signals");
  return fd;
}

// Shows changing lines on the whole terminal, as top does. Restores the user's screen, cursor and settings in the
// destructor, at a stop (Ctrl-Z), and at every signal that can be caught.
//
// Threads: main's thread, while it is the only one: the signals are blocked in this thread and read from a file
// descriptor.
class Screen {
 public:
  /// Takes over the terminal of standard output; reads keys from standard input if that is a terminal too. Throws
  /// Error if the kernel refuses.
  Screen() : signals_(take_signals()) {
    termios settings = {};
    if (::tcgetattr(STDIN_FILENO, &settings) == 0) settings_ = settings;
    keyboard_ = settings_.has_value();
    enter();
  }
  ~Screen() { leave(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  static Space size(bool colours) {
    winsize size = {};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
      size = {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    return {.columns = size.ws_col, .rows = size.ws_row, .colours = colours};
  }

  /// Replaces the whole content. The lines must fit: a longer one would wrap. Throws Error if the terminal is gone.
  static void show(const std::vector<std::string>& lines) {
    std::string text(kHome);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (i > 0) text += "\r\n";
      text.append(lines[i]).append(kRestOfLine);
    }
    write_all(STDOUT_FILENO, text.append(kRestOfScreen), "the terminal");
  }

  /// Waits for `time`, or until the size changes. Returns false if the user has pressed q or Ctrl-C, or a signal asks
  /// the program to end.
  bool wait(std::chrono::milliseconds time) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point end = Clock::now() + time;
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      if (left.count() <= 0) return true;
      std::array<pollfd, 2> ready = {
          pollfd{.fd = signals_.get(), .events = POLLIN, .revents = 0},
          pollfd{.fd = keyboard_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}};
      if (::poll(ready.data(), ready.size(), static_cast<int>(left.count())) < 0 && errno != EINTR) {
        fail_errno("cannot wait for keys");
      }
      Event event = ready[0].revents != 0 ? read_signal() : Event::none;
      if (event == Event::none && ready[1].revents != 0) event = read_key();
      if (event != Event::none) return event == Event::redraw;
    }
  }

 private:
  enum class Event { none, redraw, end };

  void enter() const {
    if (settings_) {
      termios keys = *settings_;
      keys.c_lflag &=
          ~static_cast<tcflag_t>(ICANON | ECHO);  // keys at once and unseen; Ctrl-C stays a signal
      ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    write_all(STDOUT_FILENO, kEnter, "the terminal");
  }

  void leave() const noexcept {
    (void)!::write(STDOUT_FILENO, kLeave.data(), kLeave.size());
    if (settings_) ::tcsetattr(STDIN_FILENO, TCSANOW, &*settings_);
  }

  Event read_signal() const {
    signalfd_siginfo signal = {};
    if (::read(signals_.get(), &signal, sizeof(signal)) != sizeof(signal)) return Event::none;
    if (signal.ssi_signo == SIGWINCH) return Event::redraw;
    if (signal.ssi_signo != SIGTSTP) return Event::end;
    leave();
    ::raise(SIGSTOP);
    enter();
    return Event::redraw;
  }

  Event read_key() {
    char key = 0;
    if (::read(STDIN_FILENO, &key, 1) != 1) {
      keyboard_ = false;  // its end; if the terminal is gone, SIGHUP says so
      return Event::none;
    }
    return key == 'q' || key == 'Q' ? Event::end : Event::none;
  }

  UniqueFd signals_;
  std::optional<termios> settings_;  // before; none if there is no keyboard
  bool keyboard_ = false;
};

// Looks again each time: steps of the job begin and end.
Live look(const std::filesystem::path& records) {
  return measure(report::load(report::find_records(records, report::Prefer::live), record::kRecentSteps),
                 monotonic_ns());
}

void print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) fmt::print("{}\n", line);
}

// The plugin removes the records of a job that has ended. Then the last table stays on the user's screen.
void watch(const std::filesystem::path& records) {
  const bool colours = !environment::get("NO_COLOR");
  Live live = look(records);
  std::string ended;
  {
    Screen screen;
    do {
      Screen::show(to_lines(live, Screen::size(colours)));
      if (!screen.wait(kRefresh)) return;
      try {
        live = look(records);
      } catch (const Error& error) {
        ended = error.what();
      }
    } while (ended.empty());
  }
  print(to_lines(live, {}));
  fmt::print("the records are gone: {}\n", ended);
}

}  // namespace
}  // namespace lockstep::top

int main(int argc, char** argv) {
  lockstep::Tool tool(
      "lockstep-top",
      "Show the ranks of a job on this node live: step time, phases, tokens per second, waiting. Ends with q or Ctrl-C.");
  std::filesystem::path records;
  bool once = false;
  tool.app()
      .add_option(
          "records", records,
          "A job's number (JOB or JOB.STEP), or a folder of one job step's records ($LOCKSTEP_RECORD)")
      ->required();
  tool.app().add_flag("--once", once,
                      "Print one table and exit; also without it if the output is not a terminal");
  return tool.run(argc, argv, [&] {
    if (tool.json()) {
      lockstep::Tool::print(to_json(lockstep::top::look(records)));
    } else if (once || ::isatty(STDOUT_FILENO) == 0) {
      lockstep::top::print(to_lines(lockstep::top::look(records), {}));
    } else {
      lockstep::top::watch(records);
    }
  });
}
