#ifndef EGERIA_CONTROLLER_CLI_DOCTOR_COMMAND_H_
#define EGERIA_CONTROLLER_CLI_DOCTOR_COMMAND_H_

#include "controller/cli/command.h"

namespace egeria::cli {

// `egeria doctor ...`: becomes `python3 -m egeria.doctor ...`, which examines a model that a Python file builds.
// The Python is $EGERIA_PYTHON, or the first python3 of this program's folder, $VIRTUAL_ENV/bin, that of the Python
// which this was built with, and the folders of PATH. Fails with NOT_FOUND where there is none,
// or where it has no package egeria.
void AddDoctorCommand(CLI::App& app, const Select& select);

}  // namespace egeria::cli

#endif  // EGERIA_CONTROLLER_CLI_DOCTOR_COMMAND_H_
