#ifndef EGERIA_CONTROLLER_CLI_DOCTOR_COMMAND_H_
#define EGERIA_CONTROLLER_CLI_DOCTOR_COMMAND_H_

#include "controller/cli/command.h"

namespace egeria::cli {

// `egeria doctor ...`: becomes `python3 -m egeria.doctor ...`, which examines a model that a Python file builds.
// Fails with NOT_FOUND where there is no Python that has the package egeria (python_program.h).
void AddDoctorCommand(CLI::App& app, const Select& select);

}  // namespace egeria::cli

#endif  // EGERIA_CONTROLLER_CLI_DOCTOR_COMMAND_H_
