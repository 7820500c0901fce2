#include "controller/job/rank_table.h"

#include <algorithm>

namespace egeria::controller {
namespace {

void AddLosses(const v1::Counters& from, v1::Counters* to) {
  to->set_samples_dropped(to->samples_dropped() + from.samples_dropped());
  to->set_reconnects(to->reconnects() + from.reconnects());
}

}  // namespace

Rank* RankTable::Find(int number) {
  auto found = ranks_.find(number);
  return found == ranks_.end() ? nullptr : &found->second;
}

Rank& RankTable::Join(int number, uint64_t incarnation) {
  Rank& rank = ranks_[number];
  if (rank.incarnation != incarnation) {
    AddLosses(rank.counters, &before_);
    rank.counters.Clear();
  }
  rank.incarnation = incarnation;
  return rank;
}

void RankTable::DismissAll(const absl::Status& status, Effects& effects) {
  before_ = Totals();
  for (const auto& [number, rank] : ranks_) {
    if (!rank.connected()) continue;
    effects.Tell(rank.listener, [status](SessionListener& listener) { listener.OnClose(status); });
  }
  ranks_.clear();
}

int RankTable::Sampler() const {
  for (const auto& [number, rank] : ranks_) {
    if (rank.connected()) return number;
  }
  return -1;
}

void RankTable::PushDirectives(Effects& effects) const {
  for (const auto& [number, rank] : ranks_) {
    if (!rank.connected()) continue;
    effects.Tell(rank.listener, [](SessionListener& listener) { listener.OnDirectiveChanged(); });
  }
}

v1::Counters RankTable::Totals() const {
  v1::Counters totals = before_;
  int64_t commits = 0;
  for (const auto& [number, rank] : ranks_) {
    AddLosses(rank.counters, &totals);
    commits = std::max(commits, rank.counters.commits());
  }
  totals.set_commits(before_.commits() + commits);
  return totals;
}

}  // namespace egeria::controller
