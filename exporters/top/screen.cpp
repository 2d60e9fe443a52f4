#include "exporters/top/screen.h"

#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigset_t
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "common/error.h"
#include "common/files.h"

namespace lockstep::top {
namespace {

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

}  // namespace

Screen::Screen() : signals_(take_signals()) {
  termios settings = {};
  if (::tcgetattr(STDIN_FILENO, &settings) == 0) settings_ = settings;
  keyboard_ = settings_.has_value();
  enter();
}

Screen::Size Screen::size() const {
  winsize size = {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {.columns = size.ws_col, .rows = size.ws_row};
}

void Screen::enter() const {
  if (settings_) {
    termios keys = *settings_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // keys at once and unseen; Ctrl-C stays a signal
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  write_all(STDOUT_FILENO, kEnter, "the terminal");
}

void Screen::leave() const noexcept {
  (void)!::write(STDOUT_FILENO, kLeave.data(), kLeave.size());
  if (settings_) ::tcsetattr(STDIN_FILENO, TCSANOW, &*settings_);
}

void Screen::show(const std::vector<std::string>& lines) const {
  std::string text(kHome);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += "\r\n";
    text.append(lines[i]).append(kRestOfLine);
  }
  write_all(STDOUT_FILENO, text.append(kRestOfScreen), "the terminal");
}

bool Screen::wait(std::chrono::milliseconds time) {
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

Screen::Event Screen::read_signal() const {
  signalfd_siginfo signal = {};
  if (::read(signals_.get(), &signal, sizeof(signal)) != sizeof(signal)) return Event::none;
  if (signal.ssi_signo == SIGWINCH) return Event::redraw;
  if (signal.ssi_signo != SIGTSTP) return Event::end;
  leave();
  ::raise(SIGSTOP);
  enter();
  return Event::redraw;
}

Screen::Event Screen::read_key() {
  char key = 0;
  if (::read(STDIN_FILENO, &key, 1) != 1) {
    keyboard_ = false;  // its end; if the terminal is gone, SIGHUP says so
    return Event::none;
  }
  return key == 'q' || key == 'Q' ? Event::end : Event::none;
}

}  // namespace lockstep::top
