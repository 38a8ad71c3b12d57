# shellcheck shell=bash
# Shared by the lab's scripts: messages, exit statuses, progress, the cache.

# Exit statuses of the lab itself (otherwise the status is that of the command).
# shellcheck disable=SC2034 # used by the scripts that read this file
{
    LAB_TIME_LIMIT_STATUS=124 # as timeout(1)
    LAB_FAILED=125            # the lab could not start, or its kernel died
    LAB_UNAVAILABLE=77        # something optional is not available: tests are skipped
}

say() {
    end_progress
    printf 'lab: %s\n' "$*" >&2
}

die() {
    local status=$1
    shift
    say "$@"
    exit "$status"
}

# Prints the folder for kernels and reference roots, shared by all checkouts of a user.
cache_dir() {
    printf '%s\n' "${LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/rdmacm-lab}"
}

# Prints a short hash of the contents of the given files.
hash_of() { cat -- "$@" | sha256sum | cut -c1-12; }

# Progress: on a terminal one line that is overwritten each time; otherwise one line for each message
# of progress_step only.
progress_start=$SECONDS
progress_open=no

elapsed() {
    local s=$((SECONDS - progress_start))
    printf '%d:%02d' $((s / 60)) $((s % 60))
}

progress() {
    [ -t 2 ] || return 0
    printf '\r\033[Klab: %s %s' "$(elapsed)" "$*" >&2
    progress_open=yes
}

progress_step() {
    if [ -t 2 ]; then progress "$@"; else say "$(elapsed)" "$@"; fi
}

end_progress() {
    [ "$progress_open" = no ] || printf '\n' >&2
    progress_open=no
}

# in_cache_lock NAME COMMAND...: runs COMMAND while no other process holds the lock NAME.
in_cache_lock() {
    local lock
    lock=$(cache_dir)/.lock-$1
    shift
    mkdir -p -- "$(cache_dir)"
    exec 9>"$lock"
    if ! flock -n 9; then
        say "waiting for another lab that prepares the same files"
        flock 9
    fi
    "$@" # not in a condition: the caller's errexit must act inside
    exec 9>&-
}

# scratch_dir: creates a directory in the cache for an entry that is renamed when complete. Removes
# directories of killed runs (older than a day).
scratch_dir() {
    mkdir -p -- "$(cache_dir)"
    find "$(cache_dir)" -maxdepth 1 -name '.work.*' -mmin +1440 -exec rm -rf {} +
    mktemp -d "$(cache_dir)/.work.XXXXXXXX"
}

# newest_in_cache NAME-PATTERN FILE: prints the path of FILE in the newest cache entry that has it;
# returns 1 if there is none.
newest_in_cache() {
    local found
    found=$(find "$(cache_dir)" -mindepth 2 -maxdepth 2 -path "*/$1/$2" 2>/dev/null | sort -V | tail -n 1)
    [ -n "$found" ] && printf '%s\n' "$found"
}

# cache_command KIND DEFAULT-VERSION ARGUMENT...: the command line of `kernel` and `reference`.
# They define usage, set_version VERSION (which sets version), cached and prepare.
# shellcheck disable=SC2154 # version
cache_command() {
    local kind=$1 default=$2
    shift 2
    case ${1:-} in
    path)
        set_version "${2:-$default}"
        cached || in_cache_lock "$kind-$version" prepare
        ;;
    cached)
        set_version "${2:-$default}"
        cached
        ;;
    --help) usage ;;
    *)
        usage >&2
        exit "$LAB_FAILED"
        ;;
    esac
}
