#ifndef EGERIA_TESTS_SUPPORT_EXPORT_ALL_H_
#define EGERIA_TESTS_SUPPORT_EXPORT_ALL_H_

#include <vector>

#include "controller/job/job_manager.h"

namespace egeria::testing {

// A whole export. Errors: those of JobManager::ExportJob().
inline absl::StatusOr<std::vector<v1::ExportRecord>> ExportAll(const controller::JobManager& manager,
                                                               const JobId& job) {
  std::vector<v1::ExportRecord> all;
  controller::ExportCursor cursor;
  for (;;) {
    auto next = manager.ExportJob(job, &cursor);
    if (!next.ok()) return next.status();
    if (next->empty()) return all;
    all.insert(all.end(), next->begin(), next->end());
  }
}

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_EXPORT_ALL_H_
