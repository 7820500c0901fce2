#ifndef EGERIA_JOBS_TRAINING_SCRIPT_H_
#define EGERIA_JOBS_TRAINING_SCRIPT_H_

#include <string>
#include <utility>
#include <vector>

#include "jobs/job_file.h"

// The parts that shell scripts of several back ends have in common.
namespace egeria::jobs {

// Variables that the training and Egeria read, with their values, in the order of their names.
std::vector<std::pair<std::string, std::string>> TrainingVariables(const JobFile& job);

// Whether the ranks get a signal before the job's time limit.
bool SignalsBeforeLimit(const JobFile& job);

// Sets the script's variables, exports the training's, and makes the folders and the job's id and secret.
std::string ScriptBeginning(const JobFile& job);

// The words of egeria-run that follow from the job file: its cache, in quotes.
std::string CacheWords(const JobFile& job);

// torchrun's words for the signal that the ranks are to get, "" where there is none. They end with a space.
std::string SignalWords(const JobFile& job);

// The program or script with its arguments, as the last words of torchrun, in quotes.
std::string ApplicationWords(const JobFile& job);

// Copies the data to the folder of the node for temporary files, and has {data} mean the copy; "" without data.stage.
std::string StageCommands(const JobFile& job);

}  // namespace egeria::jobs

#endif  // EGERIA_JOBS_TRAINING_SCRIPT_H_
