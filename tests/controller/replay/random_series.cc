#include "tests/controller/replay/random_series.h"

#include <cmath>
#include <functional>
#include <numbers>
#include <random>

namespace oracle {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  double Real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  double Normal() { return normal_(random_); }
  bool Chance(double p) { return Real(0, 1) < p; }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

// Plasticity of one module by line; some are constant, but only if `constants`.
std::vector<double> Series(Dice& dice, int length, bool constants) {
  const int kind = dice.Int(0, 6);
  const double scale = std::pow(10, dice.Real(-8, 0));
  const double pace = dice.Real(2, length / 2.0);
  const double noise = dice.Chance(0.3) ? 0 : dice.Real(0, 0.3);
  const int plateau = dice.Int(0, length);
  std::vector<double> series;
  double walk = 0;
  for (int i = 0; i < length; ++i) {
    walk += dice.Normal();
    double value = 0;
    switch (kind) {
      case 0: value = std::exp(-i / pace) * (1 + noise * dice.Normal()); break;
      case 1: value = std::exp(-i / pace) + 0.1 + 0.1 * noise * dice.Normal(); break;
      case 2: value = std::exp(-std::min(i, plateau) / pace); break;  // exactly constant at the end
      case 3: value = walk; break;
      case 4: value = i < plateau ? 1 : 0.1 * (1 + (noise + 0.01) * dice.Normal()); break;
      case 5: value = 1.0 / 3; break;  // exactly constant
      default: value = 1 + std::sin(i / pace) + noise * dice.Normal(); break;
    }
    if (!constants) value += 1e-3 * dice.Normal();
    series.push_back(kind == 5 && plateau % 2 == 0 && constants ? 0.0 : scale * value);
  }
  return series;
}

std::vector<double> LearningRates(Dice& dice, int length) {
  const int kind = dice.Int(0, 5);
  const double base = std::pow(10, dice.Real(-4, 0));
  const int first = dice.Int(length / 3, length);
  const int second = dice.Int(first, length + 10);
  const int period = dice.Int(10, 60);
  std::vector<double> rates;
  for (int i = 0; i < length; ++i) {
    const double turn = 0.5 * (1 + std::cos(std::numbers::pi * (i % period) / period));
    switch (kind) {
      case 0: rates.push_back(base); break;
      case 1: rates.push_back(base * (i < first ? 1 : 0.1) * (i < second ? 1 : 0.1)); break;
      case 2: rates.push_back(i < first ? 0.1 : i < second ? 0.1 * 0.1 : 0.001); break;
      case 3: rates.push_back(base * 0.5 * (1 + std::cos(std::numbers::pi * i / (length - 1)))); break;
      case 4: rates.push_back(base * turn); break;
      default: rates.push_back(i < 5 ? 0 : base * (i < first ? 1 : 0.05)); break;  // a zero at the start
    }
  }
  return rates;
}

Rule RandomRule(Dice& dice, long long last_step) {
  Rule rule;
  rule.modules = dice.Int(2, 6);
  rule.n = dice.Int(1, 12);
  rule.w = dice.Chance(0.3) ? 10 : dice.Int(3, 14);
  rule.tolerance = dice.Chance(0.4) ? 0.2 : dice.Real(0.05, 0.95);
  rule.is_signed = dice.Chance(0.25);
  rule.bootstrap = dice.Chance(0.5);
  rule.drop = dice.Chance(0.7) ? 10 : dice.Chance(0.5) ? 0 : dice.Real(1.5, 20);
  rule.rise = dice.Chance(0.7) ? 0 : dice.Real(1.5, 8);
  if (dice.Chance(0.2)) {
    const int count = dice.Int(1, 4);
    for (int i = 0; i < count; ++i) {
      rule.unfreeze_steps.push_back(static_cast<long long>(dice.Real(0, 1) * static_cast<double>(last_step)));
    }
  }
  return rule;
}

}  // namespace

Case RandomCase(uint64_t seed) {
  Dice dice(seed);
  const int length = dice.Int(20, 260);
  const int stride = dice.Int(1, 12);
  const long long start = dice.Chance(0.1) ? dice.Int(0, 1'000'000'000) : 0;
  Case result;
  result.rule = RandomRule(dice, static_cast<long long>(length) * stride);
  for (long long& step : result.rule.unfreeze_steps) step += start;
  const int modules = result.rule.modules;

  // A reading that names no module may count for another one's series. With a constant series that would make
  // two exact levels, whose slope may equal the threshold: then rounding decides. So not both in one case.
  const double unnamed = dice.Chance(0.5) ? 0.3 : 0;
  std::vector<std::vector<double>> series;
  for (int module = 0; module < modules; ++module) series.push_back(Series(dice, length, unnamed == 0));
  const std::vector<double> rates = LearningRates(dice, length);
  const double with_loss = dice.Chance(0.8) ? 1 : dice.Real(0.2, 1);
  const double with_rate = dice.Chance(0.8) ? 1 : dice.Real(0, 1);
  const double with_reading = dice.Chance(0.6) ? 1 : dice.Real(0.3, 1);
  const double arrays = dice.Chance(0.5) ? 1 : dice.Real(0, 1);
  const double loss_pace = dice.Real(1, length);
  const double loss_noise = dice.Real(0, 0.5);

  long long step = start;
  for (int i = 0; i < length; ++i) {
    Line line;
    line.step = step;
    if (dice.Chance(with_loss)) line.loss = 0.3 + std::exp(-i / loss_pace) + loss_noise * dice.Normal();
    if (dice.Chance(with_rate)) line.lr = rates[static_cast<size_t>(i)];
    if (dice.Chance(with_reading)) {
      if (dice.Chance(arrays)) {
        for (int module = 0; module < modules; ++module) {
          const auto& values = series[static_cast<size_t>(module)];
          line.all.push_back(dice.Chance(0.02) ? std::nullopt : std::optional(values[static_cast<size_t>(i)]));
        }
      } else {
        const int module = dice.Int(0, modules - 1);
        line.plasticity = series[static_cast<size_t>(module)][static_cast<size_t>(i)];
        if (!dice.Chance(unnamed)) line.module = module;
      }
    }
    result.lines.push_back(line);
    step += dice.Chance(0.9) ? stride : dice.Int(0, 3 * stride);
  }
  result.rule.losses_reported = dice.Chance(0.75);
  result.rule.first_step = start;
  const bool silent = !result.rule.losses_reported && dice.Chance(0.5);
  for (Line& line : result.lines) {
    if (silent) line.loss.reset();
  }
  return result;
}

}  // namespace oracle
