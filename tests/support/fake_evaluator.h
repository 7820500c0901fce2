#ifndef EGERIA_TESTS_SUPPORT_FAKE_EVALUATOR_H_
#define EGERIA_TESTS_SUPPORT_FAKE_EVALUATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/thread/mutex.h"
#include "controller/reference/evaluator.h"

namespace egeria::testing {

// An Evaluator without torch: readings come from a script, at once and on the caller's thread. It checks of
// its input what the real one does (known modules, references that are there, finite Gram matrices), and
// remembers what it was given. Thread-safe.
class FakeEvaluator : public reference::Evaluator {
 public:
  // The plasticity of the sample of `module` at `step`; may fail. DEADLINE_EXCEEDED refuses the module's graph.
  using Script = std::function<absl::StatusOr<double>(const JobId&, int module, int64_t step)>;

  FakeEvaluator(Callback on_result, Script script) : on_result_(std::move(on_result)), script_(std::move(script)) {}

  std::vector<absl::Status> SetJob(const JobId& job, const std::vector<std::optional<graph::ModuleGraph>>& modules,
                                   const reference::JobTraits& traits) override;
  void RemoveJob(const JobId& job) override;
  absl::Status SubmitSnapshot(const JobId& job, ModuleIndex module, int64_t version, int64_t step,
                              std::vector<WireTensor> weights) override;
  absl::Status SubmitSample(const JobId& job, reference::SubmittedSample sample) override;
  void ReportStep(const JobId& job, int64_t step) override;
  reference::EvaluatorCounters counters() const override;
  void Stop() override;

  // For assertions.
  std::optional<reference::JobTraits> traits(const JobId& job) const;
  int64_t step(const JobId& job) const;
  int set_job_calls() const;
  bool stopped() const;

 private:
  struct Job {
    std::vector<bool> usable;
    std::set<int> references;
    reference::JobTraits traits;
    int64_t step = 0;
  };

  const Callback on_result_;
  const Script script_;

  mutable Mutex mutex_;
  std::map<JobId, Job> jobs_ ABSL_GUARDED_BY(mutex_);
  reference::EvaluatorCounters counters_ ABSL_GUARDED_BY(mutex_);
  int set_job_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_FAKE_EVALUATOR_H_
