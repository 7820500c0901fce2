#include "jobs/job_schema.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "jobs/job_fields.h"
#include "nlohmann/json.hpp"

namespace egeria::jobs {
namespace {

using Json = nlohmann::ordered_json;
using Kind = Field::Kind;

constexpr char kSizePattern[] = "^[0-9]+ *(KiB|MiB|GiB|TiB)?$";
constexpr char kDurationPattern[] = "^([0-9.]+(h|m|s|ms))+$|^[0-9.]+d$|^0$";
constexpr char kPartPattern[] = "^[0-9.]+%?$";

std::string Whole(const std::string& pattern) { return absl::StrCat("^(", pattern, ")$"); }

Json NumberOrText(const char* pattern, Json number) {
  return Json::array({std::move(number), {{"type", "string"}, {"pattern", pattern}}});
}

// The type of a value. YAML reads a word such as 60 or true as a number or a truth value, which a text may be, too.
Json TypeOf(const Field& field) {
  const Json any = {"string", "number", "boolean"};
  switch (field.kind) {
    case Kind::kText: {
      Json type = {{"type", "string"}};
      if (!field.choices.empty()) type["enum"] = field.choices;
      if (!field.pattern.empty()) type["pattern"] = Whole(field.pattern);
      return type;
    }
    case Kind::kTexts: {
      Json item = {{"type", any}};
      if (!field.pattern.empty()) item = {{"type", "string"}, {"pattern", Whole(field.pattern)}};
      return {{"type", "array"}, {"items", item}};
    }
    case Kind::kMap: {
      Json type = {{"type", "object"}, {"additionalProperties", {{"type", any}}}};
      if (!field.pattern.empty()) type["propertyNames"] = {{"pattern", Whole(field.pattern)}};
      return type;
    }
    case Kind::kWhole: return {{"type", "integer"}, {"minimum", field.lowest}, {"maximum", field.highest}};
    case Kind::kSwitch: return {{"type", "boolean"}};
    case Kind::kSize: return {{"anyOf", NumberOrText(kSizePattern, {{"type", "integer"}, {"minimum", 0}})}};
    case Kind::kDuration: return {{"anyOf", NumberOrText(kDurationPattern, {{"const", 0}})}};
    case Kind::kPart:
      return {{"anyOf", NumberOrText(kPartPattern, {{"type", "number"}, {"minimum", 0}, {"maximum", 1}})}};
  }
  return {};
}

std::string DefaultOf(const Field& field) {
  if (field.map != nullptr || field.required) return "";
  return absl::StrJoin(field.format(), ", ");
}

std::string KindInWords(const Field& field) {
  switch (field.kind) {
    case Kind::kText:
      if (!field.choices.empty()) return absl::StrJoin(field.choices, ", ");
      return field.is_folder ? "a folder" : field.pattern_words.empty() ? "text" : field.pattern_words;
    case Kind::kTexts: return field.is_folder ? "a list of folders" : "a list of words";
    case Kind::kMap: return "names with values";
    case Kind::kWhole: return absl::StrCat(field.lowest, " to ", field.highest);
    case Kind::kSwitch: return "true or false";
    case Kind::kSize: return "a size such as 4GiB";
    case Kind::kDuration: return "a duration such as 90s, 1h30m or 30d";
    case Kind::kPart: return "a part such as 0.2 or 20%";
  }
  return "";
}

std::string SectionOf(const std::string& key) {
  const size_t dot = key.find('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

}  // namespace

std::string JobFileSchema() {
  JobFile job;
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "egeria.yaml"},
               {"description", "A training that `egeria submit` runs on this machine, on Slurm or on Kubernetes."},
               {"type", "object"},
               {"additionalProperties", false},
               {"required", {"name", "application", "output"}},
               {"properties", Json::object()}};
  for (const Field& field : JobFields(&job)) {
    const std::string section = SectionOf(field.key);
    Json type = TypeOf(field);
    type["description"] = field.help;
    if (const std::string value = DefaultOf(field); !value.empty()) type["default"] = value;
    if (section.empty()) {
      root["properties"][field.key] = type;
      continue;
    }
    Json& object = root["properties"][section];
    if (object.is_null()) {
      object = {{"type", "object"}, {"additionalProperties", false}, {"description", SectionHelp().at(section)}};
    }
    const std::string name = field.key.substr(section.size() + 1);
    object["properties"][name] = type;
    if (field.required) object["required"].push_back(name);
  }
  const Json one_of = Json::array({{{"required", {"command"}}}, {{"required", {"script"}}}});
  root["properties"]["application"]["oneOf"] = one_of;
  return root.dump(2) + "\n";
}

std::string JobFilePage() {
  std::string page =
      "# The job file\n\n"
      "This page is made from the declarations in `jobs/job_fields.cc` by `egeria compile --reference`, and so is the\n"
      "[JSON Schema](job-file.schema.json), which editors use. [The guide](../guides/job-files.md) explains how to run "
      "a job.\n"
      "Relative folders are meant from the folder of the file. A key that is not known is an error.\n";
  std::string section = "none";
  JobFile job;
  for (const Field& field : JobFields(&job)) {
    if (SectionOf(field.key) != section) {
      section = SectionOf(field.key);
      absl::StrAppend(&page, "\n## ", section.empty() ? "The job" : absl::StrCat("`", section, "`"), "\n\n",
                      section.empty() ? "" : SectionHelp().at(section) + "\n\n",
                      "| key | value | default | meaning |\n|---|---|---|---|\n");
    }
    const std::string value = DefaultOf(field);
    absl::StrAppend(&page, "| `", field.key, "` | ", KindInWords(field), " | ",
                    field.required  ? "must be given"
                    : value.empty() ? ""
                                    : absl::StrCat("`", value, "`"),
                    " | ", absl::StrReplaceAll(field.help, {{"|", "\\|"}}), " |\n");
  }
  return page;
}

}  // namespace egeria::jobs
