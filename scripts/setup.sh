# shellcheck shell=bash
# Sourced by run, demo and test: makes .venv and installs Flyball into it, or does nothing if that is done already.
# With FLYBALL_COMPILE=1 the hot modules are compiled.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv="$root/.venv"
stamp="$venv/flyball-stamp"

say() { echo "flyball: $*" >&2; }

die() {
    say "$@"
    exit 1
}

# Make sure that Debian's packages are there, for a need that was found missing.
install_packages() {
    local missing=$1
    shift
    if [[ $EUID != 0 ]] || ! command -v apt-get >/dev/null; then
        die "$missing missing; install it, on Debian with: sudo apt-get install $*"
    fi
    say "installing $*"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"; } >&2 ||
        die "$missing missing, and apt-get could not install it"
}

# Print Debian's packages that the tests need and that are not there: other brokers, other clients, a compiler for the load.
missing_test_packages() {
    local need
    for need in rabbitmq-server=/usr/lib/rabbitmq/bin/rabbitmq-server amqp-tools=amqp-publish nodejs=node npm=npm \
        gcc=gcc make=make pkg-config=pkg-config openssh-server=/usr/sbin/sshd \
        chromium=chromium systemd=systemd-analyze; do
        command -v "${need#*=}" >/dev/null || echo "${need%=*}"
    done
    if ! pkg-config --exists librabbitmq 2>/dev/null; then
        echo librabbitmq-dev libc6-dev
    fi
}

# Install what the tests need in addition to Python. No broker is started by its installation: the tests
# start their own.
prepare_tests() {
    local packages
    mapfile -t packages < <(missing_test_packages | tr ' ' '\n')
    if [[ ${#packages[@]} == 0 ]]; then
        return
    fi
    (
        if [[ $EUID == 0 ]] && command -v apt-get >/dev/null; then
            forbid_services
        fi
        install_packages "What the tests need is" "${packages[@]}"
    ) || exit
}

# Let Debian's packages start no service until this shell ends.
forbid_services() {
    local policy=/usr/sbin/policy-rc.d
    if [[ -e $policy ]]; then
        mv "$policy" "$policy.before-flyball"
        trap "mv '$policy.before-flyball' '$policy'" EXIT
    else
        trap "rm -f '$policy'" EXIT
    fi
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
}

# Make sure that the tests with Node find their client library.
prepare_node() {
    local folder="$root/tests/broker/protocols/amqp/compatibility/clients" stamp
    stamp="$folder/node_modules/flyball-stamp"
    if cmp --silent "$folder/package.json" "$stamp"; then
        return
    fi
    say "installing what the tests with Node need"
    npm install --prefix "$folder" --no-package-lock --no-audit --no-fund --loglevel=error >&2 ||
        die "npm could not install what the tests with Node need"
    cp "$folder/package.json" "$stamp"
}

# Print a Python that is new enough and can make virtual environments. 3.11 first: constraints.txt is tested with it.
find_python() {
    local name
    for name in python3.11 python3.12 python3.13 python3; do
        if "$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    return 1
}

# What an installation is made from. Compiled modules hide their sources, so there every source counts.
fingerprint() {
    {
        echo "$venv ${FLYBALL_COMPILE:-0}"
        cat "$root"/{pyproject.toml,constraints.txt,setup.py}
        if [[ ${FLYBALL_COMPILE:-0} == 1 ]]; then
            find "$root/src" -name '*.py' -print0 | sort -z | xargs -0 cat
        fi
    } | sha256sum | cut -d' ' -f1
}

# An environment that was moved here still points to its old place.
venv_is_usable() {
    grep -q "venv $venv\$" "$venv/pyvenv.cfg" 2>/dev/null && "$venv/bin/python" -m pip --version &>/dev/null
}

make_venv() {
    local python
    if ! python=$(find_python); then
        install_packages "Python 3.11 or newer with venv is" python3 python3-venv
        python=$(find_python) || die "Python 3.11 or newer with venv is missing; install it and put it on the PATH"
    fi
    say "making $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv" >&2
}

pip_install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" "$@" >&2
}

# Make sure that there is a C compiler, with Python's header files.
require_compiler() {
    local include
    include=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    if ! command -v gcc >/dev/null || [[ ! -e $include/Python.h ]]; then
        install_packages "A C compiler or Python's header files are" gcc libc6-dev python3-dev
    fi
}

install_compiled() {
    local extra=$1
    require_compiler
    # First the compiler, then what it compiles: the build uses the mypy of this environment.
    FLYBALL_COMPILE=0 pip_install --editable "${root}[fast${extra:+,$extra}]"
    pip_install --no-build-isolation --no-deps --editable "$root"
}

# prepare [EXTRAS]: install Flyball, with what its demo or its checks (dev) need if asked for.
prepare() {
    local extra=${1:-} wanted
    wanted=$(fingerprint)
    # Any installation also serves for running, and that for the checks for all.
    if grep -qsx -e "$wanted $extra.*" -e "$wanted dev" "$stamp" && "$venv/bin/python" -c 'import flyball' 2>/dev/null; then
        return
    fi
    venv_is_usable || make_venv
    rm -f "$stamp"
    # Left by a compiled build, they would hide the sources.
    find "$root/src" -name '*.so' -delete
    say "installing Flyball and its libraries"
    if [[ ${FLYBALL_COMPILE:-0} == 1 ]]; then
        install_compiled "$extra"
    else
        pip_install --editable "${root}${extra:+[$extra]}"
    fi
    echo "$wanted $extra" >"$stamp"
}
