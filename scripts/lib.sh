# shellcheck shell=bash
# Set-up shared by the scripts: build tools and libraries from the distribution, then a build by preset.
# Sourced with the tree's root as working directory.

say() { printf '\n== %s\n' "$*"; }
die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# quietly COMMAND...: shows what the command printed only if it fails.
quietly() {
  local output
  output=$("$@" 2>&1) && return
  printf '%s\n' "$output" >&2
  return 1
}

# Installs Debian packages where that is allowed; otherwise prints the line to run and ends the script.
install_packages() {
  local sudo=()
  if ! command -v apt-get >/dev/null; then
    die "Cuttle needs these, by their Debian names: $*. Install them, then start again."
  fi
  if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      die "Some packages are missing. Run this, then start again:
    sudo apt-get update && sudo apt-get install -y $*"
    fi
    sudo=(sudo -n)
  fi
  say "Installing $*"
  quietly "${sudo[@]}" apt-get update || true # an old list may do
  quietly "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" ||
    die "apt-get could not install $*"
}

library_packages() { sed -nE 's/^ *cuttle_needs\(([a-z0-9-]+) .*/\1/p' cmake/dependencies.cmake; }

# On a machine that cannot build at all, the libraries come in the same go.
ensure_build_tools() {
  local missing=()
  command -v cmake >/dev/null || missing+=(cmake)
  command -v ninja >/dev/null || missing+=(ninja-build)
  command -v "${CXX:-c++}" >/dev/null || missing+=(g++)
  if [ ${#missing[@]} != 0 ]; then
    mapfile -t -O ${#missing[@]} missing < <(library_packages)
    install_packages "${missing[@]}"
  fi
}

# CUDA code is compiled for this machine's card, or for one kind of card where there is none: all of them take minutes.
if [ -z "${CUDAARCHS:-}" ]; then
  if nvidia-smi -L >/dev/null 2>&1; then export CUDAARCHS=native; else export CUDAARCHS=90; fi
fi

# build PRESET [--target NAME]: CMake knows which libraries are missing and prints the line that installs them.
build() {
  local preset=$1 report packages
  shift
  if ! report=$(cmake --preset "$preset" 2>&1); then
    packages=$(sed -n 's/.*apt-get install -y //p' <<<"$report")
    if [ -z "$packages" ]; then
      printf '%s\n' "$report" >&2
      return 1
    fi
    # shellcheck disable=SC2086  # one word a package
    install_packages $packages
    quietly cmake --preset "$preset" || return 1
  fi
  cmake --build --preset "$preset" "$@"
}
