# shellcheck shell=bash
# Result lines and the closing line for test programs that are shell scripts: set `work` to a folder for
# temporary files, source this file, call `check` and `skip`, and `finish` at the end. Programs that
# compare libraries or run cases in the lab are written in Python, with the package in this folder;
# their lines have the same format.

passed=0 failed=0 skipped=0
# Prefix of each name.
check_prefix=''

ok() {
    echo "ok   $check_prefix$1${2:+: $2}"
    passed=$((passed + 1))
}

# fail NAME [FACTS]
fail() {
    echo "FAIL $check_prefix$1${2:+: $2}"
    failed=$((failed + 1))
}

skip() {
    echo "skip $check_prefix$1: $2"
    skipped=$((skipped + 1))
}

# detail: indents standard input, its first 40 lines.
detail() {
    sed -n '1,40s/^/    /p'
}

# check NAME COMMAND...: passes if COMMAND succeeds; its output is shown if it fails.
check() {
    local name=$1
    shift
    if "$@" >"${work:?}/output" 2>&1; then
        ok "$name"
    else
        fail "$name"
        tail -n 40 "${work:?}/output" | detail
        return 1
    fi
}

# finish [TITLE]: prints the closing line, and returns the exit status of the run: 1 after a failure, 2 if nothing ran.
finish() {
    echo "${1:+$1: }$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ] || return 1
    [ $((passed + skipped)) != 0 ] || return 2
}
