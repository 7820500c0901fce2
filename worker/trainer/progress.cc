#include "worker/trainer/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace egeria::trainer {
namespace {

constexpr absl::Duration kBarInterval = absl::Milliseconds(100);
constexpr absl::Duration kLineInterval = absl::Seconds(5);
constexpr int kBarWidth = 24;

std::string Clock(absl::Duration duration) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(duration));
  if (seconds >= 3600) {
    return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
  }
  return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
}

}  // namespace

std::string Describe(const Moment& m) {
  const double share = m.total_steps > 0 ? 100.0 * static_cast<double>(m.step) / static_cast<double>(m.total_steps) : 0;
  // Rounded here, and never "-0.0".
  const std::string saved =
      m.saved_seconds ? absl::StrFormat("  saved %.1f s", std::nearbyint(10 * *m.saved_seconds) / 10 + 0.0) : "";
  return absl::StrFormat("%3.0f%%  epoch %d/%d  step %d/%d  loss %.4f  lr %.4g  frozen %d/%d%s  left %s", share,
                         m.epoch, m.epochs, m.step, m.total_steps, m.loss, m.learning_rate, m.frozen_prefix, m.modules,
                         saved, Clock(m.left));
}

Progress::Progress(std::FILE* out, bool terminal, absl::Time now, int64_t first_step)
    : out_(out),
      terminal_(terminal),
      start_(now),
      first_step_(first_step),
      next_(now + (terminal ? kBarInterval : kLineInterval)) {}

void Progress::Show(Moment moment, absl::Time now) {
  const int64_t done = moment.step - first_step_;
  if (done > 0) moment.left = (now - start_) * (static_cast<double>(moment.total_steps - moment.step) / done);
  if (terminal_) {
    const int filled = moment.total_steps > 0 ? static_cast<int>(kBarWidth * moment.step / moment.total_steps) : 0;
    const std::string bar = std::string(filled, '#') + std::string(kBarWidth - filled, '.');
    std::fprintf(out_, "\r\033[K[%s] %s", bar.c_str(), Describe(moment).c_str());
    std::fflush(out_);
    bar_shown_ = true;
    next_ = now + kBarInterval;
  } else {
    std::fprintf(out_, "%s\n", Describe(moment).c_str());
    next_ = now + kLineInterval;
  }
}

void Progress::Say(const std::string& line) {
  std::fprintf(out_, "%s%s\n", bar_shown_ ? "\r\033[K" : "", line.c_str());
  bar_shown_ = false;
}

void Progress::Finish() {
  if (bar_shown_) std::fputc('\n', out_);
  bar_shown_ = false;
}

}  // namespace egeria::trainer
