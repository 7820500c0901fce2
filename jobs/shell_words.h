#ifndef EGERIA_JOBS_SHELL_WORDS_H_
#define EGERIA_JOBS_SHELL_WORDS_H_

#include <string>

namespace egeria::jobs {

// `text` as one word of a shell script, whatever it holds; in quotes where it needs them.
std::string Quote(const std::string& text);

// The same for a word of the training's command: {data}, {output} and {checkpoints} become the script's variables.
std::string QuoteWithFolders(const std::string& text);

}  // namespace egeria::jobs

#endif  // EGERIA_JOBS_SHELL_WORDS_H_
