#pragma once

namespace cuttle::cli {

/// From now on the first SIGINT or SIGTERM only asks to stop; the second ends the process as usual.
/// A pipe without a reader makes writing fail and ends nothing.
void catch_interrupts();
bool interrupted();

}  // namespace cuttle::cli
