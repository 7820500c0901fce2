#ifndef EGERIA_JOBS_JOB_FIELDS_H_
#define EGERIA_JOBS_JOB_FIELDS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/values.h"
#include "jobs/job_file.h"

namespace egeria::jobs {

// A field of the job file. The reader, the JSON Schema and the reference page all go by this.
struct Field {
  enum class Kind { kText, kTexts, kMap, kWhole, kSwitch, kSize, kDuration, kPart };

  std::string key;   // the keys from the file's root on, joined by a dot
  std::string help;  // one sentence
  Kind kind = Kind::kText;
  bool required = false;
  std::vector<std::string> choices;  // the only values; empty: any
  std::string pattern;               // a regular expression for the whole of a text, of each text or of each name
  std::string pattern_words;         // the same in words
  int64_t lowest = 0, highest = 0;   // the range of whole numbers
  bool is_folder = false;            // a relative one is meant from the folder of the job file
  std::function<config::Words()> format;
  std::function<absl::Status(const config::Words&)> set;
  TextMap* map = nullptr;  // kMap only; its keys are those below `key`
};

// The fields of `job`, in the order of the reference page. `job` must outlive them.
std::vector<Field> JobFields(JobFile* job);

// Says what the sections of the file are about, by their key.
const TextMap& SectionHelp();

}  // namespace egeria::jobs

#endif  // EGERIA_JOBS_JOB_FIELDS_H_
