# shellcheck shell=bash
# Set-up shared by the scripts: build tools and libraries from the distribution, then a build by preset.
# Sourced with the tree's root as working directory.

say() { printf '\n== %s\n' "$*"; }
die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# Installs Debian packages where that is allowed; otherwise prints the line to run and ends the script.
install_packages() {
  local sudo=()
  if ! command -v apt-get >/dev/null; then
    die "Cuttle needs these, under their Debian names: $*. Install them and run this again."
  fi
  if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      die "Some packages are missing. Run this, then start again:
    sudo apt-get update && sudo apt-get install -y $*"
    fi
    sudo=(sudo -n)
  fi
  say "Installing $*"
  "${sudo[@]}" apt-get update -qq || true # an old list may do
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2 ||
    die "apt-get could not install: $*"
}

ensure_build_tools() {
  local missing=()
  command -v cmake >/dev/null || missing+=(cmake)
  command -v ninja >/dev/null || missing+=(ninja-build)
  command -v "${CXX:-c++}" >/dev/null || missing+=(g++)
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
}

# Configures and builds a preset. CMake knows which libraries are missing and prints the line that installs them.
build() {
  local preset=$1 log
  log=$(mktemp)
  if ! cmake --preset "$preset" >"$log" 2>&1; then
    local packages
    packages=$(sed -n 's/.*apt-get install -y //p' "$log")
    if [ -z "$packages" ]; then
      cat "$log" >&2
      rm -f "$log"
      return 1
    fi
    # shellcheck disable=SC2086  # one word a package
    install_packages $packages
    cmake --preset "$preset" >"$log" 2>&1 || {
      cat "$log" >&2
      rm -f "$log"
      return 1
    }
  fi
  rm -f "$log"
  cmake --build --preset "$preset"
}
