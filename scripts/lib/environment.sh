# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The development environment of scripts/test, scripts/run, scripts/demo, scripts/check and scripts/env.
#
# An installed ROS 2 is used if there is one, with a virtual environment for packages that apt lacks.
# Otherwise the virtual environment gets ROS 2 from PyPI, and further message packages from overlay/.
# Set-up and build run alone, under a lock, and end with a stamp. A finished, unchanged result is kept; an
# interrupted or outdated result is made again.
#
# Callers: env_select [DISTRO], then env_ready (set-up, build), then env_open (this shell).

ENV_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ENV_REVISION=1  # raise after a change of the set-up below, so that existing environments are made again

env_say() { printf '%s\n' "$*" >&2; }
env_die() { env_say "scripts/${0##*/}: $*"; exit 2; }

# --- which ROS 2 -----------------------------------------------------------------------------------

# env_select [DISTRO]: choose the source of ROS 2. Sets ENV_* and changes no files.
env_select() {
  local wanted=${1:-} candidate
  case ${ROS_DISTRO:-} in
    '' | jazzy | kilted) ;;
    *) env_die "this shell has ROS 2 $ROS_DISTRO, but only jazzy and kilted are supported: run this again in a shell with one of these or without ROS 2 (often ~/.bashrc sources one)" ;;
  esac
  case $wanted in
    '' | jazzy | kilted) ;;
    *) env_die "the distribution must be jazzy or kilted (got '$wanted')" ;;
  esac
  ENV_KIND=pypi ENV_DISTRO=${wanted:-jazzy} ENV_SETUP=''
  # After scripts/env, the shell has a ROS_DISTRO that is not from an installed ROS 2.
  if [ -n "${ROS_DISTRO:-}" ] && [ -n "${AMENT_PREFIX_PATH:-}" ] && [ -z "${TRT_PERCEPTION_VENV:-}" ]; then
    [ -z "$wanted" ] || [ "$wanted" = "$ROS_DISTRO" ] ||
      env_die "ROS 2 $ROS_DISTRO is sourced in this shell, and two distributions do not mix: use a shell without it for --distro $wanted"
    ENV_KIND=installed ENV_DISTRO=$ROS_DISTRO
  else
    for candidate in ${wanted:-jazzy kilted}; do
      if [ -f "/opt/ros/$candidate/setup.bash" ]; then
        ENV_KIND=installed ENV_DISTRO=$candidate ENV_SETUP=/opt/ros/$candidate/setup.bash
        break
      fi
    done
  fi
  local suffix=''
  [ "$ENV_DISTRO" = jazzy ] || suffix=-$ENV_DISTRO
  ENV_VENV=$ENV_ROOT/.venv$suffix
  ENV_BUILD=$ENV_ROOT/build$suffix ENV_INSTALL=$ENV_ROOT/install$suffix ENV_LOGS=$ENV_ROOT/log$suffix
  ENV_STATE=$ENV_ROOT/.env/$ENV_DISTRO
}

# Unset the variables of an environment opened earlier, and source an installed ROS 2.
env_ros() {
  if [ -n "${TRT_PERCEPTION_VENV:-}" ]; then
    unset AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH PYTHONPATH LD_LIBRARY_PATH
    unset ROS_DISTRO TRT_PERCEPTION_VENV
  fi
  # ros-wheels-bootstrapper sets it when LD_LIBRARY_PATH is complete, which is false for another prefix.
  unset _ROS_WHEELS_BOOTSTRAP_COMPLETE
  # shellcheck disable=SC1090
  [ -z "$ENV_SETUP" ] || env_source "$ENV_SETUP"
}

env_source() {  # source a ROS set-up file, which reads unset variables and may return any status
  local flags=$-
  set +eu
  # shellcheck disable=SC1090
  . "$1"
  case $flags in *e*) set -e ;; esac
  case $flags in *u*) set -u ;; esac
}

# --- requirements of this machine ------------------------------------------------------------------

