#ifndef EGERIA_WORKER_SESSION_REQUEST_AGREEMENT_H_
#define EGERIA_WORKER_SESSION_REQUEST_AGREEMENT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/agent/agent.h"

namespace egeria::worker {

// Lets every rank of a job act on the same sampling, snapshot and gradient request at the same steps, though the
// controller puts them to one rank only: a probe of a model whose weights are spread over the ranks is a
// collective, and so is a reading of gradients.
//
// Its numbers ride with Committer::Tick(). For each request a rank advertises its version; the newest
// among the ranks is heard everywhere. The next time those who hold that version advertise its content. When
// the content has been heard, and the version is still the newest, the request is agreed. All of that follows
// from reduced numbers alone, so that it happens at the same boundary on all ranks, two after the controller's
// wish was first advertised. A version stands for one content; see StandingRequests.
//
// A rank that holds an older version than another (its line to the controller is cut) does not stand in the way.
//
// It is pure, and owned by the training thread.
class RequestAgreement {
 public:
  // Returns what this rank is asked now, as numbers for the next tick.
  std::vector<int64_t> Advertise(const std::optional<SamplingRequest>& sampling,
                                 const std::optional<SnapshotRequest>& snapshot,
                                 const std::optional<GradientRequest>& gradients) const;
  // Takes the minima of what all ranks advertised last. The next Advertise() comes after it.
  void Hear(const std::vector<int64_t>& minima);

  // Returns whether every rank has all that was last advertised.
  bool settled() const { return sampling_.settled() && snapshot_.settled() && gradients_.settled(); }
  // These requests are in force on all ranks.
  std::optional<SamplingRequest> sampling() const;
  std::optional<SnapshotRequest> snapshot() const;
  std::optional<GradientRequest> gradients() const;

 private:
  static constexpr int64_t kNoVersion = -1;

  // An Item is one kind of request, with `size` numbers of content.
  template <size_t size>
  struct Topic {
    using Content = std::array<int64_t, size>;
    void Advertise(int64_t version, const Content& content, std::vector<int64_t>* out) const;
    void Hear(const int64_t** in);
    bool settled() const { return newest == agreed.value_or(kNoVersion); }

    int64_t newest = kNoVersion;  // the newest version that any rank advertised last
    std::optional<int64_t> agreed;
    Content content{};
  };

  Topic<5> sampling_;
  Topic<2> snapshot_;
  Topic<2> gradients_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_REQUEST_AGREEMENT_H_
