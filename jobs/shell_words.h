#ifndef EGERIA_JOBS_SHELL_WORDS_H_
#define EGERIA_JOBS_SHELL_WORDS_H_

#include <string>
#include <vector>

namespace egeria::jobs {

// `text` as one word of a shell script, whatever it holds; in quotes where it needs them.
std::string Quote(const std::string& text);

// The same for a word of the training's command: {data}, {output} and {checkpoints} become the script's variables.
std::string QuoteWithFolders(const std::string& text);

// Words of a command, one space between them.
std::string QuoteAll(const std::vector<std::string>& words);

}  // namespace egeria::jobs

#endif  // EGERIA_JOBS_SHELL_WORDS_H_
