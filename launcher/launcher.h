#ifndef EGERIA_LAUNCHER_LAUNCHER_H_
#define EGERIA_LAUNCHER_LAUNCHER_H_

#include "launcher/arguments.h"

namespace egeria::run {

// Runs the job that `arguments` describe, from the start of its daemons to their end, and returns this program's
// exit code: torchrun's, 128 + N where signal N ended it, 127 where torchrun cannot be found or started.
// Called once, on the main thread, before any other thread is started.
int Launch(const Arguments& arguments);

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_LAUNCHER_H_