# Print the interpreter to build on: $PYTHON, else the interpreter in use, else the first suitable one.
# For a virtual environment, print its base interpreter, because .venv may be removed and made again.
env_python() {
  local candidate found
  local ask='import os, sys
if not (3, 10) <= sys.version_info[:2] <= (3, 14): raise SystemExit(1)
print(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))'
  if [ -n "${PYTHON:-}" ]; then
    found=$("$PYTHON" -c "$ask" 2>/dev/null) ||
      env_die "PYTHON must name a CPython 3.10 to 3.14 (got '$PYTHON': $("$PYTHON" --version 2>&1 | head -n 1))"
    printf '%s\n' "$found"
    return
  fi
  for candidate in "$ENV_VENV/bin/python" python3 python3.12 python3.11 python3.13 python3.14 python3.10; do
    if found=$("$candidate" -c "$ask" 2>/dev/null); then
      printf '%s\n' "$found"
      return
    fi
    # An installed ROS 2 works only with the Python that it was compiled for.
    [ "$ENV_KIND $candidate" != 'installed python3' ] || break
  done
  env_die "needs CPython 3.10 to 3.14 (found $(python3 --version 2>&1 | head -n 1)): install one of them, or set PYTHON=/path/to/python3.12"
}

env_check_pypi() {
  [ "$(uname -s) $(uname -m)" = 'Linux x86_64' ] ||
    env_die "ROS 2 from PyPI exists for x86-64 Linux only (this is $(uname -s) $(uname -m)): install ROS 2 Jazzy and source its setup.bash, then run this again"
  local missing=()
  { command -v c++ && command -v make; } >/dev/null || missing+=(build-essential)
  command -v cmake >/dev/null || missing+=(cmake)
  "$1" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  "$1" -c 'import pathlib, sysconfig
raise SystemExit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' || missing+=(python3-dev)
  [ ${#missing[@]} -eq 0 ] ||
    env_die "building messages for $1 needs missing packages: sudo apt-get install ${missing[*]}"
}

env_check_installed() {
  local missing=() package
  "$1" -c 'import rclpy' 2>/dev/null ||
    env_die "$1 cannot import the rclpy of ROS 2 $ENV_DISTRO: set PYTHON to the Python that it was built for, usually PYTHON=/usr/bin/python3"
  for package in vision_msgs foxglove_msgs bond cv_bridge launch_ros launch_testing; do
    "$1" -c "from ament_index_python import get_package_prefix as g; g('$package')" 2>/dev/null ||
      missing+=("ros-$ENV_DISTRO-${package//_/-}")
  done
  "$1" -c 'import colcon_core, colcon_ros' 2>/dev/null || missing+=(python3-colcon-common-extensions)
  "$1" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  "$1" -c 'import cv2' 2>/dev/null || missing+=(python3-opencv)
  "$1" -c 'import pytest' 2>/dev/null || missing+=(python3-pytest)
  [ ${#missing[@]} -eq 0 ] ||
    env_die "ROS 2 $ENV_DISTRO lacks packages that trt_perception needs: sudo apt-get install ${missing[*]}"
}

# --- set-up ----------------------------------------------------------------------------------------

# env_step LOG LABEL COMMAND...: run a command; print one line with its duration; write output to $ENV_STATE/LOG.
env_step() {
  local log=$ENV_STATE/$1 label=$2 start=$SECONDS status=0
  shift 2
  printf '%s ... ' "$label" >&2
  printf '\n--- %s\n' "$label" >> "$log"
  # The command is not a condition, because a condition would disable set -e inside it.
  set +e
  (set -e; "$@") >> "$log" 2>&1 < /dev/null
  status=$?
  set -e
  if [ "$status" -ne 0 ]; then
    env_say 'failed'
    tail -n 25 "$log" >&2
    env_say "scripts/${0##*/}: '$label' failed; the whole log is ${log#"$ENV_ROOT"/}"
    exit 1
  fi
  env_say "$((SECONDS - start)) s"
}

# Print a hash of everything that the virtual environment depends on.
env_key() {
  {
    printf '%s\n' "$ENV_REVISION" "$ENV_KIND" "$ENV_DISTRO" "$ENV_ROOT"
    printf '%s\n' "$1" && "$1" --version
    cd "$ENV_ROOT"
    if [ "$ENV_KIND" = pypi ]; then
      sha256sum requirements/{common,pypi,"$ENV_DISTRO"}.txt
      find overlay/*/ -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
    else
      sha256sum requirements/{common,ros-installed}.txt
    fi
  } | sha256sum
}

env_make_venv() { # env_make_venv PYTHON [OPTION...]
  local python=$1
  shift
  rm -f "$ENV_VENV/.complete"  # first: an interrupted removal must not look finished
  rm -rf "$ENV_VENV"
  "$python" -m venv "$@" "$ENV_VENV"
  touch "$ENV_VENV/COLCON_IGNORE"  # its share/ contains many package.xml files
  touch "$ENV_VENV"/local_setup.{sh,bash,zsh}  # colcon looks for them in each folder of AMENT_PREFIX_PATH
}

# Run pip, at most three times, because downloads may fail for a while.
env_pip() {
  local pip=("$ENV_VENV/bin/python" -m pip --disable-pip-version-check --quiet) wait_s
  for wait_s in 5 15; do
    "${pip[@]}" "$@" && return
    env_say "pip failed: trying again in $wait_s s"
    sleep "$wait_s"
  done
  "${pip[@]}" "$@"
}

env_pip_pypi() {
  # Without build isolation, the setuptools pinned here builds the only source package.
  local installers
  mapfile -t installers < <(grep -oE '^(pip|setuptools)==[^ ]+' "$ENV_ROOT/requirements/pypi.txt")
  env_pip install --no-deps "${installers[@]}"
  # Python compiles modules on import, and most modules are never imported.
  env_pip install --no-deps --no-compile --no-build-isolation -r "$ENV_ROOT/requirements/$ENV_DISTRO.txt"
  "$ENV_VENV/bin/python" -m pip check
}

env_pip_installed() {
  env_pip install --no-deps -r "$ENV_ROOT/requirements/ros-installed.txt"
}

env_overlay() {
  # The wheels' CMake files contain header paths of the build machine.
  "$ENV_VENV/bin/python" - <<'PY'
import pathlib
import re
import sys
import sysconfig

import numpy

HEADERS = (
    (rb'/opt/python/cp\d+-cp\d+/lib/python[\d.]+/site-packages/numpy/(?:_core|core)/include', numpy.get_include()),
    (rb'/opt/python/cp\d+-cp\d+/include/python[\d.]+', sysconfig.get_path('include')),
)
for path in pathlib.Path(sys.prefix, 'share').rglob('*.cmake'):
    old = new = path.read_bytes()
    for pattern, here in HEADERS:
        new = re.sub(pattern, lambda _, here=here: here.encode(), new)
    if new != old:
        path.write_bytes(new)
PY
  # Build outside the checkout, so that colcon does not find it and no build folder of the user changes.
  local build
  build=$(mktemp -d)
  export ENV_ROOT ENV_VENV ENV_STATE
  export AMENT_PREFIX_PATH=$ENV_VENV CMAKE_PREFIX_PATH=$ENV_VENV PATH=$ENV_VENV/bin:$PATH
  export -f env_overlay_package
  # All packages at once. Started by xargs, because Ctrl-C does not end background jobs of a script.
  printf '%s\n' vision_msgs foxglove_msgs bond |
    xargs -P 0 -I NAME bash -c 'env_overlay_package "$@"' bash NAME "$build"
  rm -rf "$build"
}

env_overlay_package() { # env_overlay_package NAME FOLDER: build overlay/NAME in FOLDER/NAME, and install it
  local build=$2/$1 log=$ENV_STATE/overlay_$1.log jobs
  jobs=$(($(nproc) < 8 ? $(nproc) : 8))  # three packages at once, so at most 24 compilers
  if ! {
    cmake -S "$ENV_ROOT/overlay/$1" -B "$build" -DCMAKE_INSTALL_PREFIX="$ENV_VENV" \
      -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF -DPython3_EXECUTABLE="$ENV_VENV/bin/python" \
      -DPYTHON_EXECUTABLE="$ENV_VENV/bin/python" &&
      cmake --build "$build" --parallel "$jobs" &&
      cmake --install "$build"
  } > "$log" 2>&1; then
    printf '%s\n' "$(tail -n 20 "$log")" "package $1 failed; its log is ${log#"$ENV_ROOT"/}"
    return 1
  fi
}

env_setup() {
  local python key
  python=$(env_python)
  key=$(env_key "$python")
  [ "$(cat "$ENV_VENV/.complete" 2>/dev/null)" != "$key" ] || return 0
  "env_check_$ENV_KIND" "$python"
  : > "$ENV_STATE/setup.log"
  env_say "Setting up ROS 2 $ENV_DISTRO in ${ENV_VENV##*/}, once (log: ${ENV_STATE#"$ENV_ROOT"/}/setup.log)"
  if [ "$ENV_KIND" = pypi ]; then
    env_step setup.log '[1/3] virtual environment' env_make_venv "$python"
    env_step setup.log "[2/3] ROS 2 $ENV_DISTRO and the Python packages" env_pip_pypi
    env_step setup.log '[3/3] message packages (compiles for some minutes)' env_overlay
  else
    env_step setup.log '[1/2] virtual environment' env_make_venv "$python" --system-site-packages
    env_step setup.log '[2/2] Python packages' env_pip_installed
  fi
  # Remove builds against the previous environment.
  rm -rf "$ENV_BUILD" "$ENV_INSTALL"
  printf '%s\n' "$key" > "$ENV_VENV/.complete"
}

# --- build -----------------------------------------------------------------------------------------

# Print a hash of the names and contents of all installed files.
env_sources() {
  cd "$ENV_ROOT"
  { find trt_perception launch config models demo resource setup.py setup.cfg package.xml -type f \
    -not -path '*/__pycache__/*' -print0 2>/dev/null || true; } | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}

env_build() {
  local key
  key=$(env_sources)
  [ "$(cat "$ENV_INSTALL/.complete" 2>/dev/null)" != "$key" ] || return 0
  : > "$ENV_STATE/build.log"
  rm -f "$ENV_INSTALL/.complete"  # first: an interrupted removal must not look finished
  # Build from nothing: setuptools would install deleted modules again.
  rm -rf "$ENV_BUILD/trt_perception" "$ENV_INSTALL"
  env_step build.log 'colcon build' env_colcon build --base-paths "$ENV_ROOT" --packages-select trt_perception \
    --build-base "$ENV_BUILD" --install-base "$ENV_INSTALL"
  printf '%s\n' "$key" > "$ENV_INSTALL/.complete"
}

env_colcon() (
  cd "$ENV_ROOT"
  exec python -m colcon --log-base "$ENV_LOGS" "$@"
)

# --- for callers -----------------------------------------------------------------------------------

ENV_LOCK_LIMIT_S=600  # longest wait for another run

# env_lock FD FILE KIND: lock FILE, which is open as FD. KIND is -s (shared) or -x (exclusive). If another run
# has the lock, say which one. Stop after ENV_LOCK_LIMIT_S.
env_lock() {
  flock "$3" -w 1 "$1" && return  # the lock is often free after some milliseconds
  local holder
  holder=$(cat "$2")
  env_say "scripts/${0##*/}: waiting for ${holder:-another run} in this checkout, at most $ENV_LOCK_LIMIT_S s"
  flock "$3" -w "$ENV_LOCK_LIMIT_S" "$1" ||
    env_die "${holder:-another run} did not end within $ENV_LOCK_LIMIT_S s: try again after its end, or use another clone"
}

env_name_holder() { printf '%s\n' "$1" > "$2"; }  # env_name_holder TEXT FILE: say who has the lock

env_check_writable() {
  { mkdir -p "$ENV_STATE" && : >> "$ENV_STATE/lock"; } 2>/dev/null ||
    env_die "user $(id -un 2>/dev/null || id -u) cannot write $ENV_STATE/lock; the checkout belongs to user $(
      stat -c %U "$ENV_ROOT"): run this as that user, or in your own clone"
}

env_is_ready() {
  [ -f "$ENV_VENV/.complete" ] && [ "$(cat "$ENV_VENV/.complete")" = "$(env_key "$(env_python 2>/dev/null)" 2>/dev/null)" ] &&
    [ "$(cat "$ENV_INSTALL/.complete" 2>/dev/null)" = "$(env_sources)" ]
}

# Set up and build missing or outdated parts. Only these steps need the lock alone: scripts/test shares it
# while tests run. Do nothing in a script that a test started, because the tree under test must not change.
env_ready() {
  [ "${TRT_PERCEPTION_IN_TEST:-}" != "$ENV_INSTALL" ] || return 0
  env_check_writable
  local lock=$ENV_STATE/lock
  (
    env_lock 9 "$lock" -s
    env_ros
    ! env_is_ready || exit 0
    env_lock 9 "$lock" -x
    env_name_holder "the set-up of scripts/${0##*/} (process $$)" "$lock"
    # The set-up runs without the lock's descriptor, because a process left behind would keep the lock.
    env_setup 9>&-
    env_activate
    env_build 9>&-
  ) 9>> "$lock"
}

env_activate() {
  if [ "$ENV_KIND" = pypi ]; then
    export ROS_DISTRO=$ENV_DISTRO ROS_VERSION=2 ROS_PYTHON_VERSION=3
    export AMENT_PREFIX_PATH=$ENV_VENV CMAKE_PREFIX_PATH=$ENV_VENV TRT_PERCEPTION_VENV=$ENV_VENV
  fi
  export VIRTUAL_ENV=$ENV_VENV PATH=$ENV_VENV/bin:$PATH
  unset PYTHONHOME
}

# Open the environment in this shell: ROS 2, the virtual environment and the installed package.
env_open() {
  env_ros
  env_activate
  # The package's own file, because colcon's local_setup.bash fails if the path has a space.
  env_source "$ENV_INSTALL/trt_perception/share/trt_perception/package.bash"
  # Messages of the package name its tools with these words in front. A shell without this environment needs them.
  printf -v TRT_PERCEPTION_RUN '%q' "$ENV_ROOT/scripts/run"
  [ "$ENV_DISTRO" = jazzy ] || TRT_PERCEPTION_RUN+=" --distro $ENV_DISTRO"
  export TRT_PERCEPTION_RUN
  # Messages write this in place of `ros2` in the commands `ros2 lifecycle` and `ros2 param`.
  TRT_PERCEPTION_ROS2=$(command -v ros2 >/dev/null && echo ros2 || printf '%s' "$TRT_PERCEPTION_RUN")
  export TRT_PERCEPTION_ROS2
}

# Keep this run's topics on this machine and in a separate domain, unless the user chose a domain. The lock
# on the domain's file lasts until the run and all its child processes have ended.
env_isolate() {
  [ -z "${ROS_DOMAIN_ID:-}" ] || return 0
  local start=$((RANDOM % 100)) i lock
  for ((i = 0; i < 100; i++)); do
    ROS_DOMAIN_ID=$(((start + i) % 100 + 1))  # ports of domain 102 and above may overlap Linux's ephemeral ports
    if { exec {lock}> "${TMPDIR:-/tmp}/trt_perception-domain-$ROS_DOMAIN_ID.lock"; } 2>/dev/null &&
      flock -n "$lock"; then
      break
    fi
  done
  export ROS_DOMAIN_ID ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST
}
