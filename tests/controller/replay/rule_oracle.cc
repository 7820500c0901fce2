#include "tests/controller/replay/rule_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace oracle {
namespace {

using Real = long double;

// The straight line through y[0], y[1], ...: its rise per step.
Real Rise(const std::vector<Real>& y) {
  Real x_mean = 0, y_mean = 0;
  for (size_t i = 0; i < y.size(); ++i) x_mean += i, y_mean += y[i];
  x_mean /= y.size();
  y_mean /= y.size();
  Real top = 0, bottom = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    top += (i - x_mean) * (y[i] - y_mean);
    bottom += (i - x_mean) * (i - x_mean);
  }
  return top / bottom;
}

// The last `most` of the first `end` elements.
std::vector<Real> Tail(const std::vector<Real>& all, size_t end, size_t most) {
  return {all.begin() + static_cast<long>(end - std::min(end, most)), all.begin() + static_cast<long>(end)};
}

// Do all readings of a module together call for its freeze at the last of them?
bool IsStationary(const std::vector<Real>& readings, const Rule& rule, int w) {
  std::vector<Real> smooth;
  for (size_t end = 1; end <= readings.size(); ++end) {
    Real sum = 0;
    const std::vector<Real> tail = Tail(readings, end, static_cast<size_t>(w));
    for (const Real reading : tail) sum += reading;
    smooth.push_back(sum / tail.size());
  }
  std::vector<Real> slopes;
  for (size_t end = 2; end <= smooth.size(); ++end) {
    slopes.push_back(Rise(Tail(smooth, end, static_cast<size_t>(w))));
  }
  if (slopes.size() < static_cast<size_t>(3 + w)) return false;
  Real largest = 0;
  for (int i = 0; i < 3; ++i) largest = std::max(largest, std::fabs(slopes[static_cast<size_t>(i)]));
  const Real threshold = static_cast<Real>(rule.tolerance) * largest;
  for (size_t i = slopes.size() - static_cast<size_t>(w); i < slopes.size(); ++i) {
    const Real s = rule.is_signed ? slopes[i] : std::fabs(slopes[i]);
    if (s != 0 && !(s < threshold)) return false;
  }
  return true;
}

// Has the loss settled at line `now`?
bool IsSettled(const std::vector<Line>& lines, size_t now, int n) {
  if (!lines[now].loss) return false;
  const long long s = lines[now].step;
  long long first = s;
  Real late = 0, early = 0;
  int late_count = 0, early_count = 0;
  for (size_t i = 0; i <= now; ++i) {
    if (!lines[i].loss) continue;
    first = std::min(first, lines[i].step);
    const long long age = s - lines[i].step;
    if (age < 3LL * n) {
      late += *lines[i].loss, ++late_count;
    } else if (age < 6LL * n) {
      early += *lines[i].loss, ++early_count;
    }
  }
  if (s - first + 1 < 6LL * n || early_count == 0) return false;
  late /= late_count;
  early /= early_count;
  return late == early || std::fabs(late - early) < std::fabs(early) / 10;
}

// Rates from the one in force at line `frozen_at` (or the first positive one after it) to line `now`.
std::vector<double> RatesSinceFreeze(const std::vector<Line>& lines, size_t frozen_at, size_t now) {
  std::vector<double> rates;
  for (size_t i = 0; i <= frozen_at; ++i) {
    if (lines[i].lr) rates = {*lines[i].lr};
  }
  if (!rates.empty() && rates[0] == 0) rates.clear();
  for (size_t i = frozen_at + 1; i <= now; ++i) {
    if (lines[i].lr && (!rates.empty() || *lines[i].lr > 0)) rates.push_back(*lines[i].lr);
  }
  return rates;
}

}  // namespace

std::vector<Verdict> Decide(const Rule& rule, const std::vector<Line>& lines) {
  std::vector<Verdict> verdicts;
  int w = rule.w;
  int prefix = 0;
  bool settled = !rule.bootstrap;
  size_t first_freeze = 0;     // line of the first freeze since all were active
  std::vector<Real> readings;  // the frontmost module's
  long long previous_step = -1;
  for (size_t now = 0; now < lines.size(); ++now) {
    const Line& line = lines[now];
    bool unfreeze = false;
    if (prefix > 0 && line.lr) {
      const std::vector<double> rates = RatesSinceFreeze(lines, first_freeze, now);
      if (rates.size() > 1) {
        double least = rates[0];
        for (size_t i = 0; i + 1 < rates.size(); ++i) {
          if (rates[i] > 0) least = std::min(least, rates[i]);
        }
        if (rule.drop > 0 && *line.lr <= rates[0] / rule.drop * (1 + 1e-9)) {
          unfreeze = true;
          w = std::max(3, w / 2);
        } else if (rule.rise > 0 && *line.lr >= least * rule.rise * (1 - 1e-9)) {
          unfreeze = true;
        }
      }
    }
    for (const long long at : rule.unfreeze_steps) {
      if (prefix > 0 && at > previous_step && at <= line.step) unfreeze = true;
    }
    if (unfreeze) {
      prefix = 0;
      readings.clear();
      verdicts.push_back({line.step, false, 0});
    }
    settled =
        settled || (rule.losses_reported ? IsSettled(lines, now, rule.n) : line.step - rule.first_step >= 6LL * rule.n);
    previous_step = line.step;
    std::optional<double> reading;
    if (!line.all.empty()) {
      reading = line.all[static_cast<size_t>(prefix)];
    } else if (!line.module || *line.module == prefix) {
      reading = line.plasticity;
    }
    if (!settled || !reading) continue;
    readings.push_back(*reading);
    if (prefix + 1 < rule.modules && IsStationary(readings, rule, w)) {
      if (prefix == 0) first_freeze = now;
      verdicts.push_back({line.step, true, ++prefix});
      readings.clear();
    }
  }
  return verdicts;
}

std::string Json(const Line& line) {
  const auto number = [](double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", value);
    return std::string(text);
  };
  std::string json = "{\"step\":" + std::to_string(line.step);
  if (line.module) json += ",\"module\":" + std::to_string(*line.module);
  if (!line.all.empty()) {
    json += ",\"plasticity\":[";
    for (size_t i = 0; i < line.all.size(); ++i) {
      json += (i > 0 ? "," : "") + (line.all[i] ? number(*line.all[i]) : std::string("null"));
    }
    json += "]";
  } else if (line.plasticity) {
    json += ",\"plasticity\":" + number(*line.plasticity);
  }
  if (line.loss) json += ",\"loss\":" + number(*line.loss);
  if (line.lr) json += ",\"lr\":" + number(*line.lr);
  return json + "}";
}

std::string Text(const std::vector<Verdict>& verdicts) {
  std::string text;
  for (const Verdict& verdict : verdicts) {
    text += std::to_string(verdict.step) + (verdict.freeze ? " freeze " : " unfreeze ") +
            std::to_string(verdict.prefix) + "\n";
  }
  return text;
}

}  // namespace oracle
