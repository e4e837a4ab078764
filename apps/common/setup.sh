# setup.sh - what apps/quickstart, tests/run and .ci/run share: packages, configuring, building.
# To be sourced by bash. Uses and sets: ROOT (the source tree), DRY_RUN (1: print commands only),
# INSTALL (0: never call apt-get), TARN_PRESET (a CMake preset to insist on), TARN_BUILD_DIR.
# shellcheck shell=bash disable=SC2034

unset CDPATH  # with it, cd goes elsewhere, or prints where it went
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=${TARN_BUILD_DIR:-$ROOT/build}
DRY_RUN=${DRY_RUN:-0}
INSTALL=${INSTALL:-1}

BUILD_PACKAGES=(g++ cmake ninja-build libeigen3-dev libdnnl-dev libstb-dev nlohmann-json3-dev
                zlib1g-dev libgloo-dev)
DATA_PACKAGES=(dataset-fashion-mnist)
TEXT_PACKAGES=(bible-kjv)
TEST_PACKAGES=(libgtest-dev pkg-config)
FORMAT_PACKAGES=(clang-format-14)

say() { printf '%s\n' "==> $*"; }

fail() {
  printf '%s: error: %s\n' "$(basename "$0")" "$1" >&2
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

# Runs a command, or only shows it.
step() {
  if [ "$DRY_RUN" = 1 ]; then
    printf '  %s\n' "$(printf '%q ' "$@" | sed 's/ $//')"
  else
    "$@"
  fi
}

cmake_is_new_enough() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')
  [ -n "$version" ] && [ "$(printf '3.25\n%s\n' "$version" | sort -V | sed -n 1p)" = 3.25 ]
}

# True if a package, or what it is wanted for, is there already.
has_package() {
  case $1 in
    g++) command -v c++ >/dev/null && return 0 ;;
    cmake) cmake_is_new_enough && return 0 ;;
    ninja-build) command -v ninja >/dev/null && return 0 ;;
  esac
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

check_cmake() {
  [ "$DRY_RUN" = 1 ] || cmake_is_new_enough ||
    fail "CMake 3.25 or newer is needed; found: $(cmake --version 2>/dev/null | sed -n 1p)"
}

# need PACKAGE...: installs what is missing with apt-get.
need() {
  local missing=() package apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    [ "$INSTALL" = 0 ] && return 0
    fail "this system has no apt-get, so packages cannot be installed for you" \
      "Install by hand what Debian calls: $*" \
      "(a C++20 compiler, CMake 3.25 or newer, Ninja; Eigen, oneDNN, stb, nlohmann-json, zlib)," \
      "then run this again with INSTALL=0 in the environment."
  fi
  for package in "$@"; do has_package "$package" || missing+=("$package"); done
  if [ ${#missing[@]} -eq 0 ]; then
    check_cmake
    return 0
  fi
  if [ "$INSTALL" = 0 ]; then
    fail "INSTALL=0, but these packages are missing: ${missing[*]}"
  fi
  say "Installing with apt-get: ${missing[*]}"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "installing packages needs root, and there is no sudo" \
      "As root: apt-get install ${missing[*]}"
    apt=(sudo "${apt[@]}")
  fi
  step "${apt[@]}" update -q ||
    fail "apt-get update failed: is there a network?" "Missing packages: ${missing[*]}"
  step "${apt[@]}" install -y -q --no-install-recommends "${missing[@]}" ||
    fail "apt-get could not install: ${missing[*]}" "Its own message stands above."
  check_cmake
}

# What TARN_CUDA should be in a new build/: the kernels take minutes to compile, so a machine
# without a GPU leaves them out unless it is told otherwise.
cuda_mode() {
  if [ -n "${TARN_CUDA:-}" ]; then
    echo "$TARN_CUDA"
  elif [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then
    echo AUTO
  else
    echo OFF
  fi
}

# How many compilers at a time: one per core, but each may take 1 GiB of memory.
job_count() {
  local cores gib
  cores=$(nproc)
  gib=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  echo $((gib < 1 ? 1 : gib < cores ? gib : cores))
}

cached() { sed -n "s/^$1:[A-Z]*=//p" "$BUILD/CMakeCache.txt" 2>/dev/null; }

# A cache alone is what a configuring that failed leaves.
is_configured() { [ -f "$BUILD/build.ninja" ] || [ -f "$BUILD/Makefile" ]; }

# configure PRESET FLAG...: makes build/ with a preset and -DNAME=ON|OFF flags. A build/ that is
# configured already keeps its settings, so that the commands do not undo each other's work: only
# flags that must be ON are switched on there. TARN_PRESET insists on a preset,
# TARN_CUDA on a mode (cuda/cmake/TarnCuda.cmake).
configure() {
  local preset=${TARN_PRESET:-$1} flag wanted=()
  shift
  if [ -f "$BUILD/CMakeCache.txt" ] && [ ! "$(cached CMAKE_HOME_DIRECTORY)" -ef "$ROOT" ]; then
    fail "$BUILD was configured for $(cached CMAKE_HOME_DIRECTORY)" "Remove it and run this again."
  fi
  for flag in "$@"; do
    case $flag in
      -D*=ON)
        flag=${flag#-D}
        [ "$(cached "${flag%=ON}")" = ON ] || wanted+=("-D$flag")
        ;;
    esac
  done
  if ! is_configured || [ -n "${TARN_PRESET:-}" ]; then
    say "Configuring in build/ (preset $preset)"
    (cd "$ROOT" && step cmake --preset "$preset" "-DTARN_CUDA=$(cuda_mode)" -B "$BUILD" "$@")
  elif [ -n "${TARN_CUDA:-}" ] && [ "$(cached TARN_CUDA)" != "$TARN_CUDA" ]; then
    say "Configuring in build/ (TARN_CUDA=$TARN_CUDA)"
    step cmake -S "$ROOT" -B "$BUILD" "-DTARN_CUDA=$TARN_CUDA" "${wanted[@]}"
  elif [ ${#wanted[@]} -gt 0 ]; then
    say "Configuring in build/ (${wanted[*]})"
    step cmake -S "$ROOT" -B "$BUILD" "${wanted[@]}"
  fi
}

# build TARGET...: builds targets in build/.
build() {
  say "Building ${*} in build/"
  step cmake --build "$BUILD" -j "$(job_count)" --target "$@"
}
