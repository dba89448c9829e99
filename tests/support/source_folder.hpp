#pragma once
#include <string>

/// Where the data and golden files of the tests lie: the environment's CUTTLE_SOURCE_DIR, or the tree that was built.
/// Defined in main.cpp, so that one file alone is compiled anew where the tree moves.
std::string source_folder();
