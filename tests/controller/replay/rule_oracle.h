#ifndef EGERIA_TESTS_CONTROLLER_REPLAY_RULE_ORACLE_H_
#define EGERIA_TESTS_CONTROLLER_REPLAY_RULE_ORACLE_H_

#include <optional>
#include <string>
#include <vector>

// A second implementation of the rule of docs/internals/plasticity.md, to compare the real one with. It shares nothing
// with it, holds no running state that it can recompute, and is as slow as that makes it: at every line it goes back to
// the raw lines.
namespace oracle {

struct Line {
  long long step = 0;
  std::optional<int> module;
  std::optional<double> plasticity;
  std::vector<std::optional<double>> all;  // one per module, instead of plasticity
  std::optional<double> loss;
  std::optional<double> lr;
};

struct Rule {
  int modules = 2;
  int n = 10;
  int w = 10;
  double tolerance = 0.2;
  bool is_signed = false;
  bool bootstrap = true;
  bool losses_reported = true;
  long long first_step = 0;  // the job's
  double drop = 10;
  double rise = 0;
  std::vector<long long> unfreeze_steps;
};

struct Verdict {
  long long step = 0;
  bool freeze = false;
  int prefix = 0;
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

std::vector<Verdict> Decide(const Rule& rule, const std::vector<Line>& lines);

// The line as JSON.
std::string Json(const Line& line);
std::string Text(const std::vector<Verdict>& verdicts);

}  // namespace oracle

#endif  // EGERIA_TESTS_CONTROLLER_REPLAY_RULE_ORACLE_H_
