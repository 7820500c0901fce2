#ifndef EGERIA_CONTROLLER_JOB_RANK_TABLE_H_
#define EGERIA_CONTROLLER_JOB_RANK_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "controller/job/effects.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// One rank of the current generation: its newest heartbeat, and its stream while it has one.
struct Rank {
  SessionId session;  // 0: not connected
  uint64_t incarnation = 0;
  std::weak_ptr<SessionListener> listener;
  bool heard = false;  // whether a heartbeat has filled in the fields below
  int64_t step = 0;
  int frozen_prefix = 0;
  PlanId watermark;
  v1::Counters counters;

  bool connected() const { return session.value() != 0; }
};

// The ranks of a job's current generation, and the counters of all processes that the job ever had. Thread-compatible.
class RankTable {
 public:
  const std::map<int, Rank>& ranks() const { return ranks_; }
  // Returns null for a rank that never connected.
  Rank* Find(int number);
  // Returns the rank of a process that begins a stream. Where another process had this rank, its counters become
  // history.
  Rank& Join(int number, uint64_t incarnation);
  // Ends the sessions of all ranks and forgets the ranks, but not their counters.
  void DismissAll(const absl::Status& status, Effects& effects);

  // The lowest connected rank, which samples for all; -1 for none. Readings of one rank make a steadier series than
  // those of several, whose batches differ.
  int Sampler() const;
  // Tells every connected rank that its directive may have changed.
  void PushDirectives(Effects& effects) const;
  // Dropped samples, reconnects and commits of all processes. All ranks commit the same plans, so that a generation's
  // commits are those of its furthest rank.
  v1::Counters Totals() const;

 private:
  std::map<int, Rank> ranks_;
  v1::Counters before_;  // counters of processes that have gone
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_RANK_TABLE_H_
