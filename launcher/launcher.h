#ifndef EGERIA_LAUNCHER_LAUNCHER_H_
#define EGERIA_LAUNCHER_LAUNCHER_H_

#include "launcher/arguments.h"

namespace egeria::run {

// Runs the job that `arguments` describe, from the start of its daemons to their end, and returns this program's
// exit code: torchrun's, 128 + N where signal N ended it, 127 where torchrun cannot be found or started.
// Called once, on the main thread, before any other thread is started.
int Launch(const Arguments& arguments);

// Holds daemons for the process that has started this one, as `arguments.beside` says, until standard input ends, that
// process does, or a signal to end comes. Returns this program's exit code: 1 where the controller could not start.
// Called as Launch() is.
int Serve(const Arguments& arguments);

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_LAUNCHER_H_
