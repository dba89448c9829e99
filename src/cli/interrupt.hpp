#pragma once

namespace cuttle::cli {

/// From now on the first SIGINT or SIGTERM only asks to stop; the second ends the process as usual.
void catch_interrupts();
bool interrupted();

}  // namespace cuttle::cli
