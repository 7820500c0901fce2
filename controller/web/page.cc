#include "controller/web/page.h"

#include <functional>
#include <list>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "common/base/monotonic.h"
#include "controller/web/job_history.h"
#include "controller/web/job_json.h"
#include "controller/web/page_files.h"

namespace egeria::controller {
namespace {

using Answer = metrics::HttpServer::Answer;

constexpr char kJson[] = "application/json; charset=utf-8";
constexpr size_t kAnswers = 64;    // that are kept
constexpr size_t kHistories = 32;  // likewise, some 300 KiB each
constexpr absl::Duration kFresh = absl::Seconds(1);
constexpr absl::Duration kReading = absl::Milliseconds(100);  // a long history is read in several turns

// The values that were used last, by name. Thread-compatible.
template <typename Value>
class Recent {
 public:
  explicit Recent(size_t most) : most_(most) {}
  Value& Get(const std::string& name, const std::function<Value()>& make) {
    for (auto it = values_.begin(); it != values_.end(); ++it) {
      if (it->first != name) continue;
      values_.splice(values_.begin(), values_, it);
      return values_.front().second;
    }
    if (values_.size() == most_) values_.pop_back();
    values_.emplace_front(name, make());
    return values_.front().second;
  }

 private:
  const size_t most_;
  std::list<std::pair<std::string, Value>> values_;
};

// Answers what the page asks for. One thread calls it.
class Api {
 public:
  Api(const JobManager* manager, const metrics::Health* health, std::string version)
      : manager_(manager), health_(health), version_(std::move(version)) {}

  Answer Get(const std::string& path) {
    Made& made = answers_.Get(path, [] { return Made(); });
    if (const absl::Time now = MonotonicNow(); now - made.at >= kFresh) made = {Make(path), now};
    return made.answer;
  }

 private:
  struct Made {
    Answer answer;
    absl::Time at = absl::InfinitePast();
  };

  Answer Make(const std::string& path) {
    if (path == "jobs") {
      const std::string trouble(absl::StripAsciiWhitespace(health_->Healthy().message()));
      return {.type = kJson, .body = JobsJson(manager_->View(), version_, trouble)};
    }
    absl::string_view id = path;
    if (!absl::ConsumePrefix(&id, "jobs/")) return {.status = 404, .body = "There is no such page.\n"};
    const bool history = absl::ConsumeSuffix(&id, "/history");
    const JobId job{std::string(id)};
    if (const auto detail = manager_->ShowJob(job); detail.ok()) {
      return history ? History(job, *detail) : Answer{.type = kJson, .body = JobJson(*detail)};
    }
    return {.status = 404, .body = "The controller holds no such job.\n"};
  }

  Answer History(const JobId& job, const JobDetail& detail) {
    JobHistory& history = *histories_.Get(job.text(), [&job] { return std::make_unique<JobHistory>(job); });
    // Where the job has gone meanwhile, what was read of it is shown once more.
    history.Update(*manager_, kReading).IgnoreError();
    return {.type = kJson, .body = HistoryJson(detail, history)};
  }

  const JobManager* const manager_;
  const metrics::Health* const health_;
  const std::string version_;
  Recent<Made> answers_{kAnswers};
  Recent<std::unique_ptr<JobHistory>> histories_{kHistories};
};

}  // namespace

std::map<std::string, metrics::HttpServer::Page> PagesOfJobs(const JobManager* manager, const metrics::Health* health,
                                                             const std::string& version) {
  std::map<std::string, metrics::HttpServer::Page> pages;
  for (const PageFile& file : PageFiles()) {
    pages[file.path] = {
        .make = [&file](const std::string&) { return Answer{.type = file.type, .body = std::string(file.content)}; }};
  }
  const auto api = std::make_shared<Api>(manager, health, version);
  pages["/api/"] = {.make = [api](const std::string& path) { return api->Get(path); }, .slow = true, .below = true};
  return pages;
}

}  // namespace egeria::controller
