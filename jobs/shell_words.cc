#include "jobs/shell_words.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace egeria::jobs {
namespace {

bool IsPlain(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("_-./:,=@%+", c);
}

}  // namespace

std::string Quote(const std::string& text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), IsPlain)) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string QuoteWithFolders(const std::string& text) {
  std::string quoted;
  std::string literal;
  const auto end_literal = [&] {
    if (!literal.empty()) quoted += Quote(literal);
    literal.clear();
  };
  for (size_t at = 0; at < text.size();) {
    bool found = false;
    for (const char* name : {"data", "output", "checkpoints"}) {
      const std::string placeholder = absl::StrCat("{", name, "}");
      if (text.compare(at, placeholder.size(), placeholder) != 0) continue;
      end_literal();
      absl::StrAppend(&quoted, "\"$", name, "\"");
      at += placeholder.size();
      found = true;
      break;
    }
    if (!found) literal += text[at++];
  }
  end_literal();
  return quoted.empty() ? "''" : quoted;
}

}  // namespace egeria::jobs
