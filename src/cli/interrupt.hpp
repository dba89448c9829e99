#pragma once

namespace cuttle::cli {

/// From now on SIGINT, SIGTERM and SIGHUP only ask to stop. The second SIGINT or SIGTERM ends the process as usual; a
/// hang-up comes twice from many shells, and where it was ignored (nohup) it stays so.
void catch_interrupts();
/// The first of these signals that came; 0: none.
int stop_signal();

}  // namespace cuttle::cli
